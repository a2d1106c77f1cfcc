"""The values were worked out by hand; the parity tests compare with the reference."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.detections import KEYPOINT_SCORES, KEYPOINTS, NUM_DETECTIONS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.detectors.centernet.detector import CenterNetDetector
from detloom.trainer_module.detectors.centernet.family import CenterNetFamily

CENTER = (0, 3, 3)  # of the only object, with a box of 4 x 4 cells: 1 to 5, scaled by 1.2 it is 0.6 to 5.4
PEAK = 1 / (1 + np.exp(-2))  # sigmoid of the logit 2


def outputs_with(class_index: int = 1, peak: tuple[int, int] = (4, 4)) -> dict[str, np.ndarray]:
    """Return maps of 8 x 8 cells with one object, which predicts the ear at (3.5, 3), and a peak at `peak` + 0.25."""
    found = {
        "class_logits_BHWK": np.full([1, 8, 8, 2], -200, np.float32),
        "sizes_BHW2": np.full([1, 8, 8, 2], 4, np.float32),
        "offsets_BHW2": np.zeros([1, 8, 8, 2], np.float32),
        "keypoint_logits_BHWP": np.full([1, 8, 8, 2], -5, np.float32),
        "keypoint_offsets_BHWQ": np.zeros([1, 8, 8, 4], np.float32),
        "keypoint_regression_BHWQ": np.zeros([1, 8, 8, 4], np.float32),
    }
    found["class_logits_BHWK"][(*CENTER, class_index)] = 3
    found["keypoint_regression_BHWQ"][CENTER] = [0.5, 0, -20, -20]
    found["keypoint_logits_BHWP"][(0, *peak, 0)] = 2
    found["keypoint_offsets_BHWQ"][(0, *peak)] = [0.25, 0.25, 9, 9]
    return found


@pytest.fixture
def decode(center_net_configs, keypoint_task):
    """Return points in cells, [M, P, 2], and scores [M, P]."""

    def call(outputs, true_hw=(32, 32), **changes):
        task = dataclasses.replace(keypoint_task, **changes)
        config = dataclasses.replace(center_net_configs["resnet50"], keypoint_estimation_task=task)
        label_map = LabelMap.from_names(["dog", "cat"])
        detector = CenterNetDetector(CenterNetFamily(config), label_map, network=None, keypoint_class_index=1)
        tensors = {name: tf.constant(value) for name, value in outputs.items()}
        found = detector.detections(tensors, tf.constant([true_hw]))
        assert found[KEYPOINTS].shape == (1, 20, 2, 2)
        assert found[KEYPOINT_SCORES].shape == (1, 20, 2)
        assert found[NUM_DETECTIONS].numpy().tolist() == [1]
        return found[KEYPOINTS][0].numpy() * np.array(true_hw) / 4, found[KEYPOINT_SCORES][0].numpy()

    return call


def test_a_keypoint_is_moved_to_a_near_peak(decode):
    points, scores = decode(outputs_with(), candidate_search_scale=0.31)  # radius 0.31 * 4.8 = 1.49
    assert points[0, 0] == pytest.approx([4.25, 4.25])
    assert scores[0, 0] == pytest.approx(PEAK)


@pytest.mark.parametrize(
    ("peak", "settings"),
    [
        ((4, 4), {}),  # the distance is 1.46, the radius 0.3 * 4.8 = 1.44
        ((6, 3), {"candidate_search_scale": 9.0}),  # outside of the scaled box
        ((4, 4), {"candidate_search_scale": 0.31, "keypoint_candidate_score_threshold": 0.9}),  # weak
    ],
)
def test_other_peaks_are_ignored(decode, peak, settings):
    points, scores = decode(outputs_with(peak=peak), **settings)
    assert points[0, 0] == pytest.approx([3.5, 3])
    assert scores[0, 0] == pytest.approx(0.1)


def test_keypoints_outside_the_image_are_clipped_only_on_request(decode):
    points, scores = decode(outputs_with())
    assert points[0, 1] == pytest.approx([-17, -17])
    assert scores[0, 1] == pytest.approx(0.1)
    points, scores = decode(outputs_with(), clip_out_of_frame_keypoints=True)
    assert points[0, 1].tolist() == [0, 0]
    assert scores[0, 1] == 0


def test_all_keypoints_can_share_the_offsets(decode):
    shared = outputs_with()
    shared["keypoint_offsets_BHWQ"] = shared["keypoint_offsets_BHWQ"][..., :2]
    points, _ = decode(shared, candidate_search_scale=0.31)
    assert points[0, 0] == pytest.approx([4.25, 4.25])


def test_keypoints_are_relative_to_the_image_without_padding(decode):
    points, _ = decode(outputs_with(), true_hw=(24, 32))
    assert points[0, 0] == pytest.approx([3.5, 3])


def test_rows_of_other_classes_and_padding_are_zeros(decode):
    points, scores = decode(outputs_with(class_index=0))
    assert not points.any()
    assert not scores.any()
    points, scores = decode(outputs_with())
    assert not points[1:].any()
    assert not scores[1:].any()
