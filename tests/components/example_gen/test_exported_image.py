import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from detloom.components.example_gen.exported_image import neutralise_orientation
from detloom.components.example_gen.image_header import read_image_header

PIXELS = np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3)


def make_tiff(order: str = "<", kind: int = 3, orientation: int = 6) -> bytes:
    """A TIFF header with two entries: ImageWidth (0x100), Orientation (0x112)."""
    value = struct.pack(order + {1: "Bxxx", 3: "Hxx", 4: "I"}[kind], orientation)
    entries = struct.pack(order + "HHIHH", 0x0100, 3, 1, 60, 0) + struct.pack(order + "HHI", 0x0112, kind, 1) + value
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IH", 8, 2) + entries + b"\0\0\0\0"


def make_image(tiff: bytes, image_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, format=image_format)
    data = buffer.getvalue()
    if image_format == "JPEG":
        body = b"Exif\0\0" + tiff
        return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
    chunk = b"eXIf" + tiff
    return data[:33] + struct.pack(">I", len(tiff)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_an_orientation_becomes_upright_and_nothing_else_changes(image_format, order, kind):
    image = make_image(make_tiff(order, kind), image_format)
    got, is_neutralised = neutralise_orientation(image)
    assert is_neutralised
    assert len(got) == len(image)
    assert got == make_image(make_tiff(order, 3, 1), image_format)
    assert read_image_header(got).orientation == 1
    with Image.open(io.BytesIO(got)) as opened, Image.open(io.BytesIO(image)) as before:
        assert opened.getexif()[0x0112] == 1
        np.testing.assert_array_equal(np.asarray(opened), np.asarray(before))


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [0, 1, 9])
def test_what_turns_nothing_stays_byte_by_byte(image_format, orientation):
    image = make_image(make_tiff(orientation=orientation), image_format)
    assert neutralise_orientation(image) == (image, False)


@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_every_cut_of_an_image_is_survived(image_format):
    image = make_image(make_tiff(), image_format)
    for end in range(200):
        assert len(neutralise_orientation(image[:end])[0]) == end


@pytest.mark.parametrize("image", [b"", b"GIF89a", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_other_bytes_stay(image):
    assert neutralise_orientation(image) == (image, False)
