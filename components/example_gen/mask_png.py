"""Encode instance masks as the Object Detection API stores them: 8-bit grey PNG of the image's size, 0 and 1.

https://github.com/tensorflow/models/blob/master/research/object_detection/dataset_tools/create_coco_tf_record.py
"""

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

_MAX_POINTS = 100_000  # of all polygons of one object
_MAX_OUTLINE_PX = 2_000_000  # total length of the edges: pycocotools allocates about 100 bytes per pixel of it
_MAX_COUNTS_CHARS = 64 * 2**20
_PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError)

_Mask = npt.NDArray[np.uint8]


def encode_mask_png(mask: Any, image_hw: tuple[int, int]) -> bytes:
    """Encode a COCO mask as PNG: polygons, or compressed (text) or uncompressed (list) run lengths.

    Everything is checked before pycocotools gets it, because its C code does not check its input.

    Raises:
        ValueError: with a sentence, for any other mask or one that does not fit the image.
    """
    if isinstance(mask, list):
        pixels_HW = _draw_polygons(mask, image_hw)
    elif isinstance(mask, Mapping):
        pixels_HW = _draw_runs(_read_counts(mask, image_hw), image_hw)
    else:
        raise ValueError(f"the mask must be polygons or run lengths, got {type(mask).__name__}")
    buffer = io.BytesIO()
    Image.fromarray(pixels_HW).save(buffer, format="PNG")
    return buffer.getvalue()


def decode_mask_png(data: bytes, max_pixels: int) -> dict[str, Any] | None:
    """Return COCO's uncompressed run lengths; None unless it is a one-channel PNG with at most `max_pixels`."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if image.width * image.height > max_pixels or image.mode not in ("1", "L", "P"):
                return None
            pixels_HW = np.asarray(image) != 0
    except _PIL_ERRORS:
        return None
    flat = pixels_HW.ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate(([0], changes, [flat.size]))).tolist()
    return {"size": list(pixels_HW.shape), "counts": [0, *counts] if flat[0] else counts}


def _draw_polygons(polygons: list[Any], image_hw: tuple[int, int]) -> _Mask:
    height, width = image_hw
    num_points = sum(len(polygon) // 2 for polygon in polygons if isinstance(polygon, list))
    if num_points > _MAX_POINTS:
        raise ValueError(f"the mask has {num_points} points, allowed: {_MAX_POINTS}")
    if not polygons:
        raise ValueError("the mask has no polygon")
    outline = 0.0
    for index, polygon in enumerate(polygons):
        outline += _check_polygon(index, polygon, height, width)
    if outline > _MAX_OUTLINE_PX:
        raise ValueError(f"the mask's outline is {outline:.0f} px long, allowed: {_MAX_OUTLINE_PX}")
    runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    pixels: _Mask = coco_mask.decode(runs)
    return np.ascontiguousarray(pixels)


def _check_polygon(index: int, polygon: Any, height: int, width: int) -> float:
    """Return the length of the outline in pixels; an edge counts as the longer of its two directions."""
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
        got = f"{len(polygon)} numbers" if isinstance(polygon, list) else type(polygon).__name__
        raise ValueError(f"polygon {index} of the mask must be x, y of three or more points, got {got}")
    if not all(type(value) in (int, float) for value in polygon):
        raise ValueError(f"polygon {index} of the mask contains a value that is not a number")
    try:
        points_N2 = np.array(polygon, np.float64).reshape(-1, 2)
    except OverflowError:
        points_N2 = np.full((1, 2), math.inf)
    # NaN fails every comparison.
    inside = (points_N2 >= (-width, -height)) & (points_N2 <= (2 * width, 2 * height))
    if not inside.all():
        raise ValueError(
            f"polygon {index} of the mask is outside the image of {width}x{height} px by more than the image's size"
        )
    return float(np.abs(np.roll(points_N2, -1, axis=0) - points_N2).max(axis=1).sum())


def _read_counts(mask: Mapping[str, Any], image_hw: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return the lengths of alternating runs of 0 and 1, which fill the image exactly."""
    size, counts = mask.get("size"), mask.get("counts")
    if (
        not isinstance(size, list | tuple)
        or list(size) != list(image_hw)
        or not all(type(side) is int for side in size)
    ):
        raise ValueError(f"the mask's size must be [height, width] of the image, {list(image_hw)}, got {size!r:.40}")
    num_pixels = image_hw[0] * image_hw[1]
    if isinstance(counts, str):
        runs = _expand_counts(counts, num_pixels)
    elif isinstance(counts, list):
        # One run more than pixels, because the first run may be empty.
        if len(counts) > num_pixels + 1 or not all(type(run) is int and 0 <= run <= num_pixels for run in counts):
            raise ValueError(f"the mask's runs must be at most {num_pixels + 1} whole numbers from 0 to {num_pixels}")
        runs = counts
    else:
        raise ValueError(f"the mask's counts must be text or a list, got {type(counts).__name__}")
    found = np.array(runs, np.int64)
    if int(found.sum()) != num_pixels:
        raise ValueError(f"the mask's runs cover {int(found.sum())} pixels, the image has {num_pixels}")
    return found


def _expand_counts(text: str, num_pixels: int) -> list[int]:
    """Decode COCO's compressed run lengths.

    Each character holds five bits, from "0" up; its sixth bit says that more characters follow, and the fifth bit of
    the last character is the sign. From the third run on, a number is the difference to the run before the previous
    one.

    https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c (rleFrString)
    """
    if len(text) > _MAX_COUNTS_CHARS or not text.isascii():
        raise ValueError(f"the mask's counts must be ASCII of at most {_MAX_COUNTS_CHARS} characters")
    runs: list[int] = []
    value, shift = 0, 0
    for byte in text.encode():
        bits = byte - 48
        if not 0 <= bits < 64 or shift > 35:
            raise ValueError(
                f"the mask's counts contain {chr(byte)!r}, which is not allowed in COCO's compressed run lengths"
            )
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        if len(runs) > 2:
            value += runs[-2]
        if not 0 <= value <= num_pixels:
            raise ValueError(f"the mask has a run of {value} pixels, the image has {num_pixels}")
        runs.append(value)
        value, shift = 0, 0
    if shift:
        raise ValueError("the mask's counts end within a number")
    return runs


def _draw_runs(counts: npt.NDArray[np.int64], image_hw: tuple[int, int]) -> _Mask:
    """Draw the runs column by column, in COCO's pixel order."""
    values = np.arange(len(counts)) % 2
    return np.ascontiguousarray(np.repeat(values.astype(np.uint8), counts).reshape(image_hw, order="F"))
