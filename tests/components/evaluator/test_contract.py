import numpy as np
import pytest

from detloom.components.evaluator.contract import find_contract_problem
from detloom.schemas import detections as names
from detloom.trainer_module.coco_metrics import ImageDetections


def make_found(boxes, scores):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageDetections(7, boxes, np.array(scores, np.float32), np.ones(len(boxes), int))


@pytest.fixture
def model_dir(good_model_uri):
    return str(good_model_uri / "Format-Serving")


GOOD = make_found([[0, 0, 0.5, 0.5], [0.1, 0.1, 1, 1.000001]], [0.9, 0.9])


@pytest.mark.parametrize("found", [GOOD, make_found([], [])])
def test_a_model_that_keeps_its_contract(model_dir, found):
    assert find_contract_problem(model_dir, [found]) is None


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (make_found([[0, 0, 1, 1]], [1.5]), "have scores from 1.5 to 1.5, allowed: 0 to 1"),
        (make_found([[0, 0, 1, 1]], [-0.5]), "have scores from -0.5 to -0.5, allowed: 0 to 1"),
        (make_found([[0, 0, 1, 1]] * 2, [0.5, 0.6]), "are not sorted by descending score"),
        (make_found([[0, 0, 320, 320]], [0.5]), "have box corners from 0 to 320, allowed: 0 to 1"),
        (make_found([[0.5, 0, 0.4, 1]], [0.5]), "have a box whose end lies before its beginning"),
    ],
)
def test_detections_that_break_it(model_dir, found, problem):
    assert find_contract_problem(model_dir, [GOOD, found]) == f"the model's detections in image 7 {problem}"


def test_a_missing_signature_breaks_it(write_tiny_detector, tmp_path):
    signatures = (names.SIGNATURE_EXAMPLES, names.SIGNATURE_ENCODED)
    folder = write_tiny_detector(tmp_path / "half", signatures=signatures)
    problem = find_contract_problem(str(folder), [])
    assert "half: the SavedModel has no signature 'serving_default'" in problem
    assert not problem.endswith(".")
