"""Instance masks and keypoints on a picture, for people to look at; `draw.py` draws boxes over them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from detloom.trainer_module.draw import color_of_class

_MASK_SHARE = 0.45  # of the colour, the rest is picture
_POINT_SHARE = 0.008  # of the longer side: radius of a keypoint
_MIN_POINT_PX = 2


def blend_masks(
    image_rgb: npt.NDArray[np.uint8], masks_NHW: npt.NDArray[Any], class_ids: Sequence[int] | npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    """A copy in which the pixels of each mask (not 0) take on the colour of its class; overlaps take on both."""
    blended = image_rgb.astype(np.float32)
    for mask_HW, class_id in zip(masks_NHW, class_ids, strict=True):
        is_object = np.asarray(mask_HW) != 0
        blended[is_object] += _MASK_SHARE * (np.array(color_of_class(int(class_id))) - blended[is_object])
    return np.rint(blended).astype(np.uint8)


def draw_keypoints(
    image_rgb: npt.NDArray[np.uint8],
    keypoints_yx_rel_NP2: npt.NDArray[Any],
    class_ids: Sequence[int] | npt.NDArray[Any],
) -> npt.NDArray[np.uint8]:
    """A copy with a dot for each point; NaN, and what is outside the picture, is not drawn."""
    image = Image.fromarray(np.ascontiguousarray(image_rgb))
    pen, (width, height) = ImageDraw.Draw(image), image.size
    radius = max(_MIN_POINT_PX, round(_POINT_SHARE * max(image.size)))
    for points_yx_rel, class_id in zip(np.asarray(keypoints_yx_rel_NP2, np.float64), class_ids, strict=True):
        inside = np.isfinite(points_yx_rel).all(axis=-1) & ((points_yx_rel >= 0) & (points_yx_rel <= 1)).all(axis=-1)
        for y_rel, x_rel in points_yx_rel[inside]:
            x, y = round(x_rel * (width - 1)), round(y_rel * (height - 1))
            corners = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(corners, fill=color_of_class(int(class_id)), outline=(255, 255, 255))
    return np.asarray(image)
