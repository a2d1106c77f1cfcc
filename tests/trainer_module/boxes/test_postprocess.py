from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression, PostProcessing
from detloom.trainer_module.detectors.one_stage.detector import SsdDetector
from detloom.trainer_module.detectors.one_stage.family import SsdFamily

ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.45], [0.6, 0.6, 1.1, 1.1]])


def test_detections_have_ids_of_the_label_map_and_only_one_class_suppresses_itself(tiny_config, changed):
    nms = "post_processing.batch_non_max_suppression"
    sizes = {f"{nms}.max_detections_per_class": 5, f"{nms}.max_total_detections": 5}
    config = changed(tiny_config.model, {f"{nms}.score_threshold": 0.1, **sizes})
    detector = SsdDetector(SsdFamily(config), LabelMap(((3, "red"), (8, "green"))), None, ANCHORS)
    offsets = tf.zeros([1, 3, 4])  # zero offsets: every box is its anchor
    for logits, classes in (
        ([[2, -9], [1, -9], [0, -9]], [3, 3, 0, 0, 0]),
        ([[2, -9], [-9, 1], [-9, -9]], [3, 8, 0, 0, 0]),
    ):
        raw = {"offsets_BA4": offsets, "class_logits_BAC": tf.constant([logits], tf.float32)}
        outputs = detector.detections(raw)
        np.testing.assert_array_equal(outputs[CLASSES][0], classes)  # 0 pads
        np.testing.assert_allclose(outputs[SCORES][0, 0], 1 / (1 + np.exp(-2)), rtol=1e-5)
        np.testing.assert_allclose(outputs[BOXES][0, 0], [0, 0, 0.5, 0.5], atol=1e-6)


def nms(**settings):
    return BatchNonMaxSuppression(**{"score_threshold": 1e-8, "max_total_detections": 30, **settings})


# Settings of the Object Detection API's post_processing_builder, which made the values in its environment (`make
# peer-odapi`) from 80 random anchors, offsets and logits of four classes; the logits are rounded, so that scores tie.
CASES = {
    "sigmoid": (nms(max_detections_per_class=30), "SIGMOID", 1.0),
    "threshold": (nms(score_threshold=0.55, iou_threshold=0.3, max_detections_per_class=30), "SIGMOID", 1.5),
    "few_of_a_class": (nms(iou_threshold=0.5, max_detections_per_class=3), "SIGMOID", 1.0),
    "all_of_them": (nms(iou_threshold=1.0, max_detections_per_class=400, max_total_detections=400), "SIGMOID", 1.0),
    "identity": (nms(score_threshold=0.0, iou_threshold=0.5, max_detections_per_class=30), "IDENTITY", 2.0),
    "softmax": (nms(iou_threshold=0.5, max_detections_per_class=30), "SOFTMAX", 0.5),
    "soft": (
        nms(score_threshold=1e-3, max_detections_per_class=30, max_total_detections=40, soft_nms_sigma=0.5),
        "SIGMOID",
        1.0,
    ),
    "soft_few_of_a_class": (
        nms(score_threshold=0.2, max_detections_per_class=4, max_total_detections=40, soft_nms_sigma=0.3),
        "SIGMOID",
        1.0,
    ),
    "class_agnostic": (nms(iou_threshold=0.5, max_detections_per_class=2, use_class_agnostic_nms=True), "SIGMOID", 1.0),
    "class_agnostic_soft": (
        nms(score_threshold=1e-3, max_detections_per_class=2, use_class_agnostic_nms=True, soft_nms_sigma=0.5),
        "SIGMOID",
        1.0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_detections_equal_the_reference(tiny_config, changed, case):
    settings, score_converter, logit_scale = CASES[case]
    with np.load(Path(__file__).parents[1] / "reference_values" / "odapi_postprocess.npz") as file:
        inputs = {name: tf.constant(file[name]) for name in ("anchors", "offsets", "logits", "true_hw")}
        boxes, scores, classes, num = (file[f"{case}/{part}"] for part in ("boxes", "scores", "classes", "num"))
    config = changed(
        tiny_config.model,
        {
            "image_resizer": KeepAspectRatioResizer(min_dimension=64, max_dimension=64, pad_to_max_dimension=True),
            "add_background_class": True,
            "post_processing": PostProcessing(
                batch_non_max_suppression=settings, score_converter=score_converter, logit_scale=logit_scale
            ),
        },
    )
    label_map = LabelMap.from_names(str(i) for i in range(4))
    detector = SsdDetector(SsdFamily(config), label_map, None, inputs["anchors"])
    raw = {"offsets_BA4": inputs["offsets"], "class_logits_BAC": inputs["logits"]}
    detect = detector.detections
    if case in ("sigmoid", "soft"):  # the others run eagerly, which takes less time than building a graph
        detect = tf.function(detect, autograph=False)
    outputs = detect(raw, inputs["true_hw"])
    np.testing.assert_array_equal(outputs[NUM_DETECTIONS], num)
    is_row = np.arange(scores.shape[1]) < num[:, None]
    np.testing.assert_allclose(outputs[SCORES], scores * is_row, atol=1e-5)
    np.testing.assert_array_equal(outputs[CLASSES], (classes + 1) * is_row)
    np.testing.assert_allclose(outputs[BOXES], boxes * is_row[..., None], atol=1e-5)
