"""Training losses of a single-shot detector."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from detloom.schemas.model.detector import Ssd
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.losses import box_losses, class_losses, hard_examples
from detloom.trainer_module.boxes.targets import NO_CHANNEL, Targets, TargetSettings
from detloom.trainer_module.runtime.numerics import compiled_on_cpu

CODE_SIZE = 4  # number of offsets of a box


def target_settings(config: Ssd) -> TargetSettings:
    """Return the settings of `assign_targets`."""
    has_background_channel = config.add_background_class and not config.encode_background_as_zeros
    return TargetSettings(
        matcher=config.matcher,
        box_coder=config.box_coder,
        background_weight=config.negative_class_weight,
        first_class_channel=int(config.add_background_class),
        background_channel=0 if has_background_channel else NO_CHANNEL,
    )


def detection_losses(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    targets: Targets,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    num_matches: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Return the scalars `class_loss` and `box_loss`, float32, weighted and normalized: sums over the batch, not means.

    Args:
        num_matches: see `Detector.losses`.
    """
    inputs = _LossInputs(
        anchors_yxyx_rel_A4,
        targets,
        tf.cast(offsets_BA4, tf.float32),
        tf.cast(class_logits_BAC, tf.float32),
        count_matches(targets) if num_matches is None else num_matches,
    )
    # Not compiled with hard example mining: the non-maximum suppression of XLA needs an [A, A] matrix.
    compute = _losses if config.loss.hard_example_miner is not None else _fused_losses
    class_loss, box_loss = compute(config, inputs)
    return {"class_loss": class_loss, "box_loss": box_loss}


def count_matches(targets: Targets) -> tf.Tensor:
    """Return the normalizer of the losses, float32: the sum of the weights of foreground anchors."""
    return tf.reduce_sum(targets.box_weight_BA)


class _LossInputs(NamedTuple):
    anchors_yxyx_rel_A4: tf.Tensor
    targets: Targets
    offsets_BA4: tf.Tensor
    class_logits_BAC: tf.Tensor
    num_matches: tf.Tensor


def _fused_losses(config: Ssd, inputs: _LossInputs) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute `_losses` together with their gradients, since both need the same exponentials of [B, A, C]."""

    @tf.custom_gradient
    def losses(offsets_BA4: tf.Tensor, class_logits_BAC: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        values, (by_offsets, by_logits) = _losses_and_gradients(
            config, inputs._replace(offsets_BA4=offsets_BA4, class_logits_BAC=class_logits_BAC)
        )
        return values, lambda of_class_loss, of_box_loss: (of_box_loss * by_offsets, of_class_loss * by_logits)

    class_loss, box_loss = losses(inputs.offsets_BA4, inputs.class_logits_BAC)
    return class_loss, box_loss


@compiled_on_cpu
def _losses_and_gradients(
    config: Ssd, inputs: _LossInputs
) -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return (class_loss, box_loss), and the gradients of box_loss by offsets and of class_loss by logits."""
    offsets_BA4, class_logits_BAC = inputs.offsets_BA4, inputs.class_logits_BAC
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([offsets_BA4, class_logits_BAC])
        class_loss, box_loss = _losses(config, inputs)
    return (class_loss, box_loss), (tape.gradient(box_loss, offsets_BA4), tape.gradient(class_loss, class_logits_BAC))


def _losses(config: Ssd, inputs: _LossInputs) -> tuple[tf.Tensor, tf.Tensor]:
    anchors_yxyx_rel_A4, targets, offsets_BA4, class_logits_BAC, num_matches = inputs
    loss, coder = config.loss, config.box_coder
    class_loss_BA = class_losses(loss.classification_loss, class_logits_BAC, targets)
    box_loss_BA = box_losses(loss.localization_loss, coder, anchors_yxyx_rel_A4, offsets_BA4, targets)
    if loss.hard_example_miner is not None:
        is_hard_BA = hard_examples(
            loss.hard_example_miner,
            decode_boxes(coder, offsets_BA4, anchors_yxyx_rel_A4),
            class_loss_BA,
            box_loss_BA,
            targets.match_BA,
            class_weight=loss.classification_weight,
            box_weight=loss.localization_weight,
        )
        class_loss_BA, box_loss_BA = class_loss_BA * is_hard_BA, box_loss_BA * is_hard_BA
    normalizer = tf.constant(1.0)
    if config.normalize_loss_by_num_matches:
        normalizer = tf.maximum(num_matches, 1.0)
    box_normalizer = normalizer * CODE_SIZE if config.normalize_loc_loss_by_codesize else normalizer
    return (
        loss.classification_weight / normalizer * tf.reduce_sum(class_loss_BA),
        loss.localization_weight / box_normalizer * tf.reduce_sum(box_loss_BA),
    )
