import struct
import zlib

import pytest

from detloom.pipelines.serving.image_limits import check_header, check_images
from detloom.schemas.errors import InputError


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_that_states(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_header_says_height_and_width():
    header = check_header(png_that_states(30, 20), "a")
    assert (header.height, header.width) == (20, 30)


def test_a_few_bytes_that_state_a_picture_of_gigabytes_are_refused():
    data = png_that_states(60_000, 60_000)
    assert len(data) < 100
    with pytest.raises(InputError, match="a: got 60000 x 60000 pixels, allowed: 50000000 in all"):
        check_header(data, "a")


def test_pictures_are_counted_together():
    half = png_that_states(5_000, 5_000)
    check_images([half, half], "x")
    with pytest.raises(InputError, match="x: got more than 50000000 pixels in all"):
        check_images([half, half, png_that_states(1, 1)], "x")


def test_another_format_is_refused_with_its_position():
    with pytest.raises(InputError, match=r"x\[1\]: a GIF image, allowed: JPEG, PNG"):
        check_images([png_that_states(1, 1), b"GIF89a"], "x")
