"""Box jitter, and concatenation of an image with itself."""

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES, IMAGE
from detloom.schemas.model.augmentations import RandomJitterBoxes, RandomSelfConcatImage
from detloom.trainer_module.boxes import geometry as boxes
from detloom.trainer_module.data.augmentations.geometry import in_frame
from detloom.trainer_module.data.sample import Sample, columns_of, if_drawn, split_seed

_MIN_SIDE = 1e-6  # of a box, so that it can be stretched; the reference's value


def jitter_boxes(config: RandomJitterBoxes, sample: Sample, seed: tf.Tensor) -> Sample:
    """Stretch or shrink each side and clip the box to the image, in the symmetric modes at both ends."""
    cyxhw = boxes.yxyx_to_cyxhw(sample[BOXES])
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
    return {**sample, BOXES: tf.clip_by_value(jittered, 0.0, 1.0)}


def self_concat(config: RandomSelfConcatImage, sample: Sample, seed: tf.Tensor) -> Sample:
    vertical_seed, horizontal_seed = split_seed(seed)
    sample = if_drawn(config.concat_vertical_probability, vertical_seed, sample, lambda it: _doubled(it, axis=0))
    return if_drawn(config.concat_horizontal_probability, horizontal_seed, sample, lambda it: _doubled(it, axis=1))


def _doubled(sample: Sample, axis: int) -> Sample:
    """Concatenate the image with itself vertically (0) or horizontally (1); boxes of the first copy come first."""
    one_way = tf.constant([1.0, 0.0] if axis == 0 else [0.0, 1.0])
    first, second = in_frame(sample, tf.zeros([2]), 1.0 + one_way), in_frame(sample, -one_way, tf.ones([2]))
    for name in columns_of(sample, "masks"):
        masks = sample[name]
        first[name] = tf.concat([masks, tf.zeros_like(masks)], axis=1 + axis)
        second[name] = tf.concat([tf.zeros_like(masks), masks], axis=1 + axis)
    image = tf.concat([sample[IMAGE], sample[IMAGE]], axis=axis)
    pairs = zip(first.items(), second.values(), strict=True)
    doubled = {name: image if name == IMAGE else tf.concat([one, two], axis=0) for (name, one), two in pairs}
    return doubled
