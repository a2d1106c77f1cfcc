"""Training targets of anchors from padded ground truth."""

from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.model.detector import ArgMaxMatcher, BoxCoder
from detloom.trainer_module.boxes.box_coder import encode_boxes
from detloom.trainer_module.boxes.geometry import iou
from detloom.trainer_module.boxes.matcher import BACKGROUND, match_anchors
from detloom.trainer_module.runtime.numerics import compiled_on_cpu

NO_CHANNEL = -1


@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Settings of target assignment.

    Attributes:
        background_weight: class weight of background anchors.
        first_class_channel: class channel of class index 0.
        background_channel: class channel of background anchors; `NO_CHANNEL` if all their channels should be 0.
    """

    matcher: ArgMaxMatcher
    box_coder: BoxCoder
    background_weight: float = 1.0
    first_class_channel: int = 0
    background_channel: int = NO_CHANNEL


class Targets(NamedTuple):
    """Targets of `A` anchors in `B` images.

    Attributes:
        match_BA: int32 index of the anchor's box; -1 background, -2 ignored.
        offsets_BA4: box offsets; 0 for anchors that are not foreground.
        channel_BA: int32, the class channel that should be 1; -1 if all should be 0.
        box_weight_BA: float32, the weight of the box for foreground anchors, otherwise 0.
        class_weight_BA: float32, the same, but `background_weight` for background anchors.
    """

    match_BA: tf.Tensor
    offsets_BA4: tf.Tensor
    channel_BA: tf.Tensor
    box_weight_BA: tf.Tensor
    class_weight_BA: tf.Tensor


def assign_targets(
    settings: TargetSettings,
    anchors_yxyx_rel_A4: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    box_weights_BG: tf.Tensor | None = None,
) -> Targets:
    """Assign targets from ground truth padded with class index -1; G may be 0. Without weights, every box has weight 1.

    A box of weight 0 takes anchors from other boxes, as in the reference, but is not forced on its best anchor. The
    anchors are those of all images, [A, 4], or of each image, [B, A, 4]. Anchors and boxes may also both be in pixels.
    """
    if box_weights_BG is None:
        box_weights_BG = tf.cast(class_indices_BG >= 0, tf.float32)
    num_rows = boxes_yxyx_rel_BG4.shape[1]
    if not num_rows:  # XLA cannot gather from an empty axis
        num_missing = 1 if num_rows == 0 else tf.maximum(1 - tf.shape(boxes_yxyx_rel_BG4)[1], 0)
        boxes_yxyx_rel_BG4 = tf.pad(boxes_yxyx_rel_BG4, [[0, 0], [0, num_missing], [0, 0]])
        class_indices_BG = tf.pad(class_indices_BG, [[0, 0], [0, num_missing]], constant_values=-1)
        box_weights_BG = tf.pad(box_weights_BG, [[0, 0], [0, num_missing]])
    is_box_BG = class_indices_BG >= 0

    def iou_of_box(g: tf.Tensor) -> tf.Tensor:
        return iou(boxes_yxyx_rel_BG4[:, g, tf.newaxis, :], anchors_yxyx_rel_A4)

    match_BA = match_anchors(
        settings.matcher, iou_of_box, is_box_BG, is_box_BG & (box_weights_BG > 0), anchors_yxyx_rel_A4.shape[-2]
    )
    targets: Targets = _targets_of_match(
        settings, anchors_yxyx_rel_A4, match_BA, boxes_yxyx_rel_BG4, class_indices_BG, box_weights_BG
    )
    return targets


@compiled_on_cpu
def _targets_of_match(
    settings: TargetSettings,
    anchors_yxyx_rel_A4: tf.Tensor,
    match_BA: tf.Tensor,
    boxes_yxyx_rel_BG4: tf.Tensor,
    class_indices_BG: tf.Tensor,
    box_weights_BG: tf.Tensor,
) -> Targets:
    """Compute targets of matched anchors. The matching is not compiled: the rounding of XLA would break ties."""
    is_foreground_BA = match_BA >= 0
    index_BA = tf.maximum(match_BA, 0)
    offsets_BA4 = encode_boxes(
        settings.box_coder, tf.gather(boxes_yxyx_rel_BG4, index_BA, batch_dims=1), anchors_yxyx_rel_A4
    )
    channel_BA = tf.gather(class_indices_BG, index_BA, batch_dims=1) + settings.first_class_channel
    box_weight_BA = tf.where(is_foreground_BA, tf.gather(box_weights_BG, index_BA, batch_dims=1), 0.0)
    background_weight_BA = tf.where(match_BA == BACKGROUND, settings.background_weight, 0.0)
    return Targets(
        match_BA=match_BA,
        offsets_BA4=tf.where(is_foreground_BA[..., tf.newaxis], offsets_BA4, 0.0),
        channel_BA=tf.where(is_foreground_BA, channel_BA, settings.background_channel),
        box_weight_BA=box_weight_BA,
        class_weight_BA=box_weight_BA + background_weight_BA,
    )
