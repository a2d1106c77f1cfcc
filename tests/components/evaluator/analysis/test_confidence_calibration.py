import numpy as np
import pytest

from detloom.components.evaluator.analysis.confidence_calibration import measure_calibration
from detloom.trainer_module.evaluation.matches import match_detections


def test_calibration_matches_values_by_hand(make_image, label_map):
    # Bin from 0.9: one true of two, mean score 0.95. Bin from 0.3: one false with 0.35. On the crowd: ignored.
    truth, found = make_image(
        1,
        truth=[(1, 0, 0, 20, 20), (3, 50, 50, 99, 99)],
        found=[
            (1, 0, 0, 20, 20, 1.0),
            (1, 0, 60, 20, 80, 0.9),
            (1, 60, 0, 80, 20, 0.35),
            (3, 60, 60, 70, 70, 0.6),
        ],
        crowds=[1],
    )
    calibration = measure_calibration(match_detections([truth], [found], label_map))
    highest, middle = calibration.bins[9], calibration.bins[3]
    assert (highest.num_detections, highest.mean_score, highest.share_true) == (2, pytest.approx(0.95), 0.5)
    assert (middle.num_detections, middle.mean_score, middle.share_true) == (1, 0.35, 0)
    assert calibration.bins[6].share_true is None
    # 2/3 of the detections are off by 0.45, 1/3 by 0.35.
    assert calibration.expected_error == pytest.approx((2 * 0.45 + 0.35) / 3)
    assert calibration.num_detections == 3


def test_a_score_on_an_edge_is_in_the_upper_bin(make_image, label_map):
    truth, found = make_image(1, found=[(1, 0, 0, 20, 20, 0.7)])
    bins = measure_calibration(match_detections([truth], [found], label_map)).bins
    assert [each.low for each in bins if each.num_detections] == [0.7]


def test_every_detection_is_in_one_bin(make_split, label_map):
    truth, found = make_split(0, crowd_share=0)
    matches = match_detections(truth, found, label_map)
    counts = [each.num_detections for each in measure_calibration(matches).bins]
    assert sum(counts) == len(matches.found)
    assert np.histogram(matches.scores, np.arange(11) / 10)[0].tolist() == counts
