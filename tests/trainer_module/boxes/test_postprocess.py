from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import BatchNonMaxSuppression, PostProcessing
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.detector import SsdDetector
from detloom.trainer_module.detectors.one_stage.family import SsdFamily

ANCHORS = tf.constant([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5, 0.45], [0.6, 0.6, 1.1, 1.1]])


@pytest.fixture
def detect(tiny_config, changed):
    def run(logits, **settings):
        nms = "post_processing.batch_non_max_suppression"
        sizes = {f"{nms}.max_detections_per_class": 5, f"{nms}.max_total_detections": 5}
        config = changed(tiny_config.model, {f"{nms}.score_threshold": 0.1, **sizes, **settings})
        offsets = tf.zeros([1, 3, 4])  # zero offsets: every box is its anchor
        detector = SsdDetector(SsdFamily(config), LabelMap(((3, "red"), (8, "green"))), None, ANCHORS)
        raw = {"offsets_BA4": offsets, "class_logits_BAC": tf.constant([logits], tf.float32)}
        outputs = tf.function(detector.detections)(raw)
        return {name: value[0].numpy() for name, value in outputs.items()}

    return run


def test_the_weaker_of_two_overlapping_boxes_of_one_class_is_suppressed(detect):
    outputs = detect([[2, -9], [1, -9], [0, -9]])
    assert outputs[NUM_DETECTIONS] == 2
    np.testing.assert_allclose(outputs[SCORES][:2], [1 / (1 + np.exp(-2)), 0.5], rtol=1e-5)
    np.testing.assert_allclose(outputs[BOXES][0], [0, 0, 0.5, 0.5], atol=1e-6)


def test_boxes_of_different_classes_do_not_suppress_each_other(detect):
    outputs = detect([[2, -9], [-9, 1], [-9, -9]])
    np.testing.assert_array_equal(outputs[CLASSES], [3, 8, 0, 0, 0])  # label-map ids; 0 pads


def test_boxes_are_clipped_to_the_image(detect):
    outputs = detect([[-9, -9], [-9, -9], [3, -9]])
    np.testing.assert_allclose(outputs[BOXES][0], [0.6, 0.6, 1.0, 1.0], atol=1e-6)


def test_scores_below_the_threshold_are_not_detections(detect):
    outputs = detect([[-9, -9]] * 3)
    assert outputs[NUM_DETECTIONS] == 0
    assert not outputs[SCORES].any()


def test_the_background_channel_is_never_a_detection(detect):
    outputs = detect([[9, -9, 2], [9, -9, -9], [9, -9, -9]], add_background_class=True)
    np.testing.assert_array_equal(outputs[CLASSES], [8, 0, 0, 0, 0])


def test_the_logit_scale_divides_logits(detect):
    outputs = detect([[3, -9], [-9, -9], [-9, -9]], **{"post_processing.logit_scale": 1.5})
    np.testing.assert_allclose(outputs[SCORES][0], 1 / (1 + np.exp(-2)), rtol=1e-5)


def nms(**settings):
    return BatchNonMaxSuppression(**{"score_threshold": 1e-8, "max_total_detections": 30, **settings})


# As in benchmarks/peers/odapi_postprocess.py, which says how the values were made.
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
    outputs = tf.function(detector.detections, autograph=False)(raw, inputs["true_hw"])
    np.testing.assert_array_equal(outputs[NUM_DETECTIONS], num)
    is_row = np.arange(scores.shape[1]) < num[:, None]
    np.testing.assert_allclose(outputs[SCORES], scores * is_row, atol=1e-5)
    np.testing.assert_array_equal(outputs[CLASSES], (classes + 1) * is_row)
    np.testing.assert_allclose(outputs[BOXES], boxes * is_row[..., None], atol=1e-5)


@pytest.mark.parametrize(
    ("preset", "folder"),
    [
        ("ssd_mobilenet_v2_fpnlite_320x320", "ssd_mobilenet_v2_fpnlite_320x320"),
        ("efficientdet_d0", "ssd_efficientdet_d0_512x512"),
    ],
)
def test_detections_from_raw_outputs_of_the_reference_models_equal_theirs(reference_dir, preset, folder):
    raw, expected = (np.load(reference_dir / folder / name) for name in ("predictions_eval.npz", "detections.npz"))
    true_hw = np.load(reference_dir / folder / "preprocessed.npz")["true_image_shapes"][:, :2]
    label_map = LabelMap.from_names(str(i) for i in range(90))
    family = SsdFamily(find_preset(preset).config.model)
    detector = SsdDetector(family, label_map, None, tf.constant(raw["anchors"]))
    outputs = {
        "offsets_BA4": tf.constant(raw["box_encodings"]),
        "class_logits_BAC": tf.constant(raw["class_predictions_with_background"]),
    }
    outputs = tf.function(detector.detections, autograph=False)(outputs, tf.constant(true_hw))
    for name in (BOXES, SCORES, NUM_DETECTIONS):
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)
    np.testing.assert_array_equal(outputs[CLASSES], expected[CLASSES] + 1)


def test_boxes_are_relative_to_the_image_without_its_padding(tiny_config, changed):
    """32 of 64 rows are image: the box to row 0.25 * 64 = 16 ends in its middle, the box to row 38.4 at its edge."""
    resizer = KeepAspectRatioResizer(min_dimension=32, max_dimension=64, pad_to_max_dimension=True)
    config = changed(tiny_config.model, {"image_resizer": resizer})
    anchors = tf.constant([[0.0, 0.0, 0.25, 0.5], [0.3, 0.0, 0.6, 1.0], [0.6, 0.0, 0.9, 1.0]])
    detector = SsdDetector(SsdFamily(config), LabelMap.from_names(["red"]), None, anchors)
    raw = {"offsets_BA4": tf.zeros([1, 3, 4]), "class_logits_BAC": tf.constant([[[2.0], [1.0], [3.0]]])}
    outputs = detector.detections(raw, tf.constant([[32, 64]]))
    assert outputs[NUM_DETECTIONS] == 2  # the third lies in the padding
    np.testing.assert_allclose(outputs[BOXES][0, :2], [[0.0, 0.0, 0.5, 0.5], [0.6, 0.0, 1.0, 1.0]], atol=1e-6)
