"""Masks over whole images as compressed run lengths, which need a hundredth of the memory of pixels.

Run lengths are COCO's, as bytes of the key `counts` (https://github.com/cocodataset/cocoapi, common/maskApi.c); the
size of the image belongs to them. Columns of masks are object arrays [N] of these bytes.
"""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from pycocotools import mask as coco_mask

from detloom.schemas.contracts.arrays import Array, BoolArray, Float32Array, Uint8Array
from detloom.schemas.errors import InputError

MIN_MASK_SCORE = 0.5  # a pixel is object above this probability (Object Detection API, eval_util.py)
_MIN_SIDE_REL = 1e-4  # of a box, as in the reference

Counts = npt.NDArray[np.object_]
"""Compressed run lengths of each mask, bytes [N]."""


def encode_masks(masks_NHW: Iterable[Array]) -> Counts:
    """Return the run lengths of masks [H, W]; values other than 0 are object."""
    encoded = [coco_mask.encode(np.asfortranarray(mask_HW != 0, np.uint8))["counts"] for mask_HW in masks_NHW]
    return as_counts(encoded)


def as_counts(encoded: Iterable[bytes]) -> Counts:
    """Return an object array [N]; numpy would cut bytes to a common length."""
    values = list(encoded)
    counts = np.empty(len(values), object)
    counts[:] = values
    return counts


def encode_mask_pngs(pngs: Iterable[bytes], image_hw: tuple[int, int]) -> Counts:
    """Return the run lengths of grayscale PNGs of the image's size; b"" is a mask without pixels.

    Raises:
        InputError: for a mask of another size.
    """
    return encode_masks(_decode_png(png, image_hw) for png in pngs)


def _decode_png(png: bytes, image_hw: tuple[int, int]) -> Uint8Array:
    if not png:
        return np.zeros(image_hw, np.uint8)
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        mask_HW = np.asarray(image)
    if mask_HW.shape != image_hw:
        raise InputError(f"a mask: got {mask_HW.shape} pixels, allowed: the image's, {image_hw}.")
    return mask_HW


def decode_mask(counts: bytes, image_hw: tuple[int, int]) -> Uint8Array:
    """Return the pixels of a mask, uint8 [H, W], 0 or 1."""
    mask: Uint8Array = coco_mask.decode({"size": list(image_hw), "counts": counts})
    return mask


def mask_area_px(counts: bytes, image_hw: tuple[int, int]) -> float:
    """Return the number of pixels of a mask."""
    return float(coco_mask.area({"size": list(image_hw), "counts": counts}))


def format_mask(counts: bytes, image_hw: tuple[int, int]) -> dict[str, Any]:
    """Return COCO's `segmentation` with compressed run lengths as text."""
    return {"size": list(image_hw), "counts": counts.decode("ascii")}


def encode_box_masks(boxes_yxyx_rel: Array, masks_Nhw: Array, image_hw: tuple[int, int]) -> Counts:
    """Paste masks over boxes into the image and return their run lengths.

    Args:
        masks_Nhw: float, probability that a cell of the box is object.
    """
    return encode_masks(
        paste_mask(box, mask_hw, image_hw)
        for box, mask_hw in zip(boxes_yxyx_rel, np.asarray(masks_Nhw, np.float32), strict=True)
    )


def paste_mask(box_yxyx_rel: Array, mask_hw: Float32Array, image_hw: tuple[int, int]) -> BoolArray:
    """Return the pixels of the image that a mask over a box covers, bool [H, W].

    The corner cells of the mask are at the corners of the box, and the corner pixels of the image at its corners. A
    pixel gets the bilinear interpolation between the four nearest cells, 0 outside of the box. Source:
    `reframe_box_masks_to_image_masks` of the Object Detection API (ops.py) with tf.image.crop_and_resize, in float32.
    """
    ymin, xmin, ymax, xmax = np.asarray(box_yxyx_rel, np.float32)
    rows = _positions(ymin, ymax, image_hw[0], mask_hw.shape[0])
    columns = _positions(xmin, xmax, image_hw[1], mask_hw.shape[1])
    top, bottom, share_y = rows.lower, rows.upper, rows.share[:, np.newaxis]
    left, right, share_x = columns.lower, columns.upper, columns.share
    upper = mask_hw[np.ix_(top, left)] + (mask_hw[np.ix_(top, right)] - mask_hw[np.ix_(top, left)]) * share_x
    lower = mask_hw[np.ix_(bottom, left)] + (mask_hw[np.ix_(bottom, right)] - mask_hw[np.ix_(bottom, left)]) * share_x
    pixels_HW = np.zeros(image_hw, bool)
    pixels_HW[rows.inside, columns.inside] = upper + (lower - upper) * share_y > MIN_MASK_SCORE
    return pixels_HW


def paste_masks(boxes_yxyx_rel: Array, masks_Nhw: Array, image_hw: tuple[int, int]) -> BoolArray:
    """Return the pixels of each mask over its box, bool [N, H, W]."""
    pasted = [paste_mask(box, mask_hw, image_hw) for box, mask_hw in zip(boxes_yxyx_rel, masks_Nhw, strict=True)]
    return np.array(pasted, bool).reshape(-1, *image_hw)


class _Positions:
    """Positions of the pixels of one axis in the mask: the pixels inside, the cells around each, and the share."""

    def __init__(self, at_cells: Float32Array, num_cells: int) -> None:
        is_inside = np.flatnonzero((at_cells >= 0) & (at_cells <= num_cells - 1))
        self.inside = slice(is_inside[0], is_inside[-1] + 1) if is_inside.size else slice(0, 0)
        at = at_cells[self.inside]
        self.lower, self.upper = np.floor(at).astype(int), np.ceil(at).astype(int)
        self.share = at - np.floor(at)


def _positions(low: np.float32, high: np.float32, num_pixels: int, num_cells: int) -> _Positions:
    side = np.maximum(high - low, np.float32(_MIN_SIDE_REL))
    first, last = (np.float32(0) - low) / side, (np.float32(1) - low) / side  # image corners relative to the box
    cells = np.float32(num_cells - 1)
    if num_pixels == 1:
        return _Positions(np.array([np.float32(0.5) * (first + last) * cells], np.float32), num_cells)
    step = (last - first) * cells / np.float32(num_pixels - 1)
    return _Positions(first * cells + np.arange(num_pixels, dtype=np.float32) * step, num_cells)
