"""Which anchor learns which ground-truth box."""

import tensorflow as tf

from detloom.schemas.model_config import ArgMaxMatcher

BACKGROUND = -1
IGNORED = -2


def match_anchors(matcher: ArgMaxMatcher, iou_BGA: tf.Tensor, is_box_BG: tf.Tensor) -> tf.Tensor:
    """Match every anchor to at most one ground-truth box (the Object Detection API's argmax matcher).

    Args:
        iou_BGA: overlap of every box with every anchor, 0 to 1.
        is_box_BG: False in the rows that only pad G.

    Returns:
        match_BA: int32 index into G; -1 background, -2 ignored. With no box, every anchor is background. With
        `force_match_for_each_row` every box gets its best anchor; where two boxes want the same anchor, the first one
        in G gets it, as in the reference.
    """
    iou_BGA = tf.where(is_box_BG[:, :, tf.newaxis], iou_BGA, -1.0)
    best_iou_BA = tf.reduce_max(iou_BGA, axis=1)
    match_BA = tf.argmax(iou_BGA, axis=1, output_type=tf.int32)
    if not matcher.ignore_thresholds:
        below_BA = best_iou_BA < matcher.unmatched_threshold
        between_BA = ~below_BA & (best_iou_BA < matcher.matched_threshold)
        values = (BACKGROUND, IGNORED) if matcher.negatives_lower_than_unmatched else (IGNORED, BACKGROUND)
        match_BA = tf.where(below_BA, values[0], tf.where(between_BA, values[1], match_BA))
    match_BA = tf.where(best_iou_BA < 0, BACKGROUND, match_BA)  # a picture without boxes
    if not matcher.force_match_for_each_row:
        return match_BA
    best_anchor_BG = tf.argmax(iou_BGA, axis=2, output_type=tf.int32)
    wants_BGA = tf.one_hot(best_anchor_BG, tf.shape(iou_BGA)[2], on_value=True, off_value=False, dtype=tf.bool)
    wants_BGA &= is_box_BG[:, :, tf.newaxis]
    first_BA = tf.argmax(tf.cast(wants_BGA, tf.int32), axis=1, output_type=tf.int32)
    return tf.where(tf.reduce_any(wants_BGA, axis=1), first_BA, match_BA)
