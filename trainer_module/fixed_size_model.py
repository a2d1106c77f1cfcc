"""A detector as a function of pictures that have the network's size already, for formats that do not resize.

Of TensorFlow Lite and ONNX: their files take a picture that the caller has fitted (`fit_picture.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.model_config import Ssd
from detloom.trainer_module.box_coder import decode_boxes
from detloom.trainer_module.boxes import yxyx_to_cyxhw
from detloom.trainer_module.centernet import CenterNetDetector
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.postprocess import convert_scores
from detloom.trainer_module.preprocess import network_hw, normalize_image
from detloom.trainer_module.ssd import SsdDetector

_INPUT = names.SIGNATURE_INPUTS[names.SIGNATURE_IMAGES]
_SUPPRESSION_OP = "TFLite_Detection_PostProcess"


class FixedSizeModel(tf.Module):
    """Normalization, network and post-processing; `serve` is a function of pictures of the network's size.

    It takes float32 [B, H, W, 3] with colours from 0 to 255, and answers with the outputs of `schemas/detections.py`,
    or with the raw ones. The boxes are relative to the input, padding included.
    """

    def __init__(self, detector: Detector, *, raw: bool, max_detections: int, batch_size: int | None = 1) -> None:
        """Take the detector's weights as they are now.

        Args:
            raw: suppression is left to the caller. CenterNet has none: it answers with detections all the same.
            batch_size: 1 unless `raw`; None is any.
        """
        super().__init__()
        self._detector, self._raw, self._max_detections = detector, raw, max_detections
        # As constants: the converter of TensorFlow 2.16 cannot read the variables of Keras 3.
        network = detector.network
        self._weights = tuple(
            [variable.numpy() for variable in variables]
            for variables in (network.trainable_variables, network.non_trainable_variables)
        )
        spec = tf.TensorSpec([batch_size, *network_hw(detector.config.image_resizer), 3], tf.float32, name=_INPUT)
        self.serve = tf.function(self._serve, input_signature=[spec], autograph=False)

    def _serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        prepared = normalize_image(images, self._detector.config)
        outputs, _ = self._detector.network.stateless_call(*self._weights, prepared, training=False)
        if isinstance(self._detector, CenterNetDetector):
            return _with_most_peaks(self._detector, self._max_detections).detections_of_outputs(outputs)
        assert isinstance(self._detector, SsdDetector)
        scores = convert_scores(self._detector.config.post_processing, outputs["class_logits_BAC"])
        if self._raw:
            return _raw_outputs(self._detector, outputs["offsets_BA4"], scores)
        return _detections(self._detector, self._max_detections, outputs["offsets_BA4"], scores)


def _with_most_peaks(detector: CenterNetDetector, max_detections: int) -> CenterNetDetector:
    params = replace(detector.config.object_center_params, max_box_predictions=max_detections)
    return replace(detector, config=replace(detector.config, object_center_params=params))


def _raw_outputs(detector: SsdDetector, offsets_BA4: tf.Tensor, scores_BAC: tf.Tensor) -> dict[str, tf.Tensor]:
    first_class = int(detector.config.add_background_class)
    anchors_yxyx_rel_A4 = tf.constant(detector.anchors_yxyx_rel_A4.numpy())
    return {
        names.RAW_BOXES: decode_boxes(detector.config.box_coder, offsets_BA4, anchors_yxyx_rel_A4),
        names.RAW_SCORES: scores_BAC[..., first_class:],
    }


def _detections(
    detector: SsdDetector, max_detections: int, offsets_BA4: tf.Tensor, scores_BAC: tf.Tensor
) -> dict[str, tf.Tensor]:
    suppress = _suppression_op(detector.config, max_detections, detector.label_map.num_classes)
    with tf.init_scope():
        anchors_cyxhw_A4 = yxyx_to_cyxhw(detector.anchors_yxyx_rel_A4).numpy()  # the operation takes constants only
    boxes, class_indices, scores, count = suppress(offsets_BA4, scores_BAC, tf.constant(anchors_cyxhw_A4))
    # Looked up as whole numbers, which are not made 8-bit ones. Rows that are padding may hold anything.
    is_row = tf.range(max_detections) < tf.cast(count[0], tf.int32)
    last = detector.label_map.num_classes - 1
    rows = tf.where(is_row, tf.clip_by_value(tf.cast(class_indices, tf.int32), 0, last) + 1, 0)
    class_ids = tf.gather(tf.constant([0, *detector.label_map.class_ids]), rows)
    return {
        names.BOXES: boxes,
        names.SCORES: scores,
        names.CLASSES: tf.cast(class_ids, tf.float32),
        names.NUM_DETECTIONS: count,
    }


def _suppression_op(config: Ssd, max_detections: int, num_classes: int) -> Callable[..., Any]:
    """A function that the converter replaces by TensorFlow Lite's own operation, which decodes and suppresses.

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
        rows = tf.zeros([1, max_detections])  # only the shapes count
        return tf.zeros([1, max_detections, 4]), rows, rows, tf.zeros([1])

    return suppress
