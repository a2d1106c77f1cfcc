import numpy as np
import pytest

from detloom.components.evaluator.checks import check_gates, check_truth, find_unusable, say_difference
from detloom.components.evaluator.inference import ImageRecord
from detloom.schemas.errors import InputError
from detloom.schemas.gates_config import Gates, MetricChange, MetricFloor
from detloom.schemas.label_map import LabelMap

CAT_DOG = LabelMap.from_names(["cat", "dog"])


def make_record(class_ids=(1,), found_ids=(1,), boxes=((0.0, 0.0, 1.0, 1.0),), scores=(0.5,)):
    rows = np.array(boxes, np.float32), np.array(scores, np.float32), np.array(found_ids)
    truth = np.zeros((len(class_ids), 4), np.float32)
    return ImageRecord(source_id="a", boxes_yxyx_rel=truth, class_ids=np.array(class_ids), found={"candidate": rows})


def test_gates_on_classes_that_there_are():
    check_gates(Gates(floors=(MetricFloor(metric="AP50/dog", min=0.5),)), CAT_DOG)


@pytest.mark.parametrize(
    "gates",
    [
        Gates(floors=(MetricFloor(metric="AP/cta", min=0.5),)),
        Gates(changes=(MetricChange(metric="AP/cta", min_change=0),)),
    ],
)
def test_a_gate_on_another_class_is_refused(gates):
    with pytest.raises(InputError, match=r"got the metric 'AP/cta', allowed: classes .* has 2\. Did you mean 'cat'"):
        check_gates(gates, CAT_DOG)


def test_objects_that_the_label_map_does_not_know_are_refused_by_record():
    check_truth([make_record()], CAT_DOG)
    with pytest.raises(InputError, match=r"record 'a': got the class id 7, allowed: the 2 class ids \(1 to 2\)"):
        check_truth([make_record(class_ids=(1, 7))], CAT_DOG)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"found_ids": (9,)}, "in record 'a' it found the class id 9, which is not among the 2 class ids (1 to 2)"),
        ({"scores": (float("nan"),)}, "in record 'a' it found a box or score that is not finite"),
        ({"boxes": ((0.0, 0.0, float("inf"), 1.0),)}, "in record 'a' it found a box or score that is not finite"),
    ],
)
def test_answers_that_cannot_be_measured(changes, problem):
    found = find_unusable([make_record(**changes)], "candidate", CAT_DOG)
    assert found == problem or found.startswith(problem)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["cat", "dog"], None),
        (["cat"], "it has other classes (id 2: none, of the candidate: dog)"),
        (["dog", "cat"], "it has other classes (id 1: dog, of the candidate: cat, and 1 more)"),
        (["cat", "dog", "\x1b[31m"], "it has other classes (id 3: "),
    ],
)
def test_the_first_class_that_differs_is_named(names, sentence):
    found = say_difference(LabelMap.from_names(names), CAT_DOG)
    assert found == sentence or found.startswith(sentence)
    assert "\x1b" not in (found or "")
