"""The TFRecord files of a split: which there are, which are missing, and their records, safe on damaged files.

TensorFlow's own reader trusts the length that a record states: with a right checksum and a huge length it ends the
process. Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import gzip
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import tensorflow as tf

from detloom.components.example_gen.sources.tfrecord import mask_checksum

_FILE_PREFIX = "data_tfrecord-"  # TFX's name of the shards of a split
_SHARD = re.compile(r"(.*)-(\d{1,9})-of-(\d{1,9})(\.gz)?", re.DOTALL)
_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")  # length and its checksum; checksum of the record
_MAX_RECORD_BYTES = 2**31 - 1  # the largest message of protocol buffers
_PIECE_BYTES = 1 << 24  # read at a time, so that memory follows what is there and not what is stated


def list_shards(folder: str | Path) -> list[str]:
    """The TFRecord files in a split's folder, sorted; what else lies there is left alone. None without the folder."""
    try:
        names = tf.io.gfile.listdir(str(folder))
    except tf.errors.NotFoundError:
        return []
    return [f"{folder}/{name}" for name in sorted(names) if name.startswith(_FILE_PREFIX) and not name.endswith("/")]


def count_missing(paths: Iterable[str]) -> tuple[int, int]:
    """Of files named `-NNNNN-of-NNNNN`: how many lack, and of how many."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        if match := _SHARD.fullmatch(path):
            found[match[1], int(match[3])].add(int(match[2]))
    return sum(max(total - len(there), 0) for (_, total), there in found.items()), sum(total for _, total in found)


def read_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Byte offset in the uncompressed file and content of each record; GZIP where the name ends in .gz.

    Raises:
        tf.errors.DataLossError: at the damaged place.
        tf.errors.OpError: where the file cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=cast(BinaryIO, file), mode="rb") as unpacked:
                    yield from _read_framed(cast(BinaryIO, unpacked), _MAX_RECORD_BYTES)
            else:
                yield from _read_framed(cast(BinaryIO, file), min(file.size(), _MAX_RECORD_BYTES))
    except (OSError, EOFError, zlib.error) as error:
        raise _data_loss(f"cannot be unpacked ({error})") from None


def _read_framed(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while header := _read(file, _HEADER.size):
        if len(header) < _HEADER.size or mask_checksum(header[:8]) != _HEADER.unpack(header)[1]:
            raise _data_loss(f"damaged length of the record at byte {offset}")
        length = _HEADER.unpack(header)[0]
        data = _read(file, length) if length <= max_bytes else b""
        if len(data) < length:
            raise _data_loss(f"the file ends within the record of {length} bytes at byte {offset}")
        footer = _read(file, _FOOTER.size)
        if len(footer) < _FOOTER.size or mask_checksum(data) != _FOOTER.unpack(footer)[0]:
            raise _data_loss(f"the checksum of the record at byte {offset} is wrong")
        yield offset, data
        offset += _HEADER.size + length + _FOOTER.size


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    """As many as there are."""
    data = file.read(min(num_bytes, _PIECE_BYTES))
    if len(data) == num_bytes or not data:
        return data
    pieces, missing = [data], num_bytes - len(data)
    while missing and (piece := file.read(min(missing, _PIECE_BYTES))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _data_loss(message: str) -> Exception:
    return cast(Exception, tf.errors.DataLossError(None, None, message))
