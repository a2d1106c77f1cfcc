"""From the network's raw outputs to detections."""

from collections.abc import Callable
from dataclasses import replace

import tensorflow as tf

from detloom.schemas.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.model_config import PostProcessing, Ssd
from detloom.trainer_module.box_coder import decode_boxes
from detloom.trainer_module.nms import Selection, select_boxes
from detloom.trainer_module.preprocess import network_hw


def build_detections(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    class_ids_K: tf.Tensor,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
    true_hw_B2: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Decode, suppress, keep the best `max_total_detections`; see `schemas/detections.py`.

    Boxes are compared as they were decoded; then those without any part in the picture are dropped, and the others are
    clipped to it, as in the reference.

    Args:
        class_ids_K: int, label-map id of each class index.
        true_hw_B2: see `Detector.detect`.
    """
    num_pictures = tf.shape(offsets_BA4)[0]
    shares_B2 = tf.ones([num_pictures, 2])
    if true_hw_B2 is not None:
        shares_B2 = tf.cast(true_hw_B2, tf.float32) / tf.constant(network_hw(config.image_resizer), tf.float32)
    windows_yxyx_B4 = tf.pad(shares_B2, [[0, 0], [2, 0]])

    def boxes_of(anchors_BN: tf.Tensor) -> tf.Tensor:
        offsets_BN4 = tf.gather(offsets_BA4, anchors_BN, batch_dims=1)
        return decode_boxes(config.box_coder, offsets_BN4, tf.gather(anchors_yxyx_rel_A4, anchors_BN))

    selection = _select(config, class_logits_BAC, boxes_of, windows_yxyx_B4)
    is_detection_BM = tf.sequence_mask(selection.num_selected_B, tf.shape(selection.scores_BM)[1])
    boxes_yxyx_rel_BM4 = boxes_of(selection.box_indices_BM) / tf.tile(shares_B2, [1, 2])[:, tf.newaxis]
    class_ids_BM = tf.gather(tf.cast(class_ids_K, tf.float32), selection.class_indices_BM)
    return {
        BOXES: tf.where(is_detection_BM[..., tf.newaxis], tf.clip_by_value(boxes_yxyx_rel_BM4, 0.0, 1.0), 0.0),
        SCORES: selection.scores_BM,
        CLASSES: tf.where(is_detection_BM, class_ids_BM, 0.0),
        NUM_DETECTIONS: tf.cast(selection.num_selected_B, tf.float32),
    }


def _select(
    config: Ssd, class_logits_BAC: tf.Tensor, boxes_of: Callable[[tf.Tensor], tf.Tensor], windows_yxyx_B4: tf.Tensor
) -> Selection:
    nms = config.post_processing.batch_non_max_suppression
    ranks_BAK = class_logits_BAC
    if config.post_processing.score_converter == "SOFTMAX":  # here alone the order depends on the other classes
        ranks_BAK = convert_scores(config.post_processing, class_logits_BAC)
    if config.add_background_class:
        ranks_BAK = ranks_BAK[..., 1:]

    def to_scores(ranks: tf.Tensor) -> tf.Tensor:
        is_converted = config.post_processing.score_converter == "SOFTMAX"
        return ranks if is_converted else convert_scores(config.post_processing, ranks)

    if not nms.use_class_agnostic_nms:
        return select_boxes(nms, ranks_BAK, to_scores, boxes_of, windows_yxyx_B4)
    one_class = replace(nms, max_detections_per_class=nms.max_total_detections)
    selection = select_boxes(
        one_class, tf.reduce_max(ranks_BAK, axis=-1, keepdims=True), to_scores, boxes_of, windows_yxyx_B4
    )
    scores_BMK = to_scores(tf.gather(ranks_BAK, selection.box_indices_BM, batch_dims=1))
    return selection._replace(class_indices_BM=tf.argmax(scores_BMK, axis=-1, output_type=tf.int32))


@tf.autograph.experimental.do_not_convert  # AutoGraph does not know `match`
def convert_scores(config: PostProcessing, class_logits: tf.Tensor) -> tf.Tensor:
    """Class outputs to scores, of the same shape [..., C]."""
    scaled = class_logits * (1.0 / config.logit_scale)
    match config.score_converter:
        case "IDENTITY":
            return scaled
        case "SIGMOID":
            return tf.sigmoid(scaled)
        case "SOFTMAX":
            return tf.nn.softmax(scaled)
    raise AssertionError(f"no such score converter: {config.score_converter}")
