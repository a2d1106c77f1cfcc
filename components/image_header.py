"""Read format, size and orientation of an encoded image from its headers, check that it is complete, and reset the
orientation.

Nothing is decoded. A JPEG is complete if it has its end marker, a PNG if it has its end chunk and valid checksums. A
JPEG with more scans than encoders write is refused.

The headers are parsed here because an image library takes ten times as long per record and allocates memory before it
can be prevented. Sources: ITU-T T.81 annex B (JPEG markers), W3C PNG 3rd edition section 5, CIPA DC-008 (Exif 2.32)
section 4.6 for the orientation tag in its TIFF header.
"""

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from detloom.schemas.contracts.rejects import Reason

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8\xff"
_JPEG_EOI = b"\xff\xd9"  # cannot occur inside the scans: there, 0xFF is always followed by 0x00 or a restart marker
_JPEG_SCAN = 0xDA
_JPEG_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # with a length field, or the end marker
# Each scan of a progressive JPEG takes a pass over the whole image, however few bytes it has. Encoders write up to 14.
MAX_SCANS = 100
_JPEG_APP1 = 0xE1
_EXIF = b"Exif\0\0"
_MAX_STEPS = 100_000  # segments, markers or fill bytes in the headers of one image: a real one has dozens
_ORIENTATION_TAG = 0x0112
# Image formats that messages name, although they are not accepted: name, offset and first bytes.
_OTHER_KINDS = (
    ("GIF", 0, b"GIF8"),
    ("BMP", 0, b"BM"),
    ("TIFF", 0, b"II*\0"),
    ("TIFF", 0, b"MM\0*"),
    ("WebP", 8, b"WEBP"),
    ("HEIF or AVIF", 4, b"ftyp"),
    ("JPEG 2000", 4, b"jP  "),
    ("JPEG XL", 0, b"\xff\x0a"),
)
_JPEG_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive: TensorFlow's libjpeg decodes these
_JPEG_OTHER_FRAMES = set(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}  # lossless, hierarchical, arithmetic
_JPEG_BARE_MARKERS = {0x01, *range(0xD0, 0xD8)}  # have no length field


class ImageError(Exception):
    """An image that cannot be written to a record."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Format ("jpeg" or "png") and size in pixels, as stored (before rotation).

    Attributes:
        orientation: Exif's, 1 to 8; 1 is upright, 5 to 8 swap height and width.
    """

    format: str
    height: int
    width: int
    orientation: int = 1

    @property
    def upright_hw(self) -> tuple[int, int]:
        """Return height and width as viewers show the image."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def read_image_header(data: bytes) -> ImageHeader:
    """Parse the headers.

    Raises:
        ImageError: if this is not a JPEG or PNG, a header or checksum is damaged, or the end is missing.
    """
    if data.startswith(_JPEG_MAGIC):
        header = _read_jpeg(data)
    elif data.startswith(_PNG_MAGIC):
        header = _read_png(data)
    else:
        raise _not_supported(data)
    if header.height < 1 or header.width < 1:
        raise ImageError(Reason.UNREADABLE_IMAGE, f"the header states {header.width}x{header.height} pixels")
    return header


def _not_supported(data: bytes) -> ImageError:
    if not data:
        return ImageError(Reason.EMPTY_IMAGE, "the image file has no bytes")
    kind = next((name for name, at, magic in _OTHER_KINDS if data[at : at + len(magic)] == magic), None)
    if kind is not None:
        return ImageError(Reason.UNSUPPORTED_FORMAT, f"a {kind} image, allowed: JPEG, PNG")
    detail = f"neither JPEG nor PNG: {len(data)} bytes, starting with {data[:8]!r}"
    return ImageError(Reason.NOT_AN_IMAGE, detail)


def _read_jpeg(data: bytes) -> ImageHeader:
    header: ImageHeader | None = None
    orientation = 1
    for marker, start, end in _iter_segments(data):
        if marker in _JPEG_OTHER_FRAMES:
            raise ImageError(Reason.UNSUPPORTED_FORMAT, f"an unsupported JPEG type (marker 0xFF{marker:02X})")
        if marker in _JPEG_FRAMES and start + 5 <= len(data):
            height, width = struct.unpack_from(">HH", data, start + 1)
            header = ImageHeader("jpeg", height, width)
        if marker == _JPEG_APP1 and data.startswith(_EXIF, start):
            orientation = _read_orientation(data[start + len(_EXIF) : end])
    if header is None:
        raise ImageError(Reason.UNREADABLE_IMAGE, "a JPEG without a frame header")
    if data.rfind(_JPEG_EOI, start) < 0:
        raise ImageError(Reason.TRUNCATED_IMAGE, f"truncated JPEG: no end marker in {len(data)} bytes")
    _check_scans(data, end)
    return replace(header, orientation=orientation) if orientation != 1 else header


def _check_scans(data: bytes, at: int) -> None:
    """Raise ImageError if a JPEG has too many scans; `at` is where the header of the first one ends."""
    num_scans = 1
    for _ in range(_MAX_STEPS):
        found = _JPEG_MARKER.search(data, at)
        if found is None or found[0] == _JPEG_EOI:
            return
        num_scans += found[0][1] == _JPEG_SCAN
        if num_scans > MAX_SCANS:
            raise ImageError(Reason.UNSUPPORTED_FORMAT, f"a JPEG with more than {MAX_SCANS} scans")
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    raise ImageError(Reason.UNREADABLE_IMAGE, f"more than {_MAX_STEPS} markers between a JPEG's scans")


def _iter_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of the content of each segment of a JPEG, up to its first scan.

    Raises:
        ImageError: the file ends before the scan, or has too many markers.
    """
    at = 2
    for _ in range(_MAX_STEPS):
        at = data.find(b"\xff", at)
        if data[at : at + 2] == b"\xff\xff":  # a fill byte
            at += 1
            continue
        if at < 0 or at + 4 > len(data):
            raise ImageError(Reason.TRUNCATED_IMAGE, "truncated JPEG: it ends within its headers")
        marker = data[at + 1]
        if marker in _JPEG_BARE_MARKERS or marker == 0:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        yield marker, at + 4, at + 2 + length
        if marker == _JPEG_SCAN:
            return
        at += 2 + length
    raise ImageError(Reason.UNREADABLE_IMAGE, f"more than {_MAX_STEPS} markers and fill bytes in a JPEG's headers")


def _read_png(data: bytes) -> ImageHeader:
    if len(data) < 33 or data[12:16] != b"IHDR" or data[8:12] != b"\x00\x00\x00\r":
        raise ImageError(Reason.UNREADABLE_IMAGE, "a PNG without its header chunk")
    width, height = struct.unpack_from(">II", data, 16)
    view = memoryview(data)  # avoids copying the pixels for their checksum
    orientation = 0
    for kind, start, end in _iter_chunks(data):
        if zlib.crc32(view[start - 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            detail = f"wrong checksum of the PNG chunk {kind!r} at byte {start - 8}"
            raise ImageError(Reason.UNREADABLE_IMAGE, detail)
        if kind == b"IEND":
            return ImageHeader("png", height, width, orientation or 1)
        if kind == b"eXIf" and not orientation:  # the first one; the standard allows only one
            orientation = _read_orientation(data[start:end].removeprefix(_EXIF))
    raise ImageError(Reason.TRUNCATED_IMAGE, f"truncated PNG: no end chunk in {len(data)} bytes")


def _iter_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of each complete chunk of a PNG; its checksum follows.

    Raises:
        ImageError: there are too many chunks.
    """
    at = len(_PNG_MAGIC)
    for _ in range(_MAX_STEPS):
        if at + 12 > len(data):
            return
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            return
        yield data[at + 4 : at + 8], at + 8, end
        at = end + 4
    raise ImageError(Reason.UNREADABLE_IMAGE, f"more than {_MAX_STEPS} chunks in a PNG")


def _read_orientation(tiff: bytes) -> int:
    """Return the orientation in the first directory of a TIFF header; 1 if absent or invalid."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return 1
    (num_entries,) = struct.unpack_from(order + "H", tiff, at)
    for entry in range(at + 2, min(at + 2 + 12 * num_entries, len(tiff) - 11), 12):
        if struct.unpack_from(order + "H", tiff, entry)[0] == _ORIENTATION_TAG:
            (value,) = struct.unpack_from(order + "H", tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def remove_rotation(image: bytes) -> tuple[bytes, bool]:
    """Remove the Exif data of an image that they rotate; return the image, and whether it changed.

    The boxes of an example refer to the pixels as stored, while other tools rotate an image before they draw on it.
    """
    with contextlib.suppress(ImageError):  # a damaged image is exported as it is
        if read_image_header(image).orientation != 1:
            pieces, at = [], 0
            for start, end in _iter_exif(image):
                pieces.append(image[at:start])
                at = end
            return b"".join((*pieces, image[at:])), True
    return image, False


def _iter_exif(image: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part with Exif data."""
    if image.startswith(_JPEG_MAGIC):
        for marker, start, end in _iter_segments(image):
            if marker == _JPEG_APP1 and image.startswith(_EXIF, start):
                yield start - 4, end  # marker and length before, nothing behind
    else:
        for kind, start, end in _iter_chunks(image):
            if kind == b"eXIf":
                yield start - 8, end + 4  # length and kind before, a checksum behind
