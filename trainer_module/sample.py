"""One picture with its boxes, on its way from a record to a batch."""

from typing import TypedDict, cast

import tensorflow as tf


class _OptionalColumns(TypedDict, total=False):
    masks_GHW: tf.Tensor
    keypoints_yx_rel_GP2: tf.Tensor


class Sample(_OptionalColumns):
    """One picture with its `G` boxes.

    Attributes:
        image: uint8 or float32 [H, W, 3], 0 to 255.
        boxes_yxyx_rel: float32 [G, 4].
        class_indices: int32 [G], 0-based.
        is_crowd: bool [G].
        area_px: float32 [G], of the object in the original picture.
        box_weights: float32 [G], what each box counts in the loss.
        masks_GHW: uint8 [G, H, W], 1 where the object is; absent unless masks are read.
        keypoints_yx_rel_GP2: float32 [G, P, 2], NaN for points that are not labelled; absent unless keypoints are read.
    """

    image: tf.Tensor
    boxes_yxyx_rel: tf.Tensor
    class_indices: tf.Tensor
    is_crowd: tf.Tensor
    area_px: tf.Tensor
    box_weights: tf.Tensor


def keep_boxes(sample: Sample, mask_G: tf.Tensor) -> Sample:
    """The picture with only the boxes for which `mask_G` is true."""
    indices = tf.where(mask_G)[:, 0]
    kept = {name: value if name == "image" else tf.gather(value, indices) for name, value in sample.items()}
    return cast(Sample, kept)


def replaced(sample: Sample, **values: tf.Tensor) -> Sample:
    """A copy with other values."""
    return cast(Sample, {**sample, **values})
