"""Convert COCO masks (polygons, run lengths, compressed run lengths) to compressed run lengths.

All input is checked before it reaches pycocotools, because its C code does not check it.
"""

from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from detloom.components.example_gen.sources.json_values import name_type, show
from detloom.schemas.contracts.arrays import Int64Array
from detloom.trainer_module.boxes.masks import format_mask

_MAX_PIXELS = 2**28  # per image with masks; pycocotools uses 4 bytes per pixel to merge polygons
_MAX_POINTS = 100_000  # in all polygons of one object
_MAX_OUTLINE_PX = 2_000_000  # total length of the polygons' edges: pycocotools uses some 100 bytes per pixel of it
_MERGED_AT_ONCE = 8
_MAX_BYTES_PER_RUN = 7  # of five bits each; the difference of two 32-bit numbers needs 33 bits


def encode_mask(segmentation: Any, image_hw: tuple[int, int]) -> dict[str, Any]:
    """Return `{"size": [height, width], "counts": compressed runs}`, equal to the result of pycocotools' `annToRLE`.

    Raises:
        ValueError: the mask is invalid or does not fit the image; the message names the problem.
    """
    height, width = image_hw
    if height * width > _MAX_PIXELS:
        raise ValueError(f"the mask needs an image of {width}x{height} px, allowed: at most {_MAX_PIXELS} pixels")
    if isinstance(segmentation, list):
        _check_polygons(segmentation, height, width)
        merged = _merge(coco_mask.frPyObjects(segmentation, height, width))
        return format_mask(merged["counts"], image_hw)
    if not isinstance(segmentation, dict):
        raise ValueError(f"the mask must be polygons or run lengths, got {name_type(segmentation)}")
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if not isinstance(size, list) or size != [height, width] or not all(type(side) is int for side in size):
        allowed = f"[height, width] of the image, [{height}, {width}]"
        raise ValueError(f"the mask has size {show(size)}, allowed: {allowed}")
    if isinstance(counts, str):
        _check_runs(_expand_counts(counts), height * width)
        return {"size": size, "counts": counts}
    if not isinstance(counts, list) or not all(type(run) is int and abs(run) <= _MAX_PIXELS for run in counts):
        raise ValueError(f"the mask's 'counts' must be integers or text, got {show(counts)}")
    _check_runs(np.array(counts, np.int64), height * width)
    compressed = coco_mask.frPyObjects({"size": size, "counts": counts}, height, width)
    return format_mask(compressed["counts"], image_hw)


def measure_mask(mask: dict[str, Any]) -> tuple[float, list[float]]:
    """Return area and [left, top, width, height] in pixels of a mask from `encode_mask`; zeros for an empty mask."""
    return float(coco_mask.area(mask)), coco_mask.toBbox(mask).tolist()


def _merge(masks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the union; pycocotools adds one mask after the other to a growing one, which takes quadratic time."""
    while len(masks) > 1:
        masks = [coco_mask.merge(masks[i : i + _MERGED_AT_ONCE]) for i in range(0, len(masks), _MERGED_AT_ONCE)]
    return masks[0]


def _check_polygons(polygons: list[Any], height: int, width: int) -> None:
    num_points = sum(len(polygon) // 2 for polygon in polygons if isinstance(polygon, list))
    if not polygons or num_points > _MAX_POINTS:
        raise ValueError(f"the mask has {num_points} points, allowed: 3 to {_MAX_POINTS}")
    outline = 0.0
    for index, polygon in enumerate(polygons):
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            got = f"{len(polygon)} numbers" if isinstance(polygon, list) else name_type(polygon)
            raise ValueError(f"polygon {index} of the mask must be x, y of three or more points, got {got}")
        if not all(type(value) in (int, float) and abs(value) <= _MAX_PIXELS for value in polygon):
            raise ValueError(f"polygon {index} of the mask must contain finite numbers, got {show(polygon)}")
        points_N2 = np.array(polygon, np.float64).reshape(-1, 2)
        if not ((points_N2 >= (-width, -height)) & (points_N2 <= (2 * width, 2 * height))).all():
            raise ValueError(
                f"polygon {index} of the mask exceeds the image of {width}x{height} px by more than its size"
            )
        outline += float(np.abs(np.roll(points_N2, -1, axis=0) - points_N2).max(axis=1).sum())
    if outline > _MAX_OUTLINE_PX:
        raise ValueError(f"the mask has an outline of {outline:.0f} px, allowed: at most {_MAX_OUTLINE_PX}")


def _expand_counts(text: str) -> Int64Array:
    """Decode compressed run lengths.

    Each character encodes five bits, starting from "0"; its sixth bit says that more follow; bit five of the last
    character is the sign. From the fourth run on, a number is the difference to the run two positions before. See
    https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c (rleFrString).
    """
    bits = np.frombuffer(text.encode("ascii") if text.isascii() else b"", np.uint8) - np.uint8(48)
    if not bits.size or bits.max() > 63 or bits[-1] & 0x20:  # characters below "0" wrap around to more than 63
        raise ValueError(f"the mask's 'counts' must be compressed run lengths, got {show(text)}")
    last = np.flatnonzero(bits < 0x20)
    first = np.concatenate(([0], last[:-1] + 1))
    length = last - first + 1
    if length.max() > _MAX_BYTES_PER_RUN:
        raise ValueError(f"the mask's 'counts' must be compressed run lengths, got {show(text)}")
    shift = 5 * (np.arange(bits.size) - np.repeat(first, length))
    runs: Int64Array = np.add.reduceat((bits & 0x1F).astype(np.int64) << shift, first)
    runs -= np.where(bits[last] & 0x10, np.int64(1) << 5 * length, 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs


def _check_runs(runs: Int64Array, num_pixels: int) -> None:
    if not runs.size or runs.min() < 0 or runs.max() > num_pixels or runs.sum() != num_pixels:
        total = int(runs.sum()) if runs.size and runs.min() >= 0 else "an invalid number of"
        raise ValueError(f"the mask has runs over {total} pixels, allowed: the image's {num_pixels} pixels")
