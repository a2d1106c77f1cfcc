"""The framing of TFRecord files, safe on damaged files. Imports no TensorFlow.

The reader of TensorFlow trusts the stated length of a record: a huge length with a correct checksum ends the process.
Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import hashlib
import struct
from collections.abc import Iterator
from enum import Enum
from typing import BinaryIO, NamedTuple

import google_crc32c

HEADER = struct.Struct("<QI")  # length of the record, and its checksum
FOOTER = struct.Struct("<I")  # checksum of the record
MAX_RECORD_BYTES = 2**31 - 1  # largest message of protocol buffers
_PIECE_BYTES = 1 << 24  # read at a time, so that memory follows the size of the file, not the stated length


class Damage(Enum):
    """Kinds of damage of a record."""

    BAD_LENGTH = "its length is damaged"  # no further record can be found
    TRUNCATED = "the file ends within it"
    TOO_LARGE = "it is too large"
    BAD_CHECKSUM = "its checksum is wrong"


class Frame(NamedTuple):
    """One record.

    Attributes:
        offset: of its header, in bytes.
        length: number of bytes that the header states.
        data: b"" if the record is damaged.
    """

    offset: int
    length: int
    data: bytes
    damage: Damage | None = None


def mask_checksum(data: bytes) -> int:
    """Return the checksum of the framing: CRC-32C, rotated and shifted."""
    checksum = google_crc32c.value(data)
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame_record(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the three parts of a record in a file: header, data, footer."""
    length = len(data).to_bytes(8, "little")
    return length + FOOTER.pack(mask_checksum(length)), data, FOOTER.pack(mask_checksum(data))


def read_frames(file: BinaryIO, size: int | None = None, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Frame]:
    """Yield the records of a file from its beginning, damaged ones too, as long as the next one can be found.

    Args:
        size: of the file in bytes; None if it is not known, as in a compressed file.
        max_bytes: larger records are skipped; without `size`, such a record ends the file.
    """
    offset = 0
    while header := _read(file, HEADER.size):
        length = HEADER.unpack(header)[0] if len(header) == HEADER.size else 0
        if len(header) < HEADER.size or mask_checksum(header[:8]) != HEADER.unpack(header)[1]:
            yield Frame(offset, length, b"", Damage.BAD_LENGTH)
            return
        end = offset + HEADER.size + length + FOOTER.size
        if size is not None and end > size:
            yield Frame(offset, length, b"", Damage.TRUNCATED)
            return
        if length > max_bytes:
            yield Frame(offset, length, b"", Damage.TOO_LARGE)
            if size is None:
                return
            file.seek(end)
        else:
            data, footer = _read(file, length), _read(file, FOOTER.size)
            if len(data) < length or len(footer) < FOOTER.size:
                yield Frame(offset, length, b"", Damage.TRUNCATED)
                return
            is_intact = mask_checksum(data) == FOOTER.unpack(footer)[0]
            yield Frame(offset, length, data) if is_intact else Frame(offset, length, b"", Damage.BAD_CHECKSUM)
        offset = end


class FrameScan(NamedTuple):
    """The records of a file, without their data.

    Attributes:
        is_complete: False if the file ends within the last record.
        digest: SHA-256 of the lengths and checksums of all records, in hexadecimal digits.
    """

    num_records: int
    is_complete: bool
    digest: str


def scan_frames(file: BinaryIO, size: int) -> FrameScan:
    """Read the headers and footers of all records; damage of the data is not noticed."""
    count, end, digest = 0, 0, hashlib.sha256()
    header = file.read(HEADER.size)
    while len(header) == HEADER.size:
        count += 1
        digest.update(header)
        end += HEADER.size + HEADER.unpack(header)[0] + FOOTER.size
        if end > size:
            return FrameScan(count, False, digest.hexdigest())
        file.seek(end - FOOTER.size)
        footer, header = file.read(FOOTER.size), file.read(HEADER.size)
        digest.update(footer)
    return FrameScan(count, not header, digest.hexdigest())


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    """Read `num_bytes`, or fewer at the end of the file."""
    data = file.read(min(num_bytes, _PIECE_BYTES))
    if len(data) == num_bytes or not data:
        return data
    pieces, num_missing = [data], num_bytes - len(data)
    while num_missing and (piece := file.read(min(num_missing, _PIECE_BYTES))):
        pieces.append(piece)
        num_missing -= len(piece)
    return b"".join(pieces)
