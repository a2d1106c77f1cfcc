"""Check the index of a TensorFlow checkpoint before TensorFlow reads it.

TensorFlow's C++ code ends the process for a shape that is negative or overflows and for an unknown type, and allocates
memory for as many strings as a shape states.

The file is a table of LevelDB without compression: blocks of keys that share a prefix with the one before, and values
(https://github.com/google/leveldb/blob/main/doc/table_format.md), here those of tensor_bundle.proto.
"""

import math
import os
from collections.abc import Iterator

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

_FOOTER_BYTES = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
_MAX_INDEX_BYTES = 2**28  # the largest of the zoo has 400 kB
_MAX_KEY_BYTES = 4096
_MAX_SHARDS = 99_999  # their number has five digits in the file names


def is_special(path: str) -> bool:
    """Return True for a pipe, socket or device of this machine, of which a reader could wait forever."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def check_index(path: str) -> None:
    """Check every entry of the file `path`.index against the size of the data files.

    Raises:
        ValueError: with the reason, and the key if there is one.
        tf.errors.OpError: if a file cannot be read.
    """
    with tf.io.gfile.GFile(f"{path}.index", "rb") as file:
        data = file.read(_MAX_INDEX_BYTES)
    folder, _, stem = path.rpartition("/")
    files = [name for name in tf.io.gfile.listdir(folder or ".") if name.startswith(f"{stem}.data-")]
    num_bytes = sum(tf.io.gfile.stat(f"{folder or '.'}/{name}").length for name in files)
    try:
        for key, value in _read_table(data):
            if not key and not 1 <= BundleHeaderProto.FromString(value).num_shards <= _MAX_SHARDS:
                raise ValueError("its index states an invalid number of files")
            if key and (problem := _find_problem(BundleEntryProto.FromString(value), num_bytes)):
                raise ValueError(f"{key[:200].decode(errors='replace')!r} has {problem}")
    except (IndexError, DecodeError):
        raise ValueError("its index is damaged") from None


def _find_problem(entry: BundleEntryProto, num_bytes: int) -> str:
    """Return why TensorFlow cannot read an entry from data files of `num_bytes`; "" if nothing is wrong."""
    shape = [dim.size for dim in entry.shape.dim]
    try:
        dtype = tf.as_dtype(entry.dtype)
        is_known = dtype in (tf.string, tf.bool) or dtype.is_integer or dtype.is_floating or dtype.is_complex
    except TypeError:
        is_known = False
    if not is_known or dtype._is_ref_dtype:
        return f"the unknown type {entry.dtype}"
    if entry.shape.unknown_rank or len(shape) > 254 or min(shape, default=0) < 0:
        return f"the invalid shape {shape[:8]}"
    for each in (part.extent for part in entry.slices):
        ends = [(extent.start, extent.start + extent.length) for extent in each]
        if len(each) != len(shape) or any(not 0 <= a <= b <= size for (a, b), size in zip(ends, shape, strict=True)):
            return f"an invalid part of the shape {shape[:8]}"
    # A text takes one byte at least. The values of a variable in slices have entries of their own.
    if math.prod(shape) * (dtype.size or 1) > (num_bytes if entry.slices else entry.size):
        return f"the shape {shape[:8]}, but {entry.size} bytes"
    if entry.offset < 0 or entry.size < 0 or entry.shard_id < 0 or entry.offset + entry.size > num_bytes:
        return f"{entry.size} bytes from {entry.offset} on in data files of {num_bytes}"
    return ""


def _read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values. Blocks follow each other, so that none is read twice."""
    footer = data[-_FOOTER_BYTES:]
    if not footer.endswith(_MAGIC):
        raise ValueError("it has no index of a checkpoint")
    (*_, start, size), _ = _read_numbers(footer, 0, 4)
    last_end = 0
    for _, handle in _read_block(data, start, size):
        (start, size), _ = _read_numbers(handle, 0, 2)
        if start < last_end:
            raise ValueError("its index is damaged")
        last_end = start + size
        yield from _read_block(data, start, size)


def _read_block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    if data[start + size]:  # TensorFlow compresses none
        raise ValueError("its index is compressed")
    end = start + size - 4 - 4 * int.from_bytes(data[start + size - 4 : start + size], "little")
    at, key = start, b""
    while at < end:
        (num_shared, num_more, num_bytes), at = _read_numbers(data, at, 3)
        key, last = key[:num_shared] + data[at : at + num_more], at + num_more + num_bytes
        if len(key) > _MAX_KEY_BYTES or last > end:
            raise ValueError("its index is damaged")
        yield key, data[at + num_more : last]
        at = last


def _read_numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return numbers of seven bits in a byte, lowest first, and where they end."""
    numbers = []
    for _ in range(count):
        number = shift = 0
        while data[at] & 0x80 and shift < 63:
            number |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
        numbers.append(number | (data[at] & 0x7F) << shift)
        at += 1
    return numbers, at
