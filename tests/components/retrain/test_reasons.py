from datetime import datetime, timezone

import pytest

from detloom.components.retrain.reasons import DataNow, decide
from detloom.schemas.data_checks import ClassDrift, DataChecks, SizeDrift
from detloom.schemas.retrain_config import Retrain

NOW = datetime(2026, 3, 4, 3, 5, 12, tzinfo=timezone.utc)  # three days after the last training
ALL = Retrain(new_span=True, min_new_images=50, drift=True, max_age_days=30)


@pytest.fixture
def ask(make_report, make_training):
    """The sentence for data that are those of the last training, but for what is given."""

    def ask(settings=ALL, *, last=None, span=12, version=None, config_hash="c0", checks=None, now=NOW, **report):
        data = DataNow(span=span, version=version, report=make_report(**report))
        decision = decide(settings, checks or DataChecks(), "train", data, config_hash, last or make_training(), now)
        assert decision.train == (not decision.sentence.startswith("Training is skipped: "))
        return decision.sentence

    return ask


def test_the_first_training_needs_no_reason(make_report):
    data = DataNow(span=12, version=None, report=make_report())
    decision = decide(ALL, DataChecks(), "train", data, "c0", None, NOW)
    assert (decision.train, decision.sentence) == (True, "Training: no training has finished yet.")


def test_the_same_data_are_no_reason_and_the_sentence_goes_through_all(ask):
    assert ask() == (
        "Training is skipped: no new span since 12 (2026-03-01), 0 of 50 new images, no drift, 3.0 of 30 days old."
    )


def test_without_spans_the_sentence_says_when_it_was_trained(ask):
    assert ask(Retrain(min_new_images=50), num_images=120) == (
        "Training is skipped: 20 of 50 new images, last trained 2026-03-01."
    )


def test_a_later_span_is_new(ask):
    assert ask(span=13) == "Training: span 13 is new."


def test_a_later_version_of_the_span_is_new(ask):
    assert ask(version=1) == "Training: version 1 of span 12 is new."


@pytest.mark.parametrize("span", [11, 12])
def test_an_earlier_span_is_not_new(ask, span):
    assert ask(Retrain(new_span=True), span=span) == "Training is skipped: no new span since 12 (2026-03-01)."


def test_a_span_is_new_after_a_training_without_one(ask, make_training):
    assert ask(span=0, last=make_training(span=None)) == "Training: span 0 is new."


def test_a_span_is_no_reason_where_the_data_have_none(ask):
    assert ask(Retrain(new_span=True), span=None) == "Training is skipped: the data have no spans (2026-03-01)."


@pytest.mark.parametrize(
    ("num_images", "sentence"),
    [
        (149, "Training is skipped: 49 of 50 new images, last trained 2026-03-01."),
        (150, "Training: 50 new images, 50 are enough."),
        (90, "Training is skipped: 0 of 50 new images, last trained 2026-03-01."),
    ],
)
def test_images_are_counted_from_those_of_the_last_training(ask, num_images, sentence):
    assert ask(Retrain(min_new_images=50), num_images=num_images) == sentence


def test_classes_that_drifted_are_a_reason(ask):
    # p = (1/2, 1/2), q = (1, 0), m = (3/4, 1/4): divergence of p = 1/2 log2(2/3) + 1/2 log2(2) = 0.2075, of q =
    # log2(4/3) = 0.4150; the root of their mean 0.3113 is 0.558.
    assert ask(Retrain(drift=True), cats=100, dogs=0) == (
        "Training: the classes have drifted by 0.558 since 2026-03-01 (more than 0.1)."
    )


def test_box_sizes_that_drifted_are_a_reason(ask):
    assert "the box sizes have drifted by" in ask(Retrain(drift=True), sizes=(0, 100))


def test_drift_up_to_the_limit_of_the_checks_is_none(ask):
    checks = DataChecks(class_drift=ClassDrift(threshold=0.56))
    assert ask(Retrain(drift=True), checks=checks, cats=100, dogs=0) == (
        "Training is skipped: no drift, last trained 2026-03-01."
    )


def test_drift_whose_checks_are_off_is_none_and_the_sentence_says_so(ask):
    checks = DataChecks(class_drift=ClassDrift(severity="off"), size_drift=SizeDrift(severity="off"))
    assert ask(Retrain(drift=True), checks=checks, cats=100, dogs=0) == (
        "Training is skipped: drift not measured (no boxes, or its checks are off), last trained 2026-03-01."
    )


def test_drift_against_a_record_of_another_version_is_not_measured(ask, make_training):
    assert "drift not measured (the record of the last training is of another version)" in ask(
        last=make_training(report_format=1), cats=100, dogs=0
    )


@pytest.mark.parametrize(
    ("day", "second", "sentence"),
    [
        (31, 11, "Training is skipped: 30.0 of 30 days old, last trained 2026-03-01."),
        (31, 12, "Training: the last training is 30.0 days old, 30 are the limit."),
    ],
)
def test_age_is_a_reason_from_the_limit_on(ask, day, second, sentence):
    now = datetime(2026, 3, day, 3, 5, second, tzinfo=timezone.utc)
    assert ask(Retrain(max_age_days=30), now=now) == sentence


def test_other_settings_or_code_are_always_a_reason(ask):
    assert (
        ask(Retrain(max_age_days=30), config_hash="c1") == "Training: settings or code have changed since 2026-03-01."
    )


def test_a_refused_training_counts_as_finished(ask, make_training):
    assert ask(Retrain(new_span=True), last=make_training(outcome="refused")).startswith("Training is skipped")


def test_several_reasons_stand_in_one_sentence(ask):
    assert ask(span=13, num_images=160) == "Training: span 13 is new, 60 new images, 50 are enough."
