"""Encode instance masks as the Object Detection API stores them: 8-bit grey PNG of the image's size, 0 and 1.

https://github.com/tensorflow/models/blob/master/research/object_detection/dataset_tools/create_coco_tf_record.py
"""

import io
from typing import Any

import numpy as np
from PIL import Image
from pycocotools import mask as coco_mask

from detloom.components.example_gen.coco_masks import encode_mask
from detloom.trainer_module.boxes.masks import encode_masks, format_mask

_PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError)


def encode_mask_png(mask: Any, image_hw: tuple[int, int]) -> bytes:
    """Encode a COCO mask as PNG: polygons, or compressed (text) or uncompressed (list) run lengths.

    Raises:
        ValueError: with a sentence, for any other mask or one that does not fit the image.
    """
    pixels_HW = coco_mask.decode(encode_mask(mask, image_hw))
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels_HW)).save(buffer, format="PNG")
    return buffer.getvalue()


def decode_mask_png(data: bytes, max_pixels: int) -> dict[str, Any] | None:
    """Return COCO's compressed run lengths; None unless it is a one-channel PNG with at most `max_pixels`."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            image_hw = (image.height, image.width)
            if image.width * image.height > max_pixels or image.mode not in ("1", "L", "P"):
                return None
            pixels_HW = np.asarray(image)
    except _PIL_ERRORS:
        return None
    (counts,) = encode_masks([pixels_HW])
    return format_mask(counts, image_hw)
