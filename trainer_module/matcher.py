"""Which anchor learns which ground-truth box."""

import tensorflow as tf

from detloom.schemas.config import Matcher

BACKGROUND = -1
IGNORED = -2


def match_anchors(matcher: Matcher, iou_BGA: tf.Tensor, is_box_BG: tf.Tensor) -> tf.Tensor:
    """Match every anchor to at most one ground-truth box (the Object Detection API's argmax matcher).

    Args:
        iou_BGA: overlap of every box with every anchor, 0 to 1.
        is_box_BG: False in the rows that only pad G.

    Returns:
        match_BA: int32 index into G; -1 background, -2 ignored (IoU between the two thresholds). With no box, every
        anchor is background. With `force_match` every box gets its best anchor; where two boxes want the same anchor,
        the later one in G gets it, as in the reference.
    """
    iou_BGA = tf.where(is_box_BG[:, :, tf.newaxis], iou_BGA, -1.0)
    num_boxes = tf.shape(iou_BGA)[1]
    best_iou_BA = tf.reduce_max(iou_BGA, axis=1)
    match_BA = tf.argmax(iou_BGA, axis=1, output_type=tf.int32)
    below_BA = best_iou_BA < matcher.background_iou
    between_BA = ~below_BA & (best_iou_BA < matcher.foreground_iou)
    match_BA = tf.where(below_BA, BACKGROUND, tf.where(between_BA, IGNORED, match_BA))
    if not matcher.force_match:
        return match_BA
    best_anchor_BG = tf.argmax(iou_BGA, axis=2, output_type=tf.int32)
    wants_BGA = tf.one_hot(best_anchor_BG, tf.shape(iou_BGA)[2], on_value=True, off_value=False, dtype=tf.bool)
    wants_BGA &= is_box_BG[:, :, tf.newaxis]
    box_rank_BGA = tf.where(wants_BGA, tf.range(num_boxes)[tf.newaxis, :, tf.newaxis], -1)
    forced_BA = tf.reduce_max(box_rank_BGA, axis=1)
    return tf.where(forced_BA >= 0, forced_BA, match_BA)
