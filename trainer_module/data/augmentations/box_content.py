"""Change pixels inside boxes only; boxes, masks and keypoints do not move, as in arXiv:1906.11172."""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.contracts.ground_truth import BOXES, IMAGE
from detloom.trainer_module.data.augmentations.patches import filled, paste, rectangles
from detloom.trainer_module.data.sample import Sample, image_hw_of, split_seed

ContentChange = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # from pixels and a seed to pixels of the same shape

_FEWER = 3.0  # the authors' divisor of the probability, so that not too many of several close boxes change


def change_contents(
    sample: Sample, change: ContentChange, *, probability: float | tf.Tensor, seed: tf.Tensor
) -> Sample:
    """Change the content of each box, one after the other in random order, with a third of the probability."""
    seeds = split_seed(seed, 3)
    corners_px = box_corners_px(sample)
    num_boxes = tf.shape(corners_px)[0]
    is_drawn = tf.random.stateless_uniform([num_boxes], seeds[0]) < probability / _FEWER
    order = tf.argsort(tf.random.stateless_uniform([num_boxes], seeds[1]))
    drawn_px = tf.boolean_mask(tf.gather(corners_px, order), tf.gather(is_drawn, order))

    def next_box(i: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        top, left, bottom, right = tf.unstack(drawn_px[i])
        content = change(image[top:bottom, left:right], tf.random.experimental.stateless_fold_in(seeds[2], i))
        return i + 1, paste(image, content, drawn_px[i, :2])

    _, image = tf.while_loop(lambda i, _: i < tf.shape(drawn_px)[0], next_box, (0, sample[IMAGE]))
    return {**sample, IMAGE: image}


def cut_out_of_box(sample: Sample, share: float | tf.Tensor, fill: int, seed: tf.Tensor) -> Sample:
    """Fill a rectangle with a random centre in a random box; its sides are `share` times those of the box."""
    seeds = split_seed(seed)
    corners_px = box_corners_px(sample)

    def cut_out() -> tf.Tensor:
        chosen = tf.random.stateless_uniform([], seeds[0], maxval=tf.shape(corners_px)[0], dtype=tf.int32)
        begin_yx, end_yx = corners_px[chosen, :2], corners_px[chosen, 2:]
        size_hw = tf.cast(end_yx - begin_yx, tf.float32)
        center_yx = begin_yx + tf.cast(tf.random.stateless_uniform([2], seeds[1]) * size_hw, tf.int32)
        half_hw = tf.cast(share * size_hw / 2.0, tf.int32)
        return fill_around(sample[IMAGE], center_yx, half_hw, fill)

    return {**sample, IMAGE: tf.cond(tf.shape(corners_px)[0] > 0, cut_out, lambda: sample[IMAGE])}


def fill_around(image_HW3: tf.Tensor, center_yx: tf.Tensor, half_hw: tf.Tensor, fill: int) -> tf.Tensor:
    """Fill a rectangle of twice `half_hw` around a centre, clipped to the image."""
    begin, end = (center_yx - half_hw)[tf.newaxis], (center_yx + half_hw)[tf.newaxis]
    return filled(image_HW3, rectangles(tf.shape(image_HW3)[:2], begin, end), fill)


def box_corners_px(sample: Sample) -> tf.Tensor:
    """Return the pixels that each box touches, at least one, int32 [G, 4]: first row and column, end row and column."""
    image_hw = image_hw_of(sample)
    corners = tf.cast(sample[BOXES] * tf.tile(tf.cast(image_hw, tf.float32), [2]), tf.int32)
    begin_yx = tf.clip_by_value(corners[:, :2], 0, image_hw - 1)
    return tf.concat([begin_yx, tf.clip_by_value(corners[:, 2:] + 1, begin_yx + 1, image_hw)], axis=1)
