"""Match anchors to ground-truth boxes."""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.model.detector import ArgMaxMatcher

BACKGROUND = -1
IGNORED = -2


def match_anchors(
    matcher: ArgMaxMatcher,
    iou_of_box: Callable[[tf.Tensor], tf.Tensor],
    is_box_BG: tf.Tensor,
    is_forced_BG: tf.Tensor,
    num_anchors: int,
) -> tf.Tensor:
    """Match every anchor to at most one ground-truth box (the argmax matcher of the Object Detection API).

    A loop over the boxes keeps the best match so far of every anchor. So no tensor of size G * A is stored, and the
    number of steps is that of the boxes in the batch, independent of G.

    Args:
        iou_of_box: returns the IoU, [B, A], of the g-th box of every image with all anchors; g is a scalar.
        is_box_BG: False in rows that are padding.
        is_forced_BG: the boxes that `force_match_for_each_row` applies to.

    Returns:
        match_BA: int32 index into G; -1 background, -2 ignored. Without boxes, every anchor is background. With
        `force_match_for_each_row`, each such box gets its best anchor; if two boxes have the same best anchor, the
        first one in G gets it, as in the reference.
    """
    batch_size, max_boxes = tf.unstack(tf.shape(is_box_BG))
    num_steps = tf.reduce_max(tf.where(is_box_BG, tf.range(max_boxes) + 1, 0))
    none_BA = tf.fill([batch_size, num_anchors], BACKGROUND)

    def step(g: tf.Tensor, best_iou_BA: tf.Tensor, match_BA: tf.Tensor, forced_BA: tf.Tensor) -> tuple[tf.Tensor, ...]:
        is_box_B1 = is_box_BG[:, g, tf.newaxis]
        iou_BA = iou_of_box(g)
        if matcher.force_match_for_each_row:
            best_anchor_B1 = tf.argmax(iou_BA, axis=1, output_type=tf.int32)[:, tf.newaxis]
            wanted_B1 = tf.where(is_forced_BG[:, g, tf.newaxis], best_anchor_B1, -1)
            takes_BA = (tf.range(num_anchors) == wanted_B1) & (forced_BA < 0)
            forced_BA = tf.where(takes_BA, g, forced_BA)
        is_better_BA = (iou_BA > best_iou_BA) & is_box_B1  # the first of equal values wins
        return g + 1, tf.where(is_better_BA, iou_BA, best_iou_BA), tf.where(is_better_BA, g, match_BA), forced_BA

    start = (tf.constant(0), tf.fill([batch_size, num_anchors], -1.0), none_BA, none_BA)
    _, best_iou_BA, match_BA, forced_BA = tf.while_loop(lambda g, *_: g < num_steps, step, start)
    if not matcher.ignore_thresholds:
        below_BA = best_iou_BA < matcher.unmatched_threshold
        between_BA = ~below_BA & (best_iou_BA < matcher.matched_threshold)
        values = (BACKGROUND, IGNORED) if matcher.negatives_lower_than_unmatched else (IGNORED, BACKGROUND)
        has_box_B1 = tf.reduce_any(is_box_BG, axis=1, keepdims=True)
        below_BA, between_BA = below_BA & has_box_B1, between_BA & has_box_B1
        match_BA = tf.where(below_BA, values[0], tf.where(between_BA, values[1], match_BA))
    return tf.where(forced_BA >= 0, forced_BA, match_BA)
