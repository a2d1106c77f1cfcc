"""What each anchor should say, from padded ground truth."""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model_config import Ssd
from detloom.trainer_module.box_coder import encode_boxes
from detloom.trainer_module.boxes import iou
from detloom.trainer_module.matcher import BACKGROUND, match_anchors
from detloom.trainer_module.xla import compiled_on_cpu

NO_CHANNEL = -1


class Targets(NamedTuple):
    """`B` images, `A` anchors, `C` class channels (see `ssd.py`).

    Attributes:
        match_BA: int32 index of the anchor's box; -1 background, -2 ignored.
        offsets_BA4: box offsets, 0 where the anchor is not foreground.
        channel_BA: int32, the class channel that should be 1; -1 if all should be 0.
        box_weight_BA: float32, 1 (or the weight of its box) for foreground anchors, else 0.
        class_weight_BA: float32, the same; for background anchors `negative_class_weight`, 0 for ignored ones.
    """

    match_BA: tf.Tensor
    offsets_BA4: tf.Tensor
    channel_BA: tf.Tensor
    box_weight_BA: tf.Tensor
    class_weight_BA: tf.Tensor


def assign_targets(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    box_weights_BG: tf.Tensor | None = None,
) -> Targets:
    """Targets from ground truth padded with `class_index` -1, G may be 0; without weights, every box weighs 1.

    A box of weight 0 takes anchors from the others, as in the reference, but is not forced on its best one.
    """
    if box_weights_BG is None:
        box_weights_BG = tf.cast(class_indices_BG >= 0, tf.float32)
    num_rows = boxes_yxyx_rel_BG4.shape[1]
    if not num_rows:  # XLA gathers from no empty axis
        num_missing = 1 if num_rows == 0 else tf.maximum(1 - tf.shape(boxes_yxyx_rel_BG4)[1], 0)
        boxes_yxyx_rel_BG4 = tf.pad(boxes_yxyx_rel_BG4, [[0, 0], [0, num_missing], [0, 0]])
        class_indices_BG = tf.pad(class_indices_BG, [[0, 0], [0, num_missing]], constant_values=-1)
        box_weights_BG = tf.pad(box_weights_BG, [[0, 0], [0, num_missing]])
    is_box_BG = class_indices_BG >= 0

    def iou_of_box(g: tf.Tensor) -> tf.Tensor:
        return iou(boxes_yxyx_rel_BG4[:, g, tf.newaxis, :], anchors_yxyx_rel_A4)

    match_BA = match_anchors(
        config.matcher, iou_of_box, is_box_BG, is_box_BG & (box_weights_BG > 0), len(anchors_yxyx_rel_A4)
    )
    targets: Targets = _targets_of_match(
        config, anchors_yxyx_rel_A4, match_BA, boxes_yxyx_rel_BG4, class_indices_BG, box_weights_BG
    )
    return targets


@compiled_on_cpu
def _targets_of_match(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    match_BA: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    box_weights_BG: tf.Tensor,
) -> Targets:
    """The matching itself stays out of what is compiled: XLA rounds otherwise, and a tie would be none."""
    is_foreground_BA = match_BA >= 0
    index_BA = tf.maximum(match_BA, 0)
    offsets_BA4 = encode_boxes(
        config.box_coder, tf.gather(boxes_yxyx_rel_BG4, index_BA, batch_dims=1), anchors_yxyx_rel_A4
    )
    channel_BA = tf.gather(class_indices_BG, index_BA, batch_dims=1)
    background_channel = NO_CHANNEL
    if config.add_background_class:
        channel_BA += 1
        background_channel = NO_CHANNEL if config.encode_background_as_zeros else 0
    box_weight_BA = tf.where(is_foreground_BA, tf.gather(box_weights_BG, index_BA, batch_dims=1), 0.0)
    background_weight_BA = tf.where(match_BA == BACKGROUND, config.negative_class_weight, 0.0)
    return Targets(
        match_BA=match_BA,
        offsets_BA4=tf.where(is_foreground_BA[..., tf.newaxis], offsets_BA4, 0.0),
        channel_BA=tf.where(is_foreground_BA, channel_BA, background_channel),
        box_weight_BA=box_weight_BA,
        class_weight_BA=box_weight_BA + background_weight_BA,
    )
