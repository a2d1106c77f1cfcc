"""Each check: passes on good data, says what and by how much on bad data, obeys severity and threshold."""

import dataclasses

import numpy as np
import pytest

from detloom.components.dataset_validator.build_report import summarize
from detloom.components.dataset_validator.checks import run_checks
from detloom.components.dataset_validator.drift import describe_drift
from detloom.components.dataset_validator.findings import Evidence
from detloom.components.dataset_validator.format_value import format_apart
from detloom.components.dataset_validator.model_input import ModelInput
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.split_statistics import BoxLimits, ImageLabels, SplitStatistics
from detloom.schemas.data_checks import CHECK_NAMES, DataChecks
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import MultiscaleAnchorGenerator, SsdAnchorGenerator
from detloom.schemas.network_config import FixedShapeResizer

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
MODEL = ModelInput(
    image_resizer=FixedShapeResizer(height=100, width=100),
    anchor_generator=MultiscaleAnchorGenerator(aspect_ratios=(1.0,)),
    max_boxes=3,
)
SOUND = ((0.1, 0.1, 0.6, 0.6), 1), ((0.2, 0.2, 0.9, 0.9), 2)
TINY = ((0.5, 0.5, 0.52, 0.9), 1)  # 2 px high
NO_DUPLICATES = {"across_by_split": {}, "within_by_split": {}, "groups": []}
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


def judge(statistics, *, checks=None, exact=None, near=None, drift=None, anchors=None, model=None, **params):
    """Results by name; `checks` is {check: changes of it}."""
    changed = {
        name: dataclasses.replace(getattr(DataChecks(), name), **changes) for name, changes in (checks or {}).items()
    }
    evidence = Evidence(
        statistics=statistics,
        label_map=LABEL_MAP,
        params=DatasetValidatorParams(checks=DataChecks(**changed), model_input=model, **params),
        exact=exact,
        near=near,
        drift=drift or describe_drift({}, "train", "no earlier span"),
        anchors=anchors,
    )
    return {result.check: result for result in run_checks(evidence)}


def test_good_data_pass_every_check_that_can_be_made():
    statistics = {"train": make(*SOUND), "eval": make(*SOUND)}
    results = judge(
        statistics, exact=NO_DUPLICATES, near=NO_DUPLICATES, model=MODEL, anchors=ANCHORS | {"recall_at_50": 1.0}
    )
    assert tuple(results) == CHECK_NAMES
    statuses = {name: result.status for name, result in results.items() if result.status != "passed"}
    assert statuses == {"class_drift": "skipped", "size_drift": "skipped"}
    assert summarize(list(results.values())) == ("passed", "Of 21 checks, 19 passed, 2 skipped.")


def test_without_model_or_images_the_checks_that_need_them_are_skipped_with_the_reason():
    results = judge({"train": make(*SOUND), "eval": make(*SOUND)})
    for check in ("tiny_boxes", "huge_boxes", "crowded_images", "anchor_recall"):
        assert (results[check].status, results[check].sentence) == ("skipped", "not checked: no model is given")
    assert results["exact_duplicates"].sentence == "not checked: images were not compared"
    assert results["near_duplicates_within_split"].sentence == "not checked: near_duplicates is off"


def test_a_missing_split_fails_with_its_name():
    result = judge({"train": make(*SOUND)})["examples_per_split"]
    assert (result.status, result.value) == ("failed", 0)
    assert result.sentence == "examples: split 'train' has 1, split 'eval' has 0; at least 1 needed"


def test_the_threshold_of_a_count_is_the_least_that_passes():
    statistics = {"train": make(*SOUND), "eval": make(*SOUND)}
    assert judge(statistics, checks={"examples_per_split": {"threshold": 1.0}})["examples_per_split"].status == "passed"
    assert judge(statistics, checks={"examples_per_split": {"threshold": 2.0}})["examples_per_split"].status == "failed"


def test_unsound_boxes_fail_with_kinds_share_and_first_records():
    bad = make(((0.5, 0, 0.4, 1), 1), ((0, 0, 1.5, 1), 1), SOUND[0], key="img_9")
    result = judge({"train": bad, "eval": make(*SOUND)})["boxes"]
    assert result.sentence == ("2 of 5 boxes are unsound (inverted 1, outside 0 to 1 1): 40 %; at most 0 % allowed")
    assert (result.status, result.value, result.record_keys) == ("failed", 0.4, ("train/img_9",))


def test_a_share_that_equals_the_threshold_passes():
    bad = make(((0.5, 0, 0.4, 1), 1), SOUND[0])
    assert judge({"train": bad, "eval": make()}, checks={"boxes": {"threshold": 0.5}})["boxes"].status == "passed"
    assert judge({"train": bad, "eval": make()}, checks={"boxes": {"threshold": 0.49}})["boxes"].status == "failed"


def test_a_severity_decides_between_failure_warning_and_no_check():
    statistics = {"train": make(((0.5, 0, 0.4, 1), 1)), "eval": make(*SOUND)}
    for severity, status in (("fail", "failed"), ("warn", "warned"), ("off", "off")):
        assert judge(statistics, checks={"boxes": {"severity": severity}})["boxes"].status == status
    result = judge(statistics, checks={"boxes": {"severity": "off"}})["boxes"]
    assert (result.value, result.sentence, result.record_keys) == (None, "not checked", ())


def test_ids_that_the_label_map_lacks_fail_with_the_ids():
    result = judge({"train": make(*SOUND, ((0, 0, 1, 1), 9)), "eval": make(*SOUND)})["class_ids"]
    expected = "1 of 5 boxes have class ids that the label map lacks: 9: 20 %; at most 0 % allowed"
    assert (result.status, result.sentence, result.record_keys) == ("failed", expected, ("train/img_7",))


def test_unreadable_records_fail_with_their_keys():
    broken = make(*SOUND)
    broken.add_unreadable("img_3")
    result = judge({"train": broken, "eval": make(*SOUND)})["records"]
    assert result.sentence == "1 of 3 examples cannot be read: 33.3 %; at most 0 % allowed"
    assert result.record_keys == ("train/img_3",)


def test_a_split_without_any_label_only_warns():
    result = judge({"train": make(*SOUND), "eval": make()})["boxes_in_splits"]
    assert (result.status, result.sentence) == (
        "warned",
        "boxes: split 'train' has 2, split 'eval' has 0; at least 1 needed",
    )


def test_a_training_split_without_any_label_fails():
    assert judge({"train": make(), "eval": make(*SOUND)})["boxes_in_splits"].status == "failed"


def test_a_split_with_some_labels_but_too_few_fails():
    checks = {"boxes_in_splits": {"threshold": 2.0}}
    assert judge({"train": make(*SOUND), "eval": make(SOUND[0])}, checks=checks)["boxes_in_splits"].status == "failed"


def test_a_split_without_examples_is_not_called_unlabelled():
    assert judge({"train": make(*SOUND)})["boxes_in_splits"].status == "failed"


def test_images_that_cannot_be_decoded_fail_by_key():
    train = make(*SOUND)
    train.add_undecodable("img_7", is_too_large=False)
    result = judge({"train": train, "eval": make(*SOUND)})["undecodable_images"]
    expected = "1 of 2 images cannot be decoded: 50 %; at most 0 % allowed"
    assert (result.status, result.sentence, result.record_keys) == ("failed", expected, ("train/img_7",))


def test_an_image_that_is_only_too_large_is_not_at_fault():
    train = make(*SOUND)
    train.add_undecodable("img_7", is_too_large=True)
    assert judge({"train": train, "eval": make(*SOUND)})["undecodable_images"].value == 0


def test_without_near_duplicates_no_image_is_said_to_be_sound():
    checks = {"near_duplicates": {"severity": "off"}}
    result = judge({"train": make(*SOUND), "eval": make(*SOUND)}, checks=checks)["undecodable_images"]
    assert result.status == "skipped"


def test_damaged_shards_fail_whatever_the_share():
    train = make(*SOUND)
    train.num_damaged_shards = 1
    result = judge({"train": train, "eval": make(*SOUND)}, checks={"records": {"threshold": 1.0}})["records"]
    assert (result.status, result.value) == ("failed", 0.0)
    assert "split 'train' has 1 damaged shards, lost from the damage on" in result.sentence


def test_a_value_that_is_too_large_by_little_does_not_look_like_the_threshold():
    assert format_apart(0.17612 / 100, 0.176 / 100, "share") == ("0.1761 %", "0.176 %")
    assert format_apart(0.1004, 0.1, "distance") == ("0.1004", "0.1")
    assert format_apart(0.25, 0.25, "share") == ("25 %", "25 %")


def test_a_class_without_a_box_to_train_on_is_named():
    result = judge({"train": make(SOUND[0]), "eval": make(*SOUND)})["classes_in_train"]
    assert (result.status, result.value) == ("warned", 0)
    assert result.sentence == "1 of 2 classes in split 'train' have too few boxes: 'dog' 0; at least 1 needed"


def test_a_class_that_a_split_cannot_judge_is_named_with_the_split():
    result = judge({"train": make(*SOUND), "eval": make(SOUND[0])})["classes_in_splits"]
    expected = "1 of 2 pairs of split and trained class have too few boxes: 'eval/dog' 0; at least 1 needed"
    assert (result.status, result.sentence) == ("warned", expected)


def test_a_class_that_is_not_trained_need_not_be_judged():
    assert judge({"train": make(SOUND[0]), "eval": make(SOUND[0])})["classes_in_splits"].status == "passed"


def test_imbalance_is_the_ratio_of_the_extremes():
    train = make(SOUND[0], SOUND[0], SOUND[0], SOUND[1])
    result = judge({"train": train, "eval": make(*SOUND)}, checks={"class_balance": {"threshold": 2.0}})[
        "class_balance"
    ]
    assert (result.status, result.value) == ("warned", 3.0)
    assert "3 times the boxes of the rarest with any ('cat' 3 boxes, 'dog' 1); at most 2 allowed" in result.sentence


def test_images_without_boxes_are_a_share_of_the_training_split():
    train = make(into=make(into=make(*SOUND)))
    result = judge({"train": train, "eval": make()})["empty_images"]
    assert result.sentence == "2 of 3 images of split 'train' have no box: 66.7 %; at most 50 % allowed"


def test_an_image_with_more_boxes_than_training_takes_is_found():
    train = make(*SOUND, *SOUND, key="full")
    result = judge({"train": train, "eval": make(*SOUND)}, model=MODEL)["crowded_images"]
    expected = (
        "1 of 1 images of split 'train' have more boxes than the 3 that training takes: 100 %; at most 0 % allowed"
    )
    assert (result.sentence, result.record_keys) == (expected, ("train/full",))


def test_the_worst_split_decides_over_tiny_boxes():
    statistics = {"train": make(*SOUND, *SOUND), "eval": make(TINY, *SOUND, key="small")}
    result = judge(statistics, model=MODEL)["tiny_boxes"]
    expected = "boxes have a side below 4 px after resizing: 1 of 3 in split 'eval' (33.3 %); at most 5 % allowed"
    assert (result.value, result.sentence) == (pytest.approx(1 / 3), expected)
    assert result.record_keys == ("eval/small",)


def test_boxes_that_repeat_others_are_a_share():
    result = judge({"train": make(SOUND[0], SOUND[0]), "eval": make(*SOUND)})["overlapping_boxes"]
    assert (result.status, result.value) == ("warned", 0.5)


def test_leakage_fails_with_the_images_of_the_other_split():
    group = {
        "size_by_split": {"train": 1, "eval": 1},
        "members": [{"split": "train", "record_key": "a"}, {"split": "eval", "record_key": "b"}],
    }
    leaked = {"across_by_split": {"eval": 1}, "within_by_split": {}, "groups": [group]}
    result = judge({"train": make(*SOUND), "eval": make(*SOUND)}, exact=leaked)["exact_duplicates"]
    expected = "images are, byte by byte, in split 'train': 1 of 1 in split 'eval' (100 %); at most 0 % allowed"
    assert (result.status, result.sentence, result.record_keys) == ("failed", expected, ("eval/b",))


def test_repeated_images_warn_with_their_split():
    group = {"size_by_split": {"train": 2}, "members": [{"split": "train", "record_key": key} for key in ("a", "b")]}
    repeated = {"across_by_split": {}, "within_by_split": {"train": 1}, "groups": [group]}
    statistics = {"train": make(*SOUND, into=make(*SOUND)), "eval": make(*SOUND)}
    result = judge(statistics, near=repeated, exact=repeated)["exact_duplicates_within_split"]
    assert (result.status, result.value, result.record_keys) == ("warned", 0.5, ("train/a", "train/b"))


def test_one_split_alone_cannot_leak():
    results = judge({"train": make(*SOUND)}, exact=NO_DUPLICATES, required_splits=("train",))
    assert results["exact_duplicates"].sentence == "not checked: there is no split beside the training split"
    assert results["classes_in_splits"].status == "skipped"


def test_drift_names_distance_chance_span_and_threshold():
    compared = {"class_distance": 0.25, "class_chance": 0.01, "size_distance": 0.05, "size_chance": 0.02}
    drift = {"previous_span": 3, "reason": "", "splits": {"train": compared}}
    results = judge({"train": make(*SOUND), "eval": make(*SOUND)}, drift=drift)
    assert results["class_drift"].sentence == (
        "the classes of split 'train' have a Jensen-Shannon distance of 0.250 from those of span 3 "
        "(chance alone gives about 0.010); at most 0.100 allowed"
    )
    assert (results["class_drift"].status, results["size_drift"].status) == ("warned", "passed")


def test_anchors_that_fit_too_few_boxes_warn():
    result = judge({"train": make(*SOUND), "eval": make(*SOUND)}, model=MODEL, anchors=ANCHORS)["anchor_recall"]
    assert result.status == "warned"
    assert result.sentence == (
        "75 % of 4 boxes of split 'train' have an anchor with an IoU of 0.5 or more (mean of the best 0.60); "
        "at least 80 % needed"
    )


def test_anchors_that_are_not_built_are_not_checked():
    model = dataclasses.replace(MODEL, anchor_generator=SsdAnchorGenerator(aspect_ratios=(1.0,)))
    result = judge({"train": make(*SOUND), "eval": make(*SOUND)}, model=model)["anchor_recall"]
    assert (result.status, result.sentence) == ("skipped", "not checked: anchors of SsdAnchorGenerator are not built")


def test_the_verdict_names_what_failed_and_what_warned():
    bad = make(((0.5, 0, 0.4, 1), 1))
    verdict, sentence = summarize(list(judge({"train": bad, "eval": make(*SOUND)}).values()))
    assert verdict == "failed"
    assert sentence.startswith("Of 21 checks, 1 failed (boxes), 1 warned (classes_in_train), ")


def test_parameters_survive_the_round_trip_through_properties():
    checks = DataChecks(boxes=dataclasses.replace(DataChecks().boxes, severity="warn", threshold=0.25))
    params = DatasetValidatorParams(required_splits=("a", "b"), checks=checks, model_input=MODEL, max_pixels=7)
    properties = params.to_properties()
    assert {type(value) for value in properties.values()} <= {str, int, float}
    assert DatasetValidatorParams.from_properties({**properties, "other": 1}) == params
    assert DatasetValidatorParams.from_properties(DatasetValidatorParams().to_properties()).model_input is None


@pytest.mark.parametrize("change", [{"required_splits": ()}, {"required_splits": ("",)}, {"max_pixels": 0}])
def test_a_wrong_parameter_is_refused_by_name(change):
    with pytest.raises(InputError, match=f"{next(iter(change))}: got .*allowed"):
        DatasetValidatorParams(**change)
