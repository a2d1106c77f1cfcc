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
SSD_MODEL = dataclasses.replace(MODEL, anchor_generator=SsdAnchorGenerator(aspect_ratios=(1.0,)))
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
        duplicates={"exact": exact, "near": near},
        drift=drift or describe_drift({}, "train", "no earlier span"),
        anchors=anchors,
    )
    return {result.check: result for result in run_checks(evidence)}


def test_good_data_pass_every_applicable_check():
    statistics = {"train": GOOD, "eval": GOOD}
    results = run(
        statistics, exact=NO_DUPLICATES, near=NO_DUPLICATES, model=MODEL, anchors=ANCHORS | {"recall_at_50": 1.0}
    )
    assert tuple(results) == CHECK_NAMES
    statuses = {name: result.status for name, result in results.items() if result.status != "passed"}
    assert statuses == {"class_drift": "skipped", "size_drift": "skipped"}
    assert summarize(list(results.values())) == ("passed", "Of 21 checks, 19 passed, 2 skipped.")


def test_checks_are_skipped_with_a_reason_if_their_input_is_missing():
    results = run({"train": GOOD, "eval": GOOD})
    for check in ("tiny_boxes", "huge_boxes", "crowded_images", "anchor_recall"):
        assert results[check].status == "skipped"
        assert "model" in results[check].sentence
    assert results["exact_duplicates"].status == "skipped"
    assert "near_duplicates is off" in results["near_duplicates_within_split"].sentence


GOOD, EMPTY, ONLY_CATS = make(*VALID), make(), make(VALID[0])
BAD_BOX = ((0.5, 0, 0.4, 1), 1)
HALF_BAD = make(BAD_BOX, VALID[0])
BAD = make(BAD_BOX, ((0, 0, 1.5, 1), 1), VALID[0])
UNKNOWN = make(*VALID, ((0, 0, 1, 1), 9))
FOUR_BOXES, TWICE = make(*VALID, *VALID), make(VALID[0], VALID[0])


def with_problem(method, **options):
    statistics = make(*VALID)
    getattr(statistics, method)("img_3", **options)
    return statistics


UNREADABLE, UNDECODABLE = with_problem("add_unreadable"), with_problem("add_undecodable", is_too_large=False)
TOO_LARGE = with_problem("add_undecodable", is_too_large=True)


def case(check, train, evaluation, status, value, *parts, threshold=None, severity=None, **options):
    """A check's result for two splits (None: the split is missing); `parts` are in the sentence."""
    settings = {"threshold": threshold, "severity": severity}
    changes = {name: setting for name, setting in settings.items() if setting is not None}
    splits = {name: part for name, part in (("train", train), ("eval", evaluation)) if part is not None}
    return check, splits, {"checks": {check: changes}, **options}, status, value, parts


@pytest.mark.parametrize(
    ("check", "splits", "options", "status", "value", "parts"),
    [
        case("examples_per_split", GOOD, None, "failed", 0, "'train' has 1", "'eval' has 0", "at least 1"),
        case("examples_per_split", GOOD, GOOD, "passed", 1, threshold=1.0),
        case("examples_per_split", GOOD, GOOD, "failed", 1, threshold=2.0),
        case("boxes", BAD, GOOD, "failed", 0.4, "2 of 5", "inverted 1", "outside 0 to 1 1", "40 %", "at most 0 %"),
        case("boxes", HALF_BAD, EMPTY, "passed", 0.5, threshold=0.5),
        case("boxes", HALF_BAD, EMPTY, "failed", 0.5, threshold=0.49),
        case("boxes", HALF_BAD, EMPTY, "warned", 0.5, severity="warn"),
        case("boxes", HALF_BAD, EMPTY, "off", None, "not checked", severity="off"),
        case("class_ids", UNKNOWN, GOOD, "failed", 0.2, "1 of 5", ": 9: 20 %", "at most 0 %"),
        case("records", UNREADABLE, GOOD, "failed", 1 / 3, "1 of 3", "33.3 %", "at most 0 %"),
        # A split without any label only warns: the labels of a test set may be withheld.
        case("boxes_in_splits", GOOD, EMPTY, "warned", 0, "'train' has 2", "'eval' has 0", "at least 1"),
        case("boxes_in_splits", EMPTY, GOOD, "failed", 0),
        case("boxes_in_splits", GOOD, ONLY_CATS, "failed", 1, threshold=2.0),
        case("boxes_in_splits", GOOD, None, "failed", 0),
        case("undecodable_images", UNDECODABLE, GOOD, "failed", 0.5, "1 of 2", "50 %", "at most 0 %"),
        case("undecodable_images", TOO_LARGE, GOOD, "passed", 0),
        case("classes_in_train", ONLY_CATS, GOOD, "warned", 0, "1 of 2", "'train'", "'dog' 0", "at least 1"),
        case("classes_in_splits", GOOD, ONLY_CATS, "warned", 0, "1 of 2", "'eval/dog' 0", "at least 1"),
        case("classes_in_splits", ONLY_CATS, ONLY_CATS, "passed", 1),  # an untrained class may be missing
        case(
            "class_balance", make(*[VALID[0]] * 3, VALID[1]), GOOD, "warned", 3, "'cat' 3 boxes, 'dog' 1", threshold=2
        ),
        case("class_balance", ONLY_CATS, GOOD, "skipped", None, "fewer than two classes"),
        case("empty_images", make(into=make(into=make(*VALID))), EMPTY, "warned", 2 / 3, "2 of 3", "at most 50 %"),
        case("crowded_images", FOUR_BOXES, GOOD, "warned", 1, "1 of 1", "'train'", "more than 3 boxes", model=MODEL),
        # The worst split counts.
        case("tiny_boxes", FOUR_BOXES, make(TINY, *VALID), "warned", 1 / 3, "1 of 3 in split 'eval'", model=MODEL),
        case("overlapping_boxes", TWICE, GOOD, "warned", 0.5),
        case("anchor_recall", GOOD, GOOD, "warned", 0.75, "75 % of 4 boxes", "0.60", model=MODEL, anchors=ANCHORS),
        case("anchor_recall", GOOD, GOOD, "skipped", None, "SsdAnchorGenerator", model=SSD_MODEL),
    ],
)
def test_a_check_reports_status_value_and_numbers(check, splits, options, status, value, parts):
    result = run(splits, **options)[check]
    assert (result.status, result.value) == (status, value if value is None else pytest.approx(value))
    assert [part for part in parts if part not in result.sentence] == [], result.sentence


def test_failed_and_warned_checks_name_the_affected_records():
    bad = make(BAD_BOX, TINY, key="img_9")
    results = run({"train": make(*VALID), "eval": bad}, model=MODEL)
    assert (results["boxes"].record_keys, results["tiny_boxes"].record_keys) == (("eval/img_9",), ("eval/img_9",))
    checks = {"boxes": {"threshold": 1.0}}
    assert run({"train": make(*VALID), "eval": bad}, checks=checks)["boxes"].record_keys == ()


def test_damaged_shards_fail_for_any_threshold():
    train = make(*VALID)
    train.num_damaged_shards = 1
    result = run({"train": train, "eval": GOOD}, checks={"records": {"threshold": 1.0}})["records"]
    assert (result.status, result.value) == ("failed", 0.0)
    assert "split 'train': 1 shards are damaged" in result.sentence


def test_a_value_close_to_the_threshold_is_formatted_differently():
    assert format_apart(0.17612 / 100, 0.176 / 100, "share") == ("0.1761 %", "0.176 %")
    assert format_apart(0.1004, 0.1, "distance") == ("0.1004", "0.1")
    assert format_apart(0.25, 0.25, "share") == ("25 %", "25 %")
    assert format_apart(None, 0.25, "share") == ("–", "25 %")


def test_leakage_fails_with_the_records_of_the_other_split():
    group = {
        "size_by_split": {"train": 1, "eval": 1},
        "members": [{"split": "train", "record_key": "a"}, {"split": "eval", "record_key": "b"}],
    }
    leaked = NO_DUPLICATES | {"across_by_split": {"eval": 1}, "groups": [group]}
    result = run({"train": GOOD, "eval": GOOD}, exact=leaked)["exact_duplicates"]
    assert all(
        part in result.sentence
        for part in ("'train'", "1 of 1 in split 'eval' (100 %)", "at most 0 %", "data.split_by_ratio")
    )
    assert (result.status, result.record_keys) == ("failed", ("eval/b",))
    passed = run({"train": GOOD, "eval": GOOD}, exact=NO_DUPLICATES)["exact_duplicates"]
    assert (passed.status, "data.split_by_ratio" in passed.sentence) == ("passed", False)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_number_of_duplicates_that_is_a_lower_bound_is_described_as_one(is_complete):
    near = NO_DUPLICATES | {"is_complete": is_complete}
    results = run({"train": GOOD, "eval": GOOD}, near=near)
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
    results = run({"train": GOOD, "eval": GOOD}, drift=drift)
    assert all(
        part in results["class_drift"].sentence for part in ("'train'", "0.250", "span 3", "0.010", "at most 0.100")
    )
    assert (results["class_drift"].status, results["size_drift"].status) == ("warned", "passed")


def test_the_verdict_names_what_failed_and_what_warned():
    bad = make(((0.5, 0, 0.4, 1), 1))
    verdict, sentence = summarize(list(run({"train": bad, "eval": make(*VALID)}).values()))
    assert verdict == "failed"
    assert all(part in sentence for part in ("21 checks", "1 failed (boxes)", "1 warned (classes_in_train)"))


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
