import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import BOXES, CLASSES, NUM_DETECTIONS, SCORES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNet
from detloom.trainer_module.detectors.centernet.detector import CenterNetDetector
from detloom.trainer_module.detectors.centernet.family import CenterNetFamily
from detloom.trainer_module.detectors.centernet.peaks import find_peaks

FIVE = LabelMap.from_names(["a", "b", "c", "d", "e"])


def decode(config: CenterNet, raw: dict[str, np.ndarray], true_hw: tf.Tensor | None = None) -> dict[str, np.ndarray]:
    outputs = {key: tf.constant(value) for key, value in raw.items()}
    found = CenterNetDetector(CenterNetFamily(config), FIVE, network=None).detections(outputs, true_hw)
    return {key: value.numpy() for key, value in found.items()}


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_detections_equal_the_reference(name, center_net_configs, center_net_raw, center_net_reference):
    found = decode(center_net_configs[name], center_net_raw)
    np.testing.assert_allclose(found[BOXES], center_net_reference[f"{name}_{BOXES}"], atol=1e-5)
    np.testing.assert_allclose(found[SCORES], center_net_reference[f"{name}_{SCORES}"], atol=1e-5)
    assert found[CLASSES].tolist() == (center_net_reference[f"{name}_{CLASSES}"] + 1).tolist()
    assert found[NUM_DETECTIONS].tolist() == center_net_reference[f"{name}_{NUM_DETECTIONS}"].tolist()


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_detections_in_padded_images_equal_the_reference_with_masked_padding(
    name, center_net_configs, center_net_raw, center_net_truth, center_net_reference
):
    found = decode(center_net_configs[name], center_net_raw, center_net_truth["true_hw"])
    for key in (BOXES, SCORES):
        np.testing.assert_allclose(found[key], center_net_reference[f"{name}_padded_{key}"], atol=1e-5)


def test_no_detection_has_its_centre_in_padding(center_net_configs, center_net_raw):
    loud = {**center_net_raw, "class_logits_BHWK": center_net_raw["class_logits_BHWK"].copy()}
    loud["class_logits_BHWK"][:, 20:] += 20  # the image ends with row 10
    found = decode(center_net_configs["resnet50"], loud, tf.constant([[40, 96], [40, 96]]))
    assert found[SCORES].max() < 0.9999
    assert (found[BOXES][..., 0] < 1).all()


def test_a_peak_is_the_largest_of_its_class_around_it():
    scores = tf.constant([0.1, 0.5, 0.4, 0.2, 0.3, 0.3])
    peaks = find_peaks(tf.reshape(scores, [1, 1, 6, 1]), 3)
    np.testing.assert_allclose(tf.reshape(peaks, [-1]).numpy(), [0, 0.5, 0, 0, 0.3, 0.3])


def test_a_box_is_computed_from_cell_size_and_offset(center_net_configs):
    raw = {
        "class_logits_BHWK": np.full((1, 24, 24, 5), -20, np.float32),
        "sizes_BHW2": np.zeros((1, 24, 24, 2), np.float32),
        "offsets_BHW2": np.zeros((1, 24, 24, 2), np.float32),
    }
    raw["class_logits_BHWK"][0, 6, 12, 3] = 0.0
    raw["sizes_BHW2"][0, 6, 12] = [4, 6]
    raw["offsets_BHW2"][0, 6, 12] = [0.5, 0.25]
    found = decode(center_net_configs["resnet50"], raw)
    # Cells (6.5 - 2, 12.25 - 3, 6.5 + 2, 12.25 + 3) of 24.
    np.testing.assert_allclose(found[BOXES][0, 0], np.array([4.5, 9.25, 8.5, 15.25]) / 24, atol=1e-6)
    assert (found[SCORES][0, 0], found[CLASSES][0, 0]) == (0.5, 4)


def test_more_predictions_than_cells_are_padded_with_zeros(center_net_configs):
    params = dataclasses.replace(center_net_configs["resnet50"].object_center_params, max_box_predictions=6)
    config = dataclasses.replace(center_net_configs["resnet50"], object_center_params=params)
    raw = {
        "class_logits_BHWK": np.array([[[[0.0], [-1.0]], [[-1.0], [-2.0]]]], np.float32),
        "sizes_BHW2": np.ones((1, 2, 2, 2), np.float32),
        "offsets_BHW2": np.ones((1, 2, 2, 2), np.float32),
    }
    found = decode(config, raw, tf.constant([[8, 8]]))
    assert found[NUM_DETECTIONS].tolist() == [1]
    assert found[SCORES].tolist() == [[0.5, 0, 0, 0, 0, 0]]
    assert not found[BOXES][0, 1:].any()
    assert not found[CLASSES][0, 1:].any()
