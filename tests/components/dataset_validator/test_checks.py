"""Each check: passes on good data, says what and by how much on bad data, obeys its severity."""

import numpy as np
import pytest

from detloom.components.dataset_validator.checks import run_checks
from detloom.components.dataset_validator.params import CHECKS, DatasetValidatorParams
from detloom.components.dataset_validator.split_statistics import SplitStatistics
from detloom.components.dataset_validator.validate import describe_failures
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
SOUND = ((0.1, 0.1, 0.6, 0.6), 1), ((0.2, 0.2, 0.9, 0.9), 2)


def make(*boxes_and_ids, key="img_7"):
    statistics = SplitStatistics()
    boxes = np.array([box for box, _ in boxes_and_ids], np.float32).reshape(-1, 4)
    ids = np.array([class_id for _, class_id in boxes_and_ids], np.int64)
    statistics.update(key, (100, 100), boxes, ids, frozenset(LABEL_MAP.class_ids))
    return statistics


def run(statistics, check, **params):
    results = run_checks(statistics, LABEL_MAP, DatasetValidatorParams(**params))
    return {result.check: result for result in results}[check]


def test_good_data_passes_every_check():
    results = run_checks({"train": make(*SOUND), "eval": make(*SOUND)}, LABEL_MAP, DatasetValidatorParams())
    assert [(result.check, result.status) for result in results] == [(check, "passed") for check in CHECKS]
    assert describe_failures(results) == ""


def test_a_missing_split_fails_with_its_name():
    result = run({"train": make(*SOUND)}, "examples_per_split")
    assert (result.status, "split 'eval' has 0; at least 1 needed" in result.detail) == ("failed", True)


def test_too_few_examples_fail_with_the_numbers():
    result = run({"train": make(*SOUND), "eval": make()}, "examples_per_split", min_examples_per_split=2)
    assert "'train' has 1, 'eval' has 1; at least 2 needed" in result.detail


def test_unsound_boxes_fail_with_kinds_and_first_records():
    bad = make(((0.5, 0, 0.4, 1), 1), ((0, 0, 1.5, 1), 1), SOUND[0], key="img_9")
    result = run({"train": bad, "eval": make(*SOUND)}, "boxes")
    assert result.detail == "2 of 5 boxes are unsound (inverted 1, outside 0 to 1 1)"
    assert result.record_keys == ("img_9",)


def test_an_id_that_the_label_map_lacks_fails_with_the_id():
    result = run({"train": make(*SOUND, ((0, 0, 1, 1), 9)), "eval": make(*SOUND)}, "class_ids")
    assert result.detail == "class ids that the label map lacks: 9 (1 boxes); it has [1, 2]"
    assert (result.status, result.record_keys) == ("failed", ("img_7",))


def test_a_class_without_a_box_in_train_only_warns_by_default():
    statistics = {"train": make(SOUND[0]), "eval": make(*SOUND)}
    result = run(statistics, "classes_in_train")
    assert (result.status, result.detail) == ("warned", "1 of 2 classes have no box in split 'train': ['dog']")
    assert run(statistics, "classes_in_train", classes_in_train="fail").status == "failed"
    assert run(statistics, "classes_in_train", classes_in_train="off").status == "off"


def test_a_split_without_any_box_fails():
    assert "split 'eval'" in run({"train": make(*SOUND), "eval": make()}, "boxes_in_splits").detail


def test_unreadable_records_fail_with_their_keys():
    broken = make(*SOUND)
    broken.add_unreadable("img_3")
    result = run({"train": broken, "eval": make(*SOUND)}, "records")
    assert (result.detail, result.record_keys) == ("1 of 3 examples cannot be read", ("img_3",))


def test_failures_are_one_sentence_with_the_first_records():
    results = run_checks(
        {"train": make(((0.5, 0, 0.4, 1), 1)), "eval": make(*SOUND)}, LABEL_MAP, DatasetValidatorParams()
    )
    expected = "check boxes: 1 of 3 boxes are unsound (inverted 1), first in records img_7."
    assert describe_failures(results) == expected


def test_parameters_survive_the_round_trip_through_properties():
    params = DatasetValidatorParams(required_splits=("a", "b"), boxes="warn", min_examples_per_split=3)
    properties = params.to_properties()
    assert {type(value) for value in properties.values()} <= {str, int, float}
    assert DatasetValidatorParams.from_properties({**properties, "other": 1}) == params


@pytest.mark.parametrize("change", [{"boxes": "error"}, {"required_splits": ()}, {"min_examples_per_split": 0}])
def test_a_wrong_parameter_is_refused_by_name(change):
    with pytest.raises(InputError, match=f"{next(iter(change))}: got .*allowed"):
        DatasetValidatorParams(**change)
