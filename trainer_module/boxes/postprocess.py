"""Post-processing of class logits and boxes: scores, non-maximum suppression, and rows of detections."""

from collections.abc import Callable
from dataclasses import replace

import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.model.non_max_suppression import PostProcessing
from detloom.trainer_module.boxes.nms import Selection, select_boxes


def build_detections(
    settings: PostProcessing,
    class_logits_BNC: tf.Tensor,
    boxes_of: Callable[[tf.Tensor], tf.Tensor],
    class_ids_K: tf.Tensor,
    *,
    has_background: bool,
    image_share_hw_B2: tf.Tensor,
    has_boxes_per_class: bool = False,
    on_host: bool = False,
) -> dict[str, tf.Tensor]:
    """Suppress boxes and keep the best `max_total_detections`; see `schemas/contracts/detections.py`.

    Boxes are compared as they are decoded. As in the reference, boxes without area in the image are then dropped, and
    the others are clipped to it.

    Args:
        boxes_of: returns the boxes [B, M, 4], relative to the input, of box indices [B, M]; with
            `has_boxes_per_class`, of box index * K + class index, see `select_boxes`.
        class_ids_K: int, label-map id of each class index.
        has_background: whether class channel 0 is the background.
        image_share_hw_B2: rows and columns of the inputs that are image, over those of the input.
        on_host: see `select_boxes`.
    """
    windows_yxyx_B4 = tf.pad(image_share_hw_B2, [[0, 0], [2, 0]])
    selection = _select(
        settings,
        class_logits_BNC,
        boxes_of,
        windows_yxyx_B4,
        has_background=has_background,
        has_boxes_per_class=has_boxes_per_class,
        on_host=on_host,
    )
    indices_BM = selection.box_indices_BM
    if has_boxes_per_class:
        indices_BM = indices_BM * class_ids_K.shape[0] + selection.class_indices_BM
    is_detection_BM = tf.sequence_mask(selection.num_selected_B, tf.shape(selection.scores_BM)[1])
    boxes_yxyx_rel_BM4 = boxes_of(indices_BM) / tf.tile(image_share_hw_B2, [1, 2])[:, tf.newaxis]
    class_ids_BM = tf.gather(tf.cast(class_ids_K, tf.float32), selection.class_indices_BM)
    return {
        BOXES: tf.where(is_detection_BM[..., tf.newaxis], tf.clip_by_value(boxes_yxyx_rel_BM4, 0.0, 1.0), 0.0),
        SCORES: selection.scores_BM,
        CLASSES: tf.where(is_detection_BM, class_ids_BM, 0.0),
        NUM_DETECTIONS: tf.cast(selection.num_selected_B, tf.float32),
    }


def _select(
    settings: PostProcessing,
    class_logits_BNC: tf.Tensor,
    boxes_of: Callable[[tf.Tensor], tf.Tensor],
    windows_yxyx_B4: tf.Tensor,
    *,
    has_background: bool,
    has_boxes_per_class: bool,
    on_host: bool,
) -> Selection:
    nms, is_softmax = settings.batch_non_max_suppression, settings.score_converter == "SOFTMAX"
    # Softmax is the only converter with which the order depends on the other classes.
    ranks_BNK = convert_scores(settings, class_logits_BNC) if is_softmax else class_logits_BNC
    if has_background:
        ranks_BNK = ranks_BNK[..., 1:]

    def to_scores(ranks: tf.Tensor) -> tf.Tensor:
        return ranks if is_softmax else convert_scores(settings, ranks)

    if not nms.use_class_agnostic_nms:
        return select_boxes(
            nms,
            ranks_BNK,
            to_scores,
            boxes_of,
            windows_yxyx_B4,
            has_boxes_per_class=has_boxes_per_class,
            on_host=on_host,
        )
    assert not has_boxes_per_class, "class-agnostic suppression needs one box for all classes"
    one_class = replace(nms, max_detections_per_class=nms.max_total_detections)
    best_BN1 = tf.reduce_max(ranks_BNK, axis=-1, keepdims=True)
    selection = select_boxes(one_class, best_BN1, to_scores, boxes_of, windows_yxyx_B4, on_host=on_host)
    scores_BMK = to_scores(tf.gather(ranks_BNK, selection.box_indices_BM, batch_dims=1))
    return selection._replace(class_indices_BM=tf.argmax(scores_BMK, axis=-1, output_type=tf.int32))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def convert_scores(settings: PostProcessing, class_logits: tf.Tensor) -> tf.Tensor:
    """Convert class outputs [..., C] to scores."""
    scaled = class_logits * (1.0 / settings.logit_scale)
    match settings.score_converter:
        case "IDENTITY":
            return scaled
        case "SIGMOID":
            return tf.sigmoid(scaled)
        case "SOFTMAX":
            return tf.nn.softmax(scaled)
    raise AssertionError(f"no such score converter: {settings.score_converter}")
