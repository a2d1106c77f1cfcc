"""Encoded images without the turn that their Exif data asks for; the pixels, and all else, stay byte by byte.

The boxes of an example belong to the pixels as stored, while other tools turn an image before they draw on it.
Exif's orientation tag is looked for where `image_header` finds it: Exif segments of JPEG, eXIf chunks of PNG.
"""

import struct
import zlib

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8\xff"
_JPEG_SCAN, _JPEG_APP1 = 0xDA, 0xE1
_JPEG_BARE_MARKERS = {0x01, *range(0xD0, 0xD8)}  # have no length field
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112
_MAX_STEPS = 100_000  # segments or chunks before the pixels: a real image has dozens
_VALUE_FORMATS = {1: "B", 3: "H", 4: "I"}  # TIFF's BYTE, SHORT and LONG; the tag is a SHORT, some readers take others
_SHORT = 3
_TURNED = range(2, 9)


def neutralise_orientation(image: bytes) -> tuple[bytes, bool]:
    """The image with every orientation of 2 to 8 set to 1 (upright), and whether there was one."""
    if image.startswith(_JPEG_MAGIC):
        return _neutralise_jpeg(image)
    if image.startswith(_PNG_MAGIC):
        return _neutralise_png(image)
    return image, False


def _neutralise_jpeg(image: bytes) -> tuple[bytes, bool]:
    result: bytearray | None = None
    at = 2
    for _ in range(_MAX_STEPS):
        at = image.find(b"\xff", at)
        if at < 0 or at + 4 > len(image) or image[at + 1] == _JPEG_SCAN:
            break
        marker = image[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _JPEG_BARE_MARKERS or marker == 0:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", image, at + 2)
        end = at + 2 + length
        if marker == _JPEG_APP1 and image[at + 4 : at + 10] == _EXIF:
            tiff, is_changed = _neutralise_tiff(image[at + 10 : end])
            if is_changed:
                result = result or bytearray(image)
                result[at + 10 : at + 10 + len(tiff)] = tiff
        at = end
    return (image, False) if result is None else (bytes(result), True)


def _neutralise_png(image: bytes) -> tuple[bytes, bool]:
    result: bytearray | None = None
    at = len(_PNG_MAGIC)
    for _ in range(_MAX_STEPS):
        if at + 12 > len(image):
            break
        (length,) = struct.unpack_from(">I", image, at)
        end = at + 8 + length
        if end + 4 > len(image):
            break
        if image[at + 4 : at + 8] == b"eXIf":
            start = at + 8 + (len(_EXIF) if image.startswith(_EXIF, at + 8) else 0)
            tiff, is_changed = _neutralise_tiff(image[start:end])
            if is_changed:
                result = result or bytearray(image)
                result[start:end] = tiff
                struct.pack_into(">I", result, end, zlib.crc32(result[at + 4 : end]))
        at = end + 4
    return (image, False) if result is None else (bytes(result), True)


def _neutralise_tiff(tiff: bytes) -> tuple[bytes, bool]:
    """The same bytes with orientation 1 in the first directory; a tag that makes no sense is left as it is."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return tiff, False
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return tiff, False
    (num_entries,) = struct.unpack_from(order + "H", tiff, at)
    result, is_changed = bytearray(tiff), False
    for entry in range(at + 2, min(at + 2 + 12 * num_entries, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag != _ORIENTATION_TAG:
            continue
        # As `image_header` reads it, which does not ask for the type, and as the type says.
        values = [struct.unpack_from(order + form, tiff, entry + 8)[0] for form in {"H", _VALUE_FORMATS.get(kind, "H")}]
        if any(value in _TURNED for value in values):
            struct.pack_into(order + "HHIHH", result, entry, _ORIENTATION_TAG, _SHORT, 1, 1, 0)
            is_changed = True
    return bytes(result), is_changed
