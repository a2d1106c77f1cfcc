import re

import numpy as np
import pytest

from detloom.components.evaluator.image_record import ImageRecord
from detloom.components.evaluator.model_output_checks import check_truth, find_contract_problem, find_unusable
from detloom.components.evaluator.record_table import RecordTable
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_images import ImageDetections

CAT_DOG = LabelMap.from_names(["cat", "dog"])


def make_record(class_ids=(1,), found_ids=(1,), boxes=((0.0, 0.0, 1.0, 1.0),), scores=(0.5,), point=0.5):
    rows = {
        names.KEYPOINTS: np.full((len(found_ids), 3, 2), point, np.float32),
        names.BOXES: np.array(boxes, np.float32),
        names.SCORES: np.array(scores, np.float32),
        names.CLASSES: np.array(found_ids),
    }
    num_boxes = len(class_ids)
    truth = {
        "boxes_yxyx_rel": np.zeros((num_boxes, 4), np.float32),
        "class_ids": np.array(class_ids),
        "is_crowd": np.zeros(num_boxes, bool),
    }
    return ImageRecord(source_id="a", truth=truth, found={"candidate": rows})


def test_objects_of_unknown_classes_are_refused_with_the_record():
    check_truth(RecordTable.of([make_record()]), CAT_DOG)
    with pytest.raises(InputError, match=r"record 'a': has the class id 7, .* the 2 class ids \(1 to 2\)"):
        check_truth(RecordTable.of([make_record(class_ids=(1, 7))]), CAT_DOG)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"found_ids": (9,)}, r"record 'a' .* class id 9, .* 2 class ids \(1 to 2\)"),
        ({"scores": (float("nan"),)}, "record 'a' .* not finite"),
        ({"boxes": ((0.0, 0.0, float("inf"), 1.0),)}, "record 'a' .* not finite"),
        ({"point": float("nan")}, "record 'a' .* keypoint that is not finite"),
    ],
)
def test_unusable_model_outputs_are_found(changes, problem):
    found = find_unusable(RecordTable.of([make_record(**changes)]), "candidate", CAT_DOG)
    assert found is None if problem is None else re.search(problem, found)


def make_found(boxes, scores):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    return ImageDetections(7, boxes, np.array(scores, np.float32), np.ones(len(boxes), int))


GOOD = make_found([[0, 0, 0.5, 0.5], [0.1, 0.1, 1, 1.000001]], [0.9, 0.9])


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (make_found([[0, 0, 1, 1]], [1.5]), "scores from 1.5 to 1.5, allowed: 0 to 1"),
        (make_found([[0, 0, 1, 1]], [-0.5]), "scores from -0.5 to -0.5, allowed: 0 to 1"),
        (make_found([[0, 0, 1, 1]] * 2, [0.5, 0.6]), "not sorted"),
        (make_found([[0, 0, 320, 320]], [0.5]), "box corners from 0 to 320, allowed: 0 to 1"),
        (make_found([[0.5, 0, 0.4, 1]], [0.5]), "below its minimum"),
    ],
)
def test_invalid_detections_violate_the_contract(good_model_uri, found, problem):
    folder = str(good_model_uri / "Format-Serving")
    assert find_contract_problem(folder, [GOOD, make_found([], [])]) is None
    sentence = find_contract_problem(folder, [GOOD, found])
    assert "image 7" in sentence
    assert problem in sentence


def test_a_missing_signature_violates_the_contract(copy_model, tmp_path):
    problem = find_contract_problem(str(copy_model(tmp_path / "half", without=(names.SIGNATURE_IMAGES,))), [])
    assert "half: " in problem
    assert "'serving_default'" in problem
    assert not problem.endswith(".")
