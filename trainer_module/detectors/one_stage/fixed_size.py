"""Outputs of TensorFlow Lite and ONNX models: with the suppression of TensorFlow Lite, or raw for the caller."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.arrays import Array, Float32Array
from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, RAW_BOXES, RAW_SCORES, SCORES
from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression, PostProcessing
from detloom.trainer_module.boxes.box_coder import decode_boxes
from detloom.trainer_module.boxes.geometry import yxyx_to_cyxhw
from detloom.trainer_module.boxes.nms import Selection, select_boxes
from detloom.trainer_module.boxes.postprocess import convert_scores

_SUPPRESSION_OP = "TFLite_Detection_PostProcess"


def raw_outputs(config: Ssd, anchors_yxyx_rel_A4: tf.Tensor, outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return boxes and scores of all anchors."""
    scores_BAC = convert_scores(config.post_processing, outputs["class_logits_BAC"])
    anchors = tf.constant(anchors_yxyx_rel_A4.numpy())
    return {
        RAW_BOXES: decode_boxes(config.box_coder, outputs["offsets_BA4"], anchors),
        RAW_SCORES: scores_BAC[..., int(config.add_background_class) :],
    }


def suppressed_outputs(
    config: Ssd,
    anchors_yxyx_rel_A4: tf.Tensor,
    outputs: dict[str, tf.Tensor],
    class_ids: tuple[int, ...],
    max_detections: int,
) -> dict[str, tf.Tensor]:
    """Return detections of the suppression operation of TensorFlow Lite, for one image."""
    scores_BAC = convert_scores(config.post_processing, outputs["class_logits_BAC"])
    suppress = _suppression_op(config, max_detections, len(class_ids))
    with tf.init_scope():
        anchors_cyxhw_A4 = yxyx_to_cyxhw(anchors_yxyx_rel_A4).numpy()  # the operation needs constants
    boxes, class_indices, scores, count = suppress(outputs["offsets_BA4"], scores_BAC, tf.constant(anchors_cyxhw_A4))
    # The lookup is in whole numbers, which are not quantized to 8 bits. Padding rows may hold any value.
    is_row = tf.range(max_detections) < tf.cast(count[0], tf.int32)
    last = len(class_ids) - 1
    rows = tf.where(is_row, tf.clip_by_value(tf.cast(class_indices, tf.int32), 0, last) + 1, 0)
    return {
        BOXES: boxes,
        SCORES: scores,
        CLASSES: tf.cast(tf.gather(tf.constant([0, *class_ids]), rows), tf.float32),
        NUM_DETECTIONS: count,
    }


def _suppression_op(config: Ssd, max_detections: int, num_classes: int) -> Callable[..., Any]:
    """Return a function that the converter replaces by the operation of TensorFlow Lite that decodes and suppresses.

    Its attributes: tensorflow/lite/kernels/detection_postprocess.cc.
    """
    nms, coder = config.post_processing.batch_non_max_suppression, config.box_coder
    values = {
        "max_detections": f"i: {max_detections}",
        "max_classes_per_detection": "i: 1",
        "detections_per_class": f"i: {min(max_detections, nms.max_detections_per_class)}",
        "use_regular_nms": f"b: {str(not nms.use_class_agnostic_nms).lower()}",
        "nms_score_threshold": f"f: {nms.score_threshold:.9f}",
        "nms_iou_threshold": f"f: {nms.iou_threshold:.9f}",
        "y_scale": f"f: {coder.y_scale:.9f}",
        "x_scale": f"f: {coder.x_scale:.9f}",
        "h_scale": f"f: {coder.height_scale:.9f}",
        "w_scale": f"f: {coder.width_scale:.9f}",
        "num_classes": f"i: {num_classes}",
    }
    attributes = (f'attr {{ key: "{key}" value {{ {value} }} }}' for key, value in values.items())

    @tf.function(experimental_implements=" ".join([f'name: "{_SUPPRESSION_OP}"', *attributes]))
    def suppress(offsets_BA4: tf.Tensor, scores_BAC: tf.Tensor, anchors_A4: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = tf.zeros([1, max_detections])  # only the shapes matter
        return tf.zeros([1, max_detections, 4]), rows, rows, tf.zeros([1])

    return suppress


def select_raw(
    settings: PostProcessing,
    outputs: Mapping[str, Array],
    class_ids: tuple[int, ...],
    image_share_hw: Float32Array,
) -> dict[str, Array]:
    """Suppress the raw outputs of one image; see `Family.select_raw`."""
    window = tf.constant([[0.0, 0.0, *image_share_hw]])
    raw = (tf.constant(outputs[name]) for name in (RAW_BOXES, RAW_SCORES))
    boxes, selection = _select(settings.batch_non_max_suppression, *raw, window)
    rows = int(selection.num_selected_B[0])
    return {
        BOXES: boxes[0, :rows].numpy(),
        SCORES: selection.scores_BM[0, :rows].numpy(),
        CLASSES: np.array(class_ids, np.int64)[selection.class_indices_BM[0, :rows].numpy()],
    }


@tf.function
def _select(
    nms: BatchNonMaxSuppression, boxes_BA4: tf.Tensor, scores_BAK: tf.Tensor, windows_yxyx_B4: tf.Tensor
) -> tuple[tf.Tensor, Selection]:
    def boxes_of(indices_BM: tf.Tensor) -> tf.Tensor:
        return tf.gather(boxes_BA4, indices_BM, batch_dims=1)

    selection = select_boxes(nms, scores_BAK, lambda scores: scores, boxes_of, windows_yxyx_B4)
    return boxes_of(selection.box_indices_BM), selection
