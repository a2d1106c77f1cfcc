"""Headers and ends of encoded images, and the removal of their rotation."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from detloom.components.image_header import (
    MAX_SCANS,
    ImageError,
    ImageHeader,
    read_image_header,
    remove_rotation,
)
from detloom.schemas.contracts.rejects import Reason


def encode(image_format: str, mode: str = "RGB", image_hw: tuple[int, int] = (31, 47), **options) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (*image_hw, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, format=image_format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode("JPEG"), ImageHeader("jpeg", 31, 47)),
        (encode("JPEG", progressive=True), ImageHeader("jpeg", 31, 47)),
        (encode("JPEG", mode="L"), ImageHeader("jpeg", 31, 47)),
        (encode("JPEG", mode="CMYK"), ImageHeader("jpeg", 31, 47)),
        (encode("JPEG", comment=b"\xff\xc0 not a frame"), ImageHeader("jpeg", 31, 47)),
        (encode("PNG"), ImageHeader("png", 31, 47)),
        (encode("PNG", mode="P"), ImageHeader("png", 31, 47)),
    ],
)
def test_format_and_size_are_read_from_the_header(data, expected):
    assert read_image_header(data) == expected


def test_bytes_after_the_end_are_ignored():
    assert read_image_header(encode("JPEG") + b"trailer").width == 47
    assert read_image_header(encode("PNG") + b"trailer").width == 47


def test_a_thumbnails_end_marker_does_not_hide_a_truncated_jpeg():
    thumbnail = encode("JPEG", image_hw=(8, 8))
    whole = encode("JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    with_thumbnail = whole[:2] + segment + whole[2:]
    assert read_image_header(with_thumbnail) == ImageHeader("jpeg", 31, 47)
    with pytest.raises(ImageError, match="no end marker"):
        read_image_header(with_thumbnail[:-20])


@pytest.mark.reliability("torn file", "ingest")
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_an_image_cut_anywhere_is_truncated(image_format, share):
    data = encode(image_format)
    with pytest.raises(ImageError) as caught:
        read_image_header(data[: int(len(data) * share) + 40])
    assert caught.value.reason == Reason.TRUNCATED_IMAGE


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        (b"", Reason.EMPTY_IMAGE, "no bytes"),
        (b"This is not an image.\n", Reason.NOT_AN_IMAGE, "22 bytes"),
        (b"GIF89a", Reason.UNSUPPORTED_FORMAT, "GIF .*allowed: JPEG, PNG"),
        (encode("BMP"), Reason.UNSUPPORTED_FORMAT, "BMP"),
        (encode("WEBP"), Reason.UNSUPPORTED_FORMAT, "WebP"),
        (encode("TIFF"), Reason.UNSUPPORTED_FORMAT, "TIFF"),
    ],
)
def test_other_formats_are_rejected_by_name(data, reason, message):
    with pytest.raises(ImageError, match=message) as caught:
        read_image_header(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize("image_format", ["jpeg", "png"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("orientation", "upright_hw"), [(1, (31, 47)), (3, (31, 47)), (6, (47, 31)), (8, (47, 31))])
def test_the_orientation_is_read_from_exif(image_format, order, orientation, upright_hw):
    exif = Image.Exif()
    exif.endian = order
    exif[0x0112] = orientation
    data = encode(image_format, exif=exif)
    assert image_format == "jpeg" or b"eXIf" in data
    header = read_image_header(data)
    assert (header.format, header.orientation, header.upright_hw) == (image_format, orientation, upright_hw)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@pytest.mark.parametrize("tiff", [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"nothing of the sort"])
def test_an_invalid_exif_chunk_means_upright(tiff):
    whole = encode("PNG")
    assert read_image_header(whole[:33] + png_chunk(b"eXIf", tiff) + whole[33:]).orientation == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xd8" + b"\xff" * 200_000, "markers.*JPEG"),
        (b"\xff\xd8" + b"\xff\x00" * 100_001, "markers.*JPEG"),
        (b"\xff\xd8" + b"\xff\xe0\0\2" * 100_001 + encode("JPEG")[2:], "markers.*JPEG"),
        (encode("PNG")[:33] + png_chunk(b"IDAT", b"") * 100_001 + encode("PNG")[33:], "chunks in a PNG"),
    ],
)
def test_a_header_with_too_many_parts_is_unreadable(data, message):
    with pytest.raises(ImageError, match=f"more than 100000 {message}") as caught:
        read_image_header(data)
    assert caught.value.reason == Reason.UNREADABLE_IMAGE


@pytest.mark.reliability("hostile input", "ingest")
@pytest.mark.parametrize(
    ("before_scan", "is_refused"),
    [
        (b"", True),
        (b"\xff" * 3, True),  # fill bytes
        (b"\xff\xfe\0\4\xff\xd9", True),  # a comment that contains an end marker
        (b"\xff\xd9", False),  # a decoder stops at the first end marker
    ],
)
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_jpeg_with_more_scans_than_encoders_write_is_refused(before_scan, is_refused, options):
    image = encode("JPEG", **options)
    scan = image[image.rindex(b"\xff\xda") : -2]
    num_more = MAX_SCANS - image.count(b"\xff\xda")
    assert read_image_header(image[:-2] + num_more * scan + b"\xff\xd9" + 200 * scan).width == 47
    data = image[:-2] + (num_more + 1) * (before_scan + scan) + b"\xff\xd9"
    if is_refused:
        with pytest.raises(ImageError, match="more than 100 scans") as caught:
            read_image_header(data)
        assert caught.value.reason == Reason.UNSUPPORTED_FORMAT
    else:
        assert read_image_header(data).width == 47


def test_fill_bytes_between_markers_are_ignored():
    whole = encode("JPEG")
    assert read_image_header(whole[:2] + b"\xff" * 1000 + whole[2:]) == ImageHeader("jpeg", 31, 47)


@pytest.mark.parametrize("tiff", [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff" + b"\1\x12" * 9])
def test_invalid_exif_means_upright(tiff):
    whole, body = encode("JPEG"), b"Exif\0\0" + tiff
    data = whole[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + whole[2:]
    assert read_image_header(data).orientation in (1, 2)


def test_a_png_with_an_altered_header_is_unreadable():
    data = bytearray(encode("PNG"))
    data[19] ^= 1
    with pytest.raises(ImageError, match="checksum"):
        read_image_header(bytes(data))


@pytest.mark.reliability("torn file", "ingest")
def test_a_png_with_one_flipped_bit_in_its_pixels_is_unreadable():
    data = bytearray(encode("PNG"))
    data[data.index(b"IDAT") + 100] ^= 1
    with pytest.raises(ImageError, match=r"checksum .*b'IDAT' at byte 33") as caught:
        read_image_header(bytes(data))
    assert caught.value.reason == Reason.UNREADABLE_IMAGE


def test_a_png_with_zero_width_is_unreadable():
    data = bytearray(encode("PNG"))
    data[16:20] = bytes(4)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(ImageError, match="0x31 pixels"):
        read_image_header(bytes(data))


@pytest.mark.parametrize("marker", [0xC3, 0xC9, 0xCF])
def test_a_lossless_or_arithmetic_jpeg_is_unsupported(marker):
    data = encode("JPEG").replace(b"\xff\xc0", bytes((0xFF, marker)), 1)
    with pytest.raises(ImageError, match=f"0xFF{marker:02X}"):
        read_image_header(data)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_exif_data_with_a_rotation_are_removed_and_nothing_else_changes(image_format):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = encode(image_format, exif=exif)
    got, is_changed = remove_rotation(image)
    assert is_changed
    assert got == encode(image_format)
    exif[0x0112] = 1
    upright = encode(image_format, exif=exif)
    assert remove_rotation(upright) == (upright, False)
    for end in (0, 3, 8, 40, len(image) // 2):
        assert remove_rotation(image[:end]) == (image[:end], False)
