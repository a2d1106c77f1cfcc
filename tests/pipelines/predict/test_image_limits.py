import struct
import zlib

import pytest

from detloom.pipelines.predict.image_limits import check_header, check_images
from detloom.schemas.errors import InputError


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def make_png_header(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_header_has_height_and_width():
    header = check_header(make_png_header(30, 20), "a")
    assert (header.height, header.width) == (20, 30)


@pytest.mark.reliability("hostile input", "serve")
def test_small_file_that_declares_a_huge_image_is_refused():
    data = make_png_header(60_000, 60_000)
    assert len(data) < 100
    with pytest.raises(InputError, match="a: got 60000 x 60000 pixels, allowed: 50000000 "):
        check_header(data, "a")


def test_pixels_of_all_images_are_added():
    half = make_png_header(5_000, 5_000)
    check_images([half, half], "x")
    with pytest.raises(InputError, match="x: got more than 50000000 pixels"):
        check_images([half, half, make_png_header(1, 1)], "x")


def test_other_format_is_refused_with_its_position():
    with pytest.raises(InputError, match=r"x\[1\]: .*GIF"):
        check_images([make_png_header(1, 1), b"GIF89a"], "x")
