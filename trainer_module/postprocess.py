"""From the network's raw outputs to detections."""

import tensorflow as tf

from detloom.schemas.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.model_config import Ssd
from detloom.trainer_module.box_coder import decode_boxes


def build_detections(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    class_ids_K: tf.Tensor,
    offsets_BA4: tf.Tensor,
    class_logits_BAC: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Decode, suppress within each class, keep the best `max_total_detections`; see `schemas/detections.py`.

    Args:
        class_ids_K: int, label-map id of each class index.
    """
    nms = config.post_processing.batch_non_max_suppression
    boxes_yxyx_rel_BA4 = decode_boxes(config.box_coder, offsets_BA4, anchors_yxyx_rel_A4)
    class_logits_BAK = class_logits_BAC[..., 1:] if config.add_background_class else class_logits_BAC
    boxes, scores, class_indices, num_detections = tf.image.combined_non_max_suppression(
        boxes_yxyx_rel_BA4[:, :, tf.newaxis, :],
        tf.sigmoid(class_logits_BAK / config.post_processing.logit_scale),
        max_output_size_per_class=nms.max_detections_per_class,
        max_total_size=nms.max_total_detections,
        iou_threshold=nms.iou_threshold,
        score_threshold=nms.score_threshold,
        clip_boxes=True,
    )
    is_detection_BM = tf.sequence_mask(num_detections, nms.max_total_detections)
    class_ids = tf.gather(tf.cast(class_ids_K, tf.float32), tf.cast(class_indices, tf.int32))
    return {
        BOXES: boxes,
        SCORES: scores,
        CLASSES: tf.where(is_detection_BM, class_ids, 0.0),
        NUM_DETECTIONS: tf.cast(num_detections, tf.float32),
    }
