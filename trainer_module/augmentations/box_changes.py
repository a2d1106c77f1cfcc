"""Changes of the boxes alone, and of a picture that is put beside itself."""

from typing import cast

import tensorflow as tf

from detloom.schemas.augmentation_config import RandomJitterBoxes, RandomSelfConcatImage
from detloom.trainer_module import boxes
from detloom.trainer_module.augmentations.chance import if_drawn
from detloom.trainer_module.augmentations.geometry import in_frame
from detloom.trainer_module.sample import Sample, replaced

_MIN_SIDE = 1e-6  # the reference's: of a box, so that there is something to stretch


def jitter_boxes(config: RandomJitterBoxes, sample: Sample, seed: tf.Tensor) -> Sample:
    """Stretch or shrink each side; what is beyond the picture is cut off, in the symmetric modes at both ends."""
    cyxhw = boxes.yxyx_to_cyxhw(sample["boxes_yxyx_rel"])
    center_yx, size_hw = cyxhw[:, :2], tf.maximum(tf.abs(cyxhw[:, 2:]), _MIN_SIDE)
    mode, ratio = config.jitter_mode, config.ratio
    limits = (0.0 if mode.startswith("EXPAND") else -ratio, 0.0 if mode.startswith("SHRINK") else ratio)
    factors_G4 = 1.0 + tf.random.stateless_uniform([tf.shape(cyxhw)[0], 4], seed, *limits)
    min_factor_hw, max_factor_hw = factors_G4[:, :2], factors_G4[:, 2:]
    if "SYMMETRIC" in mode:
        largest_hw = 2.0 * tf.minimum(center_yx, 1.0 - center_yx) / size_hw
        if mode.endswith("_XY"):
            min_factor_hw = tf.repeat(min_factor_hw[:, :1], 2, axis=1)
            largest_hw = tf.reduce_min(largest_hw, axis=1, keepdims=True)
        min_factor_hw = max_factor_hw = tf.minimum(min_factor_hw, tf.abs(largest_hw))
    jittered = tf.concat([center_yx - size_hw * min_factor_hw / 2.0, center_yx + size_hw * max_factor_hw / 2.0], axis=1)
    return replaced(sample, boxes_yxyx_rel=tf.clip_by_value(jittered, 0.0, 1.0))


def self_concat(config: RandomSelfConcatImage, sample: Sample, seed: tf.Tensor) -> Sample:
    vertical_seed, horizontal_seed = tf.unstack(tf.random.experimental.stateless_split(seed))
    sample = if_drawn(config.concat_vertical_probability, vertical_seed, sample, lambda it: _doubled(it, axis=0))
    return if_drawn(config.concat_horizontal_probability, horizontal_seed, sample, lambda it: _doubled(it, axis=1))


def _doubled(sample: Sample, axis: int) -> Sample:
    """The picture twice, along its rows' (0) or its columns' (1) axis, the first copy's boxes before the second's."""
    one_way = tf.constant([1.0, 0.0] if axis == 0 else [0.0, 1.0])
    first, second = in_frame(sample, tf.zeros([2]), 1.0 + one_way), in_frame(sample, -one_way, tf.ones([2]))
    if "masks_GHW" in sample:
        masks = sample["masks_GHW"]
        first["masks_GHW"] = tf.concat([masks, tf.zeros_like(masks)], axis=1 + axis)
        second["masks_GHW"] = tf.concat([tf.zeros_like(masks), masks], axis=1 + axis)
    image = tf.concat([sample["image"], sample["image"]], axis=axis)
    pairs = zip(first.items(), second.values(), strict=True)
    doubled = {name: image if name == "image" else tf.concat([one, two], axis=0) for (name, one), two in pairs}
    return cast(Sample, doubled)
