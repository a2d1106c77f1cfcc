"""Masks as PNG: exact pixels, and nothing unchecked reaches C code."""

import io
import math

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from detloom.components.example_gen.mask_png import decode_mask_png, encode_mask_png


def decode(png):
    image = Image.open(io.BytesIO(png))
    assert (image.format, image.mode) == ("PNG", "L")
    return np.asarray(image)


def test_rectangles_as_polygons_fill_their_pixels():
    found = decode(encode_mask_png([[1, 1, 4, 1, 4, 3, 1, 3], [5, 0, 6, 0, 6, 2, 5, 2]], (4, 6)))
    # columns 1 to 3 and rows 1 to 2, column 5 and rows 0 to 1: the far edges are excluded
    assert found.tolist() == [[0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]


def test_the_work_for_many_polygons_grows_almost_linearly(monkeypatch):
    work = []
    merge = coco_mask.merge

    def counted(masks):  # pycocotools goes through the union so far for each of the masks
        work.append(len(masks) * sum(len(mask["counts"]) for mask in masks))
        return merge(masks)

    monkeypatch.setattr(coco_mask, "merge", counted)
    squares = [[x, y, x + 1, y, x + 1, y + 1, x, y + 1] for x in range(0, 120, 2) for y in range(0, 120, 2)]
    found = decode(encode_mask_png(squares, (120, 120)))
    assert found.sum() == 3600
    assert (found[::2, ::2] == 1).all()
    all_squares, work[:] = sum(work), []
    encode_mask_png(squares[:900], (120, 120))
    assert all_squares < 6 * sum(work)  # of 4 times as many


def test_runs_go_down_the_columns():
    # 2 rows and 3 columns: 1 off, 3 on, 2 off
    found = decode(encode_mask_png({"size": [2, 3], "counts": [1, 3, 2]}, (2, 3)))
    assert found.tolist() == [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("seed", range(8))
def test_compressed_run_lengths_equal_pycocotools(seed):
    random = np.random.default_rng(seed)
    height, width = random.integers(1, 70, 2).tolist() if seed else (1500, 900)  # numbers of several characters
    pixels = (random.random((height, width)) < random.choice([0.02, 0.5, 0.98])).astype(np.uint8)
    pixels[height // 2 :, : width // 2] = 1
    runs = coco_mask.encode(np.asfortranarray(pixels))
    mask = {"size": [height, width], "counts": runs["counts"].decode()}
    assert (decode(encode_mask_png(mask, (height, width))) == pixels).all()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (None, "polygons"),
        ("text", "polygons"),
        ([], "0 points"),
        ([[1, 1, 2, 2]], "polygon 0 .*got 4 numbers"),
        ([[1, 1, 2, 2, 3, 3, 4]], "got 7 numbers"),
        (["123456"], "got text"),
        ([[1, 1, 2, 2, 3, "3"]], "finite"),
        ([[1, 1, 2, 2, 3, True]], "finite"),
        ([[1, 1, 2, 2, 3, math.nan]], "finite"),
        ([[1, 1, 2, 2, 3, math.inf]], "finite"),
        ([[1, 1, 2, 2, 3, 10**400]], "finite"),
        ([[-21, 1, 2, 2, 3, 3]], "exceeds .*20x10 px"),
        ([[1, 1, 2, 2, 3, 21]], "exceeds .*20x10 px"),
        ([[1, 1] * 100_001], "100001 points, allowed: 3 to"),
        ({}, "size"),
        ({"size": [20, 10], "counts": [200]}, r"size \[20, 10\], allowed: .*\[10, 20\]"),
        ({"size": [10.0, 20.0], "counts": [200]}, "size"),
        ({"size": [10, 20], "counts": None}, "'counts' .*got None"),
        ({"size": [10, 20], "counts": [199]}, "199 pixels.* 200"),
        ({"size": [10, 20], "counts": [201]}, "201 pixels"),
        ({"size": [10, 20], "counts": []}, "invalid number"),
        ({"size": [10, 20], "counts": [-1, 201]}, "invalid number"),
        ({"size": [10, 20], "counts": [2**70]}, "'counts' .*got "),
        ({"size": [10, 20], "counts": [200.0]}, "'counts' .*got "),
        ({"size": [10, 20], "counts": [0] * 300}, "0 pixels"),
        ({"size": [10, 20], "counts": ""}, "'counts' .*got "),
        ({"size": [10, 20], "counts": "01"}, "1 pixels"),
        ({"size": [10, 20], "counts": "é"}, "'counts' .*got "),
        ({"size": [10, 20], "counts": "0\0"}, "'counts' .*got "),
        ({"size": [10, 20], "counts": "P" * 20 + "0"}, "'counts' .*got "),  # a number of too many characters
        ({"size": [10, 20], "counts": "0P"}, "'counts' .*got "),  # ends within a number
        ({"size": [10, 20], "counts": "oooo1"}, "pixels"),
        ({"size": [10, 20], "counts": "@"}, "invalid number"),
    ],
)
def test_an_invalid_mask_is_an_error(mask, message):
    with pytest.raises(ValueError, match=message):
        encode_mask_png(mask, (10, 20))


def test_an_outline_that_is_too_long_is_an_error():
    zigzag = [value for index in range(2000) for value in (0 if index % 2 else 3000, index)]
    with pytest.raises(ValueError, match="outline of"):
        encode_mask_png([zigzag], (3000, 3000))


def test_a_mask_of_a_huge_image_is_an_error():
    with pytest.raises(ValueError, match="needs an image"):
        encode_mask_png([[1, 1, 2, 2, 3, 3]], (2**15, 2**14))


@pytest.mark.parametrize("pixels", [[[0, 1], [0, 1], [1, 1]], [[1, 1]], [[0, 0]], [[1]]])
def test_a_mask_survives_the_round_trip_through_png(pixels):
    array = np.array(pixels, np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    mask = decode_mask_png(buffer.getvalue(), 100)
    assert mask is not None
    assert decode(encode_mask_png(mask, array.shape)).tolist() == pixels


def test_a_png_that_is_not_a_mask_gives_none():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    assert decode_mask_png(buffer.getvalue(), 100) is None
    assert decode_mask_png(b"\x89PNG", 100) is None
    Image.new("L", (20, 20)).save(buffer := io.BytesIO(), "PNG")
    assert decode_mask_png(buffer.getvalue(), 399) is None
