"""TFRecord shards: which files, how many records, what is in them."""

import functools
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.schemas.errors import InputError

READ_CYCLE = 4  # shards read in turn
_HEADER = struct.Struct("<QI")  # of a record: its length, and a checksum of that
_FOOTER_BYTES = 4  # a checksum of the record
_SAMPLED_SHARDS, _SAMPLED_RECORDS = 8, 64  # of each; some 40 MB of photographs
_SCAN_BATCH = 64
_MAX_REMEMBERED = 4  # data sets of which counts and classes are kept in memory
_LOGGER = logging.getLogger("detloom")


def list_shards(patterns: Sequence[str]) -> list[str]:
    """Files that match, sorted.

    Raises:
        InputError: if there is none.
    """
    files = sorted({file for pattern in patterns for file in tf.io.gfile.glob(pattern)})
    if not files:
        raise InputError(f"{', '.join(patterns) or 'no pattern'}: no TFRecord file matches; is the split empty?")
    return files


def compression_of(files: Sequence[str]) -> str:
    """As TensorFlow names it: `*.gz` is decompressed if all are."""
    return "GZIP" if all(Path(file).suffix == ".gz" for file in files) else ""


def read_records(files: Sequence[str], *, one_of: int = 1) -> tf.data.Dataset:
    """Serialized examples, in an order that does not depend on timing.

    With `one_of`, only the first of each so many, the same ones every time.
    """
    compression = compression_of(files)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = tf.data.Dataset.from_tensor_slices(list(files)).interleave(read, cycle_length=READ_CYCLE)
    return records if one_of == 1 else records.shard(one_of, 0)


def count_records(files: Sequence[str]) -> tuple[int, ...]:
    """Of each file. Asked again about files that have not changed, a process reads nothing.

    Raises:
        InputError: for a file that cannot be read to its end.
    """
    return _count_records(_as_they_are(files))


@functools.lru_cache(maxsize=_MAX_REMEMBERED)
def _count_records(files: tuple["_File", ...]) -> tuple[int, ...]:
    _LOGGER.info("Counting the records of %d files.", len(files))
    paths = [file.path for file in files]
    compression = compression_of(paths)
    try:
        return tuple(_count_in_file(path, compression) for path in paths)
    except tf.errors.OpError as error:
        raise _unreadable(paths, error) from error


def _count_in_file(file: str, compression: str) -> int:
    if compression or not os.path.exists(file):  # compressed, or in an object store: read through once
        records = tf.data.TFRecordDataset(file, compression_type=compression)
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))
    count, place, size = 0, 0, os.path.getsize(file)
    with open(file, "rb") as stream:
        while place < size:
            stream.seek(place)
            header = stream.read(_HEADER.size)
            if len(header) < _HEADER.size:
                break
            place += _HEADER.size + _HEADER.unpack(header)[0] + _FOOTER_BYTES
            count += 1
    if place != size:
        raise InputError(f"{file}: record {max(count - 1, 0)} goes beyond the file's end; write the file again.")
    return count


def sampled_mean_bytes(files: Sequence[str]) -> float:
    """Mean size of a serialized example, over the first records of shards evenly spread; 0 without any record."""
    chosen = [files[i * len(files) // _SAMPLED_SHARDS] for i in range(_SAMPLED_SHARDS)]
    sizes = []
    for file in dict.fromkeys(chosen):
        sizes += [len(record) for record in read_records([file]).take(_SAMPLED_RECORDS).as_numpy_iterator()]
    return sum(sizes) / max(len(sizes), 1)


class ClassScan(NamedTuple):
    """Which classes are in which record.

    Attributes:
        num_records: of each file.
        class_ids: of each record, files one after the other, those of its boxes that are no crowds, each once, sorted.
    """

    num_records: tuple[int, ...]
    class_ids: tuple[np.ndarray, ...]


def scan_classes(files: Sequence[str]) -> ClassScan:
    """Read all records, for the classes in them. About files that have not changed, a process reads nothing twice.

    Raises:
        InputError: for a file or a record that cannot be read.
    """
    return _scan_classes(_as_they_are(files))


@functools.lru_cache(maxsize=_MAX_REMEMBERED)
def _scan_classes(files: tuple["_File", ...]) -> ClassScan:
    _LOGGER.info("Reading %d files once for the classes in their pictures.", len(files))
    features = {key: tf.io.RaggedFeature(tf.int64) for key in (keys.CLASS_ID, keys.IS_CROWD)}
    num_records: list[int] = []
    class_ids: list[np.ndarray] = []
    paths = [file.path for file in files]
    try:
        for path in paths:
            before = len(class_ids)
            for batch in read_records([path]).batch(_SCAN_BATCH):
                parsed = tf.io.parse_example(batch, features)
                columns = (parsed[key].to_list() for key in (keys.CLASS_ID, keys.IS_CROWD))
                class_ids.extend(_single_classes(*pair) for pair in zip(*columns, strict=True))
            num_records.append(len(class_ids) - before)
    except tf.errors.OpError as error:
        raise _unreadable(paths, error) from error
    return ClassScan(tuple(num_records), tuple(class_ids))


class _File(NamedTuple):
    """By which a file that has changed is told."""

    path: str
    num_bytes: int
    modified_ns: int


def _as_they_are(files: Sequence[str]) -> tuple[_File, ...]:
    try:
        stats = [tf.io.gfile.stat(file) for file in files]
    except tf.errors.OpError as error:
        raise _unreadable(files, error) from error
    return tuple(_File(path, stat.length, stat.mtime_nsec) for path, stat in zip(files, stats, strict=True))


def _single_classes(class_ids: list[int], is_crowd: list[int]) -> np.ndarray:
    ids = np.array(class_ids, np.int64)
    return np.unique(ids[np.array(is_crowd) == 0] if len(is_crowd) == len(ids) else ids)


def _unreadable(files: Sequence[str], error: tf.errors.OpError) -> InputError:
    cause = " ".join(str(error.message).split())
    return InputError(f"{Path(files[0]).parent}: a record cannot be read ({cause}); write its file again.")


def record_key(serialized: bytes) -> str:
    """What the record calls itself: source id, else file name, else nothing."""
    feature = tf.train.Example.FromString(serialized).features.feature
    names = (feature[key].bytes_list.value for key in (keys.IMAGE_SOURCE_ID, keys.IMAGE_FILENAME) if key in feature)
    return next((name.decode("utf-8", errors="replace") for values in names for name in values if name), "")
