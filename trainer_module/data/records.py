"""TFRecord shards: list files, count records, scan classes."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.arrays import Float32Array, Int64Array
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.files.tfrecord import scan_frames

_READ_CYCLE = 4  # number of shards that are read in turn where the order does not matter
_SAMPLED_SHARDS, _SAMPLED_RECORDS = 8, 64  # shards, and records of each; about 40 MB of photographs
_SCAN_BATCH = 64
_PIECE_BYTES = 1 << 24  # read at a time
_MAX_REMEMBERED = 4  # number of data sets whose counts and classes are cached
_LOGGER = logging.getLogger("detloom")
_Result = TypeVar("_Result")


def list_shards(patterns: Sequence[str]) -> list[str]:
    """Return the files that match, sorted.

    Raises:
        InputError: if no file matches.
    """
    files = sorted({file for pattern in patterns for file in tf.io.gfile.glob(pattern)})
    if not files:
        raise InputError(f"{', '.join(patterns) or 'no pattern'}: no TFRecord file matches; check the split.")
    return files


def compression_of(files: Sequence[str]) -> str:
    """Return the compression type for TensorFlow: GZIP if all files are `*.gz`."""
    return "GZIP" if all(Path(file).suffix == ".gz" for file in files) else ""


def read_records(files: Sequence[str], *, one_of: int = 1) -> tf.data.Dataset:
    """Read serialized examples in an order that does not depend on timing.

    Args:
        one_of: read only the first of every `one_of` records.
    """
    compression = compression_of(files)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = tf.data.Dataset.from_tensor_slices(list(files)).interleave(read, cycle_length=_READ_CYCLE)
    return records if one_of == 1 else records.shard(one_of, 0)


class _FileVersion(NamedTuple):
    """Cache key of one version of a file."""

    path: str
    num_bytes: int
    modified_ns: int


def _cached_by_version(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Cache the results of a function of files that have not changed, and of hashable arguments.

    TensorFlow's errors become InputErrors that name the folder of the files.
    """

    @functools.lru_cache(maxsize=_MAX_REMEMBERED)
    def cached(versions: tuple[_FileVersion, ...], *arguments: Any) -> _Result:
        return function([version.path for version in versions], *arguments)

    @functools.wraps(function)
    def call(files: Sequence[str], *arguments: Any) -> _Result:
        try:
            stats = [tf.io.gfile.stat(file) for file in files]
            pairs = zip(files, stats, strict=True)
            versions = tuple(_FileVersion(path, stat.length, stat.mtime_nsec) for path, stat in pairs)
            return cached(versions, *arguments)
        except tf.errors.OpError as error:
            cause = " ".join(str(error.message).split())
            message = f"{Path(files[0]).parent}: a record cannot be read ({cause}); write its file again."
            raise InputError(message) from error

    return call


@_cached_by_version
def count_records(files: Sequence[str]) -> tuple[int, ...]:
    """Count the records of each file. The counts of unchanged files are cached in the process.

    Raises:
        InputError: if a file cannot be read to its end.
    """
    _LOGGER.info("Counting records (files: %d).", len(files))
    compression = compression_of(files)
    return tuple(_count_in_file(file, compression) for file in files)


def _count_in_file(file: str, compression: str) -> int:
    if compression or not os.path.exists(file):  # compressed, or in an object store: read through once
        records = tf.data.TFRecordDataset(file, compression_type=compression)
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))
    with open(file, "rb") as stream:
        scan = scan_frames(stream, os.path.getsize(file))
    if not scan.is_complete:
        raise InputError(f"{file}: record {max(scan.num_records - 1, 0)} is truncated; write the file again.")
    return scan.num_records


@_cached_by_version
def content_digest(files: Sequence[str]) -> str:
    """Return 64 hexadecimal digits that change with any record. The digest of unchanged files is cached in the process.

    A local file without compression contributes the checksums that TFRecord stores with each record, because a file of
    many gigabytes would take minutes to read. All other files are read to their end.

    Raises:
        InputError: if a file cannot be read.
    """
    compression = compression_of(files)
    digest = hashlib.sha256()
    for file in files:
        digest.update(_digest_of_file(file, compression))
    return digest.hexdigest()


def _digest_of_file(file: str, compression: str) -> bytes:
    if not compression and os.path.exists(file):
        with open(file, "rb") as stream:
            return bytes.fromhex(scan_frames(stream, os.path.getsize(file)).digest)
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(file, "rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.digest()


def sampled_mean_bytes(files: Sequence[str]) -> float:
    """Return the mean size of a serialized example, estimated from evenly spread shards; 0 if there is no record."""
    chosen = [files[i * len(files) // _SAMPLED_SHARDS] for i in range(_SAMPLED_SHARDS)]
    sizes = []
    for file in dict.fromkeys(chosen):
        sizes += [len(record) for record in read_records([file]).take(_SAMPLED_RECORDS).as_numpy_iterator()]
    return sum(sizes) / max(len(sizes), 1)


class ClassScan(NamedTuple):
    """The classes in each record.

    Attributes:
        num_records: number of records of each file.
        class_ids: for each record, in the order of the files, the sorted distinct class ids of boxes that are not
            crowds.
    """

    num_records: tuple[int, ...]
    class_ids: tuple[np.ndarray, ...]


@_cached_by_version
def scan_classes(files: Sequence[str], lookup: ClassLookup) -> ClassScan:
    """Read all records and collect their classes. The results of unchanged files are cached in the process.

    Raises:
        InputError: if a file or a record cannot be read, or `lookup` refuses a class.
    """
    _LOGGER.info("Reading %d files to collect the classes in their images.", len(files))
    features = {key: tf.io.RaggedFeature(tf.int64) for key in (keys.CLASS_ID, keys.IS_CROWD)}
    features |= {keys.CLASS_TEXT: tf.io.RaggedFeature(tf.string), keys.BOX_XMIN: tf.io.RaggedFeature(tf.float32)}
    num_records: list[int] = []
    class_ids: list[np.ndarray] = []
    for file in files:
        before = len(class_ids)
        for batch in read_records([file]).batch(_SCAN_BATCH):
            parsed = tf.io.parse_example(batch, features)
            columns = (parsed[key].to_list() for key in features)
            try:
                class_ids.extend(_single_classes(lookup, *values) for values in zip(*columns, strict=True))
            except ValueError as error:
                raise InputError(f"{file}: record {len(class_ids) - before}: {error}") from None
        num_records.append(len(class_ids) - before)
    return ClassScan(tuple(num_records), tuple(class_ids))


def _single_classes(
    lookup: ClassLookup, class_ids: list[int], is_crowd: list[int], texts: list[bytes], xmin: list[float]
) -> np.ndarray:
    ids = np.array(lookup.class_ids(class_ids, texts, len(xmin)), np.int64)
    is_single = np.array(is_crowd) == 0 if len(is_crowd) == len(ids) else np.ones(len(ids), bool)
    return np.unique(ids[is_single & (ids > 0)])


def parse_features(serialized: bytes) -> Mapping[str, tf.train.Feature]:
    """Parse a serialized tf.Example without TensorFlow operations.

    Raises:
        ValueError: if it is not a tf.Example.
    """
    try:
        features: Mapping[str, tf.train.Feature] = tf.train.Example.FromString(serialized).features.feature
    except Exception:  # each implementation of protobuf has its own DecodeError
        raise ValueError("not a tf.Example") from None
    return features


class ExampleFeatures:
    """Values of the features of one serialized tf.Example.

    A feature that is missing, or of another type than requested, is empty.
    """

    def __init__(self, serialized: bytes) -> None:
        """Parse the example; see `parse_features`."""
        self._features = parse_features(serialized)

    def __contains__(self, key: str) -> bool:
        return key in self._features

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def ints(self, key: str) -> Int64Array:
        """Return an int64 feature."""
        return np.array(self._features[key].int64_list.value if key in self else (), np.int64)

    def floats(self, key: str) -> Float32Array:
        """Return a float feature."""
        return np.array(self._features[key].float_list.value if key in self else (), np.float32)

    def texts(self, key: str) -> list[bytes]:
        """Return a bytes feature."""
        return list(self._features[key].bytes_list.value) if key in self else []

    def raw(self, key: str) -> tf.train.Feature:
        """Return a feature of any type; the key must exist."""
        return self._features[key]

    @property
    def image_bytes(self) -> bytes:
        """The encoded image; b"" if there is none."""
        return next(iter(self.texts(keys.IMAGE_ENCODED)), b"")

    @property
    def record_key(self) -> str:
        """The source id, else the file name, else ""."""
        names = (*self.texts(keys.IMAGE_SOURCE_ID), *self.texts(keys.IMAGE_FILENAME))
        return next((name.decode("utf-8", errors="replace") for name in names if name), "")
