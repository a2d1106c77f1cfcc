"""Count missing shards, and read records safely from damaged files.

TensorFlow's own reader trusts the length that a record states: a huge length with a valid checksum ends the process.
Framing: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import gzip
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import tensorflow as tf

from detloom.trainer_module.files.tfrecord import read_frames

_SHARD = re.compile(r"(.*)-(\d{1,9})-of-(\d{1,9})(\.gz)?", re.DOTALL)


def count_missing(paths: Iterable[str]) -> tuple[int, int]:
    """Count the missing files and the expected files of the sets named `-NNNNN-of-NNNNN`."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in paths:
        if match := _SHARD.fullmatch(path):
            found[match[1], int(match[3])].add(int(match[2]))
    return sum(max(total - len(numbers), 0) for (_, total), numbers in found.items()), sum(total for _, total in found)


def read_records(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield each record's byte offset in the uncompressed file and its content; names in .gz are read as GZIP.

    Raises:
        tf.errors.DataLossError: at the damaged record.
        tf.errors.OpError: if the file cannot be read.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=cast(BinaryIO, file), mode="rb") as unpacked:
                    yield from _read_undamaged(cast(BinaryIO, unpacked), None)
            else:
                yield from _read_undamaged(cast(BinaryIO, file), file.size())
    except (OSError, EOFError, zlib.error) as error:
        raise _data_loss(f"cannot be decompressed ({error})") from None


def _read_undamaged(file: BinaryIO, size: int | None) -> Iterator[tuple[int, bytes]]:
    for frame in read_frames(file, size):
        if frame.damage is not None:
            raise _data_loss(f"the record of {frame.length} bytes at byte {frame.offset}: {frame.damage.value}")
        yield frame.offset, frame.data


def _data_loss(message: str) -> Exception:
    return cast(Exception, tf.errors.DataLossError(None, None, message))
