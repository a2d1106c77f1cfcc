import io

import numpy as np
import pytest
from PIL import Image

from detloom.components.similarity import image_hash
from detloom.components.similarity.image_hash import hash_image, hash_text, open_small_image

MAX_PIXELS = 1_000_000


def encode(pixels, file_format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(buffer, format=file_format, **options)
    return buffer.getvalue()


def scene(hw=(240, 320), seed=0):
    """Return an image with structure: soft blobs on a gradient."""
    y, x = np.mgrid[: hw[0], : hw[1]] / np.array([[[hw[0]]], [[hw[1]]]])
    rng = np.random.default_rng(seed)
    grey = 60 * x + 40 * y
    for _ in range(12):
        centre_y, centre_x, strength = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(-80, 80)
        grey = grey + strength * np.exp(-((y - centre_y) ** 2 + (x - centre_x) ** 2) / 0.01)
    return np.repeat(np.clip(grey + 80, 0, 255).astype(np.uint8)[..., np.newaxis], 3, axis=2)


def distance(first, second):
    return bin(hash_image(first, MAX_PIXELS) ^ hash_image(second, MAX_PIXELS)).count("1")


def test_bits_are_set_where_the_brightness_falls_from_left_to_right():
    # 9 x 8 cells of one pixel. Row 0 falls everywhere, row 1 only from its first to its second cell, the rest rises.
    cells = np.tile(np.arange(9, dtype=np.uint8) * 20, (8, 1))
    cells[0] = cells[0][::-1]
    cells[1, 0] = 200
    assert hash_image(encode(cells), MAX_PIXELS) == 0xFF80_0000_0000_0000


def test_a_flat_image_has_no_bit_set():
    assert hash_image(encode(np.full((50, 60), 7, np.uint8)), MAX_PIXELS) == 0


@pytest.mark.parametrize(
    "changed",
    [
        encode(scene(), "JPEG", quality=50),
        encode(scene()[::2, ::2], "PNG"),
        encode(np.clip(scene() * 1.2, 0, 255).astype(np.uint8), "JPEG", quality=90),
        encode(scene()[..., 0], "PNG"),  # grey
    ],
    ids=["recompressed", "halved", "brighter", "grey"],
)
def test_a_changed_copy_has_a_similar_hash(changed):
    assert distance(encode(scene(), "JPEG", quality=95), changed) <= 5


def test_another_image_has_a_different_hash():
    assert distance(encode(scene(seed=0), "JPEG"), encode(scene(seed=1), "JPEG")) > 12


def test_sixteen_bit_grey_has_the_hash_of_its_eight_bit_copy():
    deep = Image.fromarray((scene()[..., 0].astype(np.int32) * 257).astype(np.uint16))
    buffer = io.BytesIO()
    deep.save(buffer, format="PNG")
    assert distance(buffer.getvalue(), encode(scene()[..., 0])) <= 2


@pytest.mark.parametrize("file_format", image_hash._FORMATS)
def test_every_format_that_the_training_input_decodes_has_a_hash(file_format):
    assert distance(encode(scene(), file_format), encode(scene())) <= 5


@pytest.mark.parametrize("mode", ["P", "LA", "RGBA", "1", "CMYK"])
def test_every_pixel_mode_has_a_hash(mode):
    buffer = io.BytesIO()
    Image.fromarray(scene()).convert(mode).save(buffer, format="JPEG" if mode == "CMYK" else "PNG")
    assert hash_image(buffer.getvalue(), MAX_PIXELS) is not None


@pytest.mark.parametrize(
    "broken",
    [b"", b"no image", encode(scene(), "JPEG")[:-2000], encode(scene())[:300], encode(scene(), "TIFF")],
    ids=["empty", "text", "truncated jpeg", "truncated png", "unknown to training"],
)
def test_a_damaged_image_has_no_hash(broken):
    assert hash_image(broken, MAX_PIXELS) is None


def test_an_image_with_too_many_pixels_has_no_hash():
    pixels = np.zeros((100, 101), np.uint8)
    assert hash_image(encode(pixels), 10_100) == 0
    assert hash_image(encode(pixels), 10_099) is None


def test_a_decompression_bomb_is_refused_by_its_header():
    # A PNG header that declares 60,000 x 60,000 pixels, without image data.
    head = bytearray(encode(np.zeros((4, 4), np.uint8)))
    head[16:24] = (60_000).to_bytes(4, "big") * 2
    assert hash_image(bytes(head), MAX_PIXELS) is None


def test_a_jpeg_of_many_scans_is_not_decoded():
    image = encode(np.zeros((16, 16), np.uint8), "JPEG", progressive=True)
    scan = image[image.rindex(b"\xff\xda") : -2]
    assert hash_image(image[:-2] + 50 * scan + b"\xff\xd9", MAX_PIXELS) is not None
    assert hash_image(image[:-2] + 200 * scan + b"\xff\xd9", MAX_PIXELS) is None


def test_a_jpeg_is_decoded_at_a_reduced_scale_above_the_wanted_size():
    image = open_small_image(encode(scene((800, 1600)), "JPEG"), (200, 200), "RGB", 10_000_000)
    assert image is not None
    assert (image.mode, image.size) == ("RGB", (400, 200))


def test_text_hashes_are_the_same_on_every_machine():
    # The first 8 bytes that `b2sum -l 64` prints.
    assert hash_text("train/img_1") == 0xA5D844890D13B1ED
    assert hash_text("\ud800") != hash_text("\ud801")
