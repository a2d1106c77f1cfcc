"""Each check passes on good data, reports numbers and records on bad data, and obeys severity and threshold."""

import dataclasses

import numpy as np
import pytest

from detloom.components.dataset_validator.checks import run_checks
from detloom.components.dataset_validator.drift import describe_drift
from detloom.components.dataset_validator.findings import CheckEvidence, format_apart
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report.build_report import summarize
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.dataset_validator.statistics.split_statistics import BoxLimits, ImageLabels, SplitStatistics
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, SsdAnchorGenerator
from detloom.schemas.model.network import FixedShapeResizer
from detloom.schemas.run_file.data_checks import CHECK_NAMES, DataChecks

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
MODEL = ModelInput(
    image_resizer=FixedShapeResizer(height=100, width=100),
    anchor_generator=MultiscaleAnchorGenerator(aspect_ratios=(1.0,)),
    max_boxes=3,
)
VALID = ((0.1, 0.1, 0.6, 0.6), 1), ((0.2, 0.2, 0.9, 0.9), 2)
TINY = ((0.5, 0.5, 0.52, 0.9), 1)  # 2 px high
NO_DUPLICATES = {"across_by_split": {}, "within_by_split": {}, "groups": [], "is_complete": True}
ANCHORS = {"num_boxes": 4, "recall_at_50": 0.75, "mean_best_iou": 0.6}


def make(*boxes_and_ids, key="img_7", into=None):
    """Statistics with one image of 100x100 px."""
    statistics = into or SplitStatistics()
    labels = ImageLabels(
        record_key=key,
        image_hw=(100, 100),
        boxes_yxyx_rel_N4=np.array([box for box, _ in boxes_and_ids], np.float64).reshape(-1, 4),
        class_ids_N=np.array([class_id for _, class_id in boxes_and_ids], np.int64),
        is_crowd_N=np.zeros(len(boxes_and_ids), bool),
    )
    statistics.update(labels, frozenset(LABEL_MAP.class_ids), BoxLimits(model_input=MODEL))
    return statistics


def run(statistics, *, checks=None, exact=None, near=None, drift=None, anchors=None, model=None, **params):
    """Return the results by check name; `checks` maps a check to changed settings."""
    changed = {
        name: dataclasses.replace(getattr(DataChecks(), name), **changes) for name, changes in (checks or {}).items()
    }
    evidence = CheckEvidence(
        statistics=statistics,
        label_map=LABEL_MAP,
        params=DatasetValidatorParams(checks=DataChecks(**changed), model_input=model, **params),
        exact=exact,
        near=near,
        drift=drift or describe_drift({}, "train", "no earlier span"),
        anchors=anchors,
    )
    return {result.check: result for result in run_checks(evidence)}


def assert_contains(sentence, *parts):
    assert [part for part in parts if part not in sentence] == [], sentence


def test_good_data_pass_every_applicable_check():
    statistics = {"train": make(*VALID), "eval": make(*VALID)}
    results = run(
        statistics, exact=NO_DUPLICATES, near=NO_DUPLICATES, model=MODEL, anchors=ANCHORS | {"recall_at_50": 1.0}
    )
    assert tuple(results) == CHECK_NAMES
    statuses = {name: result.status for name, result in results.items() if result.status != "passed"}
    assert statuses == {"class_drift": "skipped", "size_drift": "skipped"}
    assert summarize(list(results.values())) == ("passed", "Of 21 checks, 19 passed, 2 skipped.")


def test_checks_are_skipped_with_a_reason_if_their_input_is_missing():
    results = run({"train": make(*VALID), "eval": make(*VALID)})
    for check in ("tiny_boxes", "huge_boxes", "crowded_images", "anchor_recall"):
        assert results[check].status == "skipped"
        assert "model" in results[check].sentence
    assert results["exact_duplicates"].status == "skipped"
    assert "near_duplicates is off" in results["near_duplicates_within_split"].sentence


def test_a_missing_split_fails():
    result = run({"train": make(*VALID)})["examples_per_split"]
    assert (result.status, result.value) == ("failed", 0)
    assert_contains(result.sentence, "'train' has 1", "'eval' has 0", "at least 1")


def test_a_count_equal_to_its_threshold_passes():
    statistics = {"train": make(*VALID), "eval": make(*VALID)}
    assert run(statistics, checks={"examples_per_split": {"threshold": 1.0}})["examples_per_split"].status == "passed"
    assert run(statistics, checks={"examples_per_split": {"threshold": 2.0}})["examples_per_split"].status == "failed"


def test_invalid_boxes_fail_with_problems_share_and_first_records():
    bad = make(((0.5, 0, 0.4, 1), 1), ((0, 0, 1.5, 1), 1), VALID[0], key="img_9")
    result = run({"train": bad, "eval": make(*VALID)})["boxes"]
    assert_contains(result.sentence, "2 of 5", "inverted 1", "outside 0 to 1 1", "40 %", "at most 0 %")
    assert (result.status, result.value, result.record_keys) == ("failed", 0.4, ("train/img_9",))


def test_a_share_equal_to_its_threshold_passes():
    bad = make(((0.5, 0, 0.4, 1), 1), VALID[0])
    assert run({"train": bad, "eval": make()}, checks={"boxes": {"threshold": 0.5}})["boxes"].status == "passed"
    assert run({"train": bad, "eval": make()}, checks={"boxes": {"threshold": 0.49}})["boxes"].status == "failed"


def test_the_severity_selects_failure_warning_or_no_check():
    statistics = {"train": make(((0.5, 0, 0.4, 1), 1)), "eval": make(*VALID)}
    for severity, status in (("fail", "failed"), ("warn", "warned"), ("off", "off")):
        assert run(statistics, checks={"boxes": {"severity": severity}})["boxes"].status == status
    result = run(statistics, checks={"boxes": {"severity": "off"}})["boxes"]
    assert (result.value, result.sentence, result.record_keys) == (None, "not checked", ())


def test_unknown_class_ids_fail_with_the_ids():
    result = run({"train": make(*VALID, ((0, 0, 1, 1), 9)), "eval": make(*VALID)})["class_ids"]
    assert_contains(result.sentence, "1 of 5", ": 9: 20 %", "at most 0 %")
    assert (result.status, result.record_keys) == ("failed", ("train/img_7",))


def test_unreadable_records_fail_with_their_keys():
    broken = make(*VALID)
    broken.add_unreadable("img_3")
    result = run({"train": broken, "eval": make(*VALID)})["records"]
    assert_contains(result.sentence, "1 of 3", "33.3 %", "at most 0 %")
    assert result.record_keys == ("train/img_3",)


def test_a_split_without_any_label_only_warns():
    result = run({"train": make(*VALID), "eval": make()})["boxes_in_splits"]
    assert result.status == "warned"
    assert_contains(result.sentence, "'train' has 2", "'eval' has 0", "at least 1")


def test_a_training_split_without_any_label_fails():
    assert run({"train": make(), "eval": make(*VALID)})["boxes_in_splits"].status == "failed"


def test_a_split_with_some_labels_but_too_few_fails():
    checks = {"boxes_in_splits": {"threshold": 2.0}}
    assert run({"train": make(*VALID), "eval": make(VALID[0])}, checks=checks)["boxes_in_splits"].status == "failed"


def test_a_split_without_examples_fails():
    assert run({"train": make(*VALID)})["boxes_in_splits"].status == "failed"


def test_images_that_cannot_be_decoded_fail_with_their_keys():
    train = make(*VALID)
    train.add_undecodable("img_7", is_too_large=False)
    result = run({"train": train, "eval": make(*VALID)})["undecodable_images"]
    assert_contains(result.sentence, "1 of 2", "50 %", "at most 0 %")
    assert (result.status, result.record_keys) == ("failed", ("train/img_7",))


def test_an_image_that_is_too_large_is_not_counted_as_undecodable():
    train = make(*VALID)
    train.add_undecodable("img_7", is_too_large=True)
    assert run({"train": train, "eval": make(*VALID)})["undecodable_images"].value == 0


def test_damaged_shards_fail_for_any_threshold():
    train = make(*VALID)
    train.num_damaged_shards = 1
    result = run({"train": train, "eval": make(*VALID)}, checks={"records": {"threshold": 1.0}})["records"]
    assert (result.status, result.value) == ("failed", 0.0)
    assert "split 'train': 1 shards are damaged" in result.sentence


def test_a_value_close_to_the_threshold_is_formatted_differently():
    assert format_apart(0.17612 / 100, 0.176 / 100, "share") == ("0.1761 %", "0.176 %")
    assert format_apart(0.1004, 0.1, "distance") == ("0.1004", "0.1")
    assert format_apart(0.25, 0.25, "share") == ("25 %", "25 %")


def test_a_class_without_training_boxes_is_named():
    result = run({"train": make(VALID[0]), "eval": make(*VALID)})["classes_in_train"]
    assert (result.status, result.value) == ("warned", 0)
    assert_contains(result.sentence, "1 of 2", "'train'", "'dog' 0", "at least 1")


def test_a_class_missing_from_an_evaluation_split_is_named():
    result = run({"train": make(*VALID), "eval": make(VALID[0])})["classes_in_splits"]
    assert result.status == "warned"
    assert_contains(result.sentence, "1 of 2", "'eval/dog' 0", "at least 1")


def test_an_untrained_class_may_be_missing_from_evaluation_splits():
    assert run({"train": make(VALID[0]), "eval": make(VALID[0])})["classes_in_splits"].status == "passed"


def test_imbalance_is_the_ratio_of_most_to_fewest_boxes():
    train = make(VALID[0], VALID[0], VALID[0], VALID[1])
    result = run({"train": train, "eval": make(*VALID)}, checks={"class_balance": {"threshold": 2.0}})["class_balance"]
    assert (result.status, result.value) == ("warned", 3.0)
    assert_contains(result.sentence, "3 times", "'cat' 3 boxes, 'dog' 1", "at most 2")


def test_empty_images_are_measured_in_the_training_split():
    train = make(into=make(into=make(*VALID)))
    result = run({"train": train, "eval": make()})["empty_images"]
    assert_contains(result.sentence, "2 of 3", "'train'", "66.7 %", "at most 50 %")


def test_an_image_with_too_many_boxes_for_training_is_found():
    train = make(*VALID, *VALID, key="full")
    result = run({"train": train, "eval": make(*VALID)}, model=MODEL)["crowded_images"]
    assert_contains(result.sentence, "1 of 1", "'train'", "more than 3 boxes", "100 %", "at most 0 %")
    assert result.record_keys == ("train/full",)


def test_the_worst_split_determines_the_share_of_tiny_boxes():
    statistics = {"train": make(*VALID, *VALID), "eval": make(TINY, *VALID, key="small")}
    result = run(statistics, model=MODEL)["tiny_boxes"]
    assert result.value == pytest.approx(1 / 3)
    assert_contains(result.sentence, "below 4 px", "1 of 3 in split 'eval' (33.3 %)", "at most 5 %")
    assert result.record_keys == ("eval/small",)


def test_duplicate_boxes_are_a_share():
    result = run({"train": make(VALID[0], VALID[0]), "eval": make(*VALID)})["overlapping_boxes"]
    assert (result.status, result.value) == ("warned", 0.5)


def test_leakage_fails_with_the_records_of_the_other_split():
    group = {
        "size_by_split": {"train": 1, "eval": 1},
        "members": [{"split": "train", "record_key": "a"}, {"split": "eval", "record_key": "b"}],
    }
    leaked = NO_DUPLICATES | {"across_by_split": {"eval": 1}, "groups": [group]}
    result = run({"train": make(*VALID), "eval": make(*VALID)}, exact=leaked)["exact_duplicates"]
    assert_contains(result.sentence, "'train'", "1 of 1 in split 'eval' (100 %)", "at most 0 %", "data.split_by_ratio")
    assert (result.status, result.record_keys) == ("failed", ("eval/b",))
    passed = run({"train": make(*VALID), "eval": make(*VALID)}, exact=NO_DUPLICATES)["exact_duplicates"]
    assert (passed.status, "data.split_by_ratio" in passed.sentence) == ("passed", False)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_number_of_duplicates_that_is_a_lower_bound_is_described_as_one(is_complete):
    near = NO_DUPLICATES | {"is_complete": is_complete}
    results = run({"train": make(*VALID), "eval": make(*VALID)}, near=near)
    for name in ("near_duplicates", "near_duplicates_within_split"):
        assert (results[name].status, "not all pairs" in results[name].sentence) == ("passed", not is_complete)


def test_repeated_images_in_a_split_warn():
    group = {"size_by_split": {"train": 2}, "members": [{"split": "train", "record_key": key} for key in ("a", "b")]}
    repeated = NO_DUPLICATES | {"within_by_split": {"train": 1}, "groups": [group]}
    statistics = {"train": make(*VALID, into=make(*VALID)), "eval": make(*VALID)}
    result = run(statistics, near=repeated, exact=repeated)["exact_duplicates_within_split"]
    assert (result.status, result.value, result.record_keys) == ("warned", 0.5, ("train/a", "train/b"))


def test_leakage_is_skipped_for_a_single_split():
    results = run({"train": make(*VALID)}, exact=NO_DUPLICATES, required_splits=("train",))
    assert (results["exact_duplicates"].status, results["classes_in_splits"].status) == ("skipped", "skipped")


def test_drift_names_distance_chance_span_and_threshold():
    compared = {"class_distance": 0.25, "class_chance": 0.01, "size_distance": 0.05, "size_chance": 0.02}
    drift = {"previous_span": 3, "reason": "", "splits": {"train": compared}}
    results = run({"train": make(*VALID), "eval": make(*VALID)}, drift=drift)
    assert_contains(results["class_drift"].sentence, "'train'", "0.250", "span 3", "0.010", "at most 0.100")
    assert (results["class_drift"].status, results["size_drift"].status) == ("warned", "passed")


def test_low_anchor_recall_warns():
    result = run({"train": make(*VALID), "eval": make(*VALID)}, model=MODEL, anchors=ANCHORS)["anchor_recall"]
    assert result.status == "warned"
    assert_contains(result.sentence, "75 % of 4 boxes", "'train'", "0.60", "at least 80 %")


def test_unsupported_anchors_are_skipped():
    model = dataclasses.replace(MODEL, anchor_generator=SsdAnchorGenerator(aspect_ratios=(1.0,)))
    result = run({"train": make(*VALID), "eval": make(*VALID)}, model=model)["anchor_recall"]
    assert result.status == "skipped"
    assert "SsdAnchorGenerator" in result.sentence


def test_the_verdict_names_what_failed_and_what_warned():
    bad = make(((0.5, 0, 0.4, 1), 1))
    verdict, sentence = summarize(list(run({"train": bad, "eval": make(*VALID)}).values()))
    assert verdict == "failed"
    assert_contains(sentence, "21 checks", "1 failed (boxes)", "1 warned (classes_in_train)")


def test_parameters_survive_the_round_trip_through_properties():
    checks = DataChecks(boxes=dataclasses.replace(DataChecks().boxes, severity="warn", threshold=0.25))
    params = DatasetValidatorParams(required_splits=("a", "b"), checks=checks, model_input=MODEL, max_pixels=7)
    properties = params.to_properties()
    assert {type(value) for value in properties.values()} <= {str, int, float}
    assert DatasetValidatorParams.from_properties({**properties, "other": 1}) == params
    assert DatasetValidatorParams.from_properties(DatasetValidatorParams().to_properties()).model_input is None


@pytest.mark.parametrize("change", [{"required_splits": ()}, {"required_splits": ("",)}, {"max_pixels": 0}])
def test_an_invalid_parameter_is_refused_with_its_name(change):
    with pytest.raises(InputError, match=f"{next(iter(change))}: got .*allowed"):
        DatasetValidatorParams(**change)
