from datetime import datetime, timezone

import pytest

from detloom.components.retrain.reasons import DataNow, decide
from detloom.schemas.run_file.data_checks import DataChecks, ShareCheck
from detloom.schemas.run_file.schedule import Retrain

NOW = datetime(2026, 3, 4, 3, 5, 12, tzinfo=timezone.utc)  # three days after the last training
ALL = Retrain(new_span=True, min_new_images=50, drift=True, max_age_days=30)


@pytest.fixture
def ask(make_report, make_training):
    """Decide for data equal to those of the last training run except for the given changes; return the sentence."""

    def ask(
        settings=ALL,
        *,
        last=None,
        span=12,
        version=None,
        config_hash='{"gates": "c0"}',
        checks=None,
        now=NOW,
        fingerprint="",
        is_rolled_back=False,
        has_same_classes=True,
        **report,
    ):
        data = DataNow(span=span, version=version, report=make_report(**report), fingerprint=fingerprint)
        state = {"is_rolled_back": is_rolled_back, "has_same_classes": has_same_classes}
        last = last or make_training()
        decision = decide(settings, checks or DataChecks(), "train", data, config_hash, last, now, **state)
        assert decision.train == (not decision.sentence.startswith("Training is skipped: "))
        assert decision.reuse == decision.sentence.startswith("Training is not repeated: ")
        return decision.sentence

    return ask


def test_the_first_training_run_needs_no_reason(make_report):
    data = DataNow(span=12, version=None, report=make_report())
    decision = decide(ALL, DataChecks(), "train", data, "{}", None, NOW)
    assert (decision.train, decision.sentence) == (True, "Training: no training run has finished yet.")


def test_unchanged_data_cause_no_training_and_every_check_is_reported(ask):
    assert ask() == (
        "Training is skipped: no new span since span 12 (2026-03-01), 0 of 50 required new images, no drift, the last "
        "training run is 3.0 days old (limit: 30)."
    )


SKIPPED, TRAINED = "Training is skipped: ", "Training: "
NO_SPAN = f"{SKIPPED}no new span since span 12 (2026-03-01)."


@pytest.mark.parametrize(
    ("settings", "changes", "sentence"),
    [
        (ALL, {"span": 13}, f"{TRAINED}span 13 is new."),
        (ALL, {"version": 1}, f"{TRAINED}version 1 of span 12 is new."),
        (ALL, {"span": 13, "num_images": 160}, f"{TRAINED}span 13 is new, 60 new images (required: 50)."),
        (Retrain(new_span=True), {"span": 11}, NO_SPAN),
        (Retrain(new_span=True), {"span": 12}, NO_SPAN),
        (Retrain(new_span=True), {"span": None}, f"{SKIPPED}the data have no spans (last trained 2026-03-01)."),
        (Retrain(min_new_images=50), {"num_images": 120}, "20 of 50 required new images, last trained 2026-03-01."),
        (Retrain(min_new_images=50), {"num_images": 149}, "49 of 50 required new images, last trained 2026-03-01."),
        (Retrain(min_new_images=50), {"num_images": 150}, f"{TRAINED}50 new images (required: 50)."),
        (Retrain(min_new_images=50), {"num_images": 90}, "0 of 50 required new images, last trained 2026-03-01."),
    ],
)
def test_new_spans_and_images_cause_training(ask, settings, changes, sentence):
    expected = sentence if sentence.startswith("Training") else f"{SKIPPED}{sentence}"
    assert ask(settings, **changes) == expected


def test_a_span_is_new_after_training_without_spans(ask, make_training):
    assert ask(span=0, last=make_training(span=None)) == f"{TRAINED}span 0 is new."


def test_class_drift_causes_training(ask):
    # p = (1/2, 1/2), q = (1, 0), m = (3/4, 1/4): divergence of p = 1/2 log2(2/3) + 1/2 log2(2) = 0.2075, of q =
    # log2(4/3) = 0.4150; the root of their mean 0.3113 is 0.558.
    assert ask(Retrain(drift=True), cats=100, dogs=0) == (
        "Training: the classes have drifted by 0.558 since 2026-03-01 (limit: 0.1)."
    )


def test_box_size_drift_causes_training(ask):
    assert "the box sizes have drifted by" in ask(Retrain(drift=True), sizes=(0, 100))


def test_drift_within_the_limit_causes_no_training(ask):
    checks = DataChecks(class_drift=ShareCheck(threshold=0.56))
    assert ask(Retrain(drift=True), checks=checks, cats=100, dogs=0) == (
        "Training is skipped: no drift, last trained 2026-03-01."
    )


def test_drift_is_not_measured_if_its_checks_are_off(ask):
    checks = DataChecks(
        class_drift=ShareCheck(severity="off", threshold=0.1), size_drift=ShareCheck(severity="off", threshold=0.1)
    )
    assert "drift not measured" in ask(Retrain(drift=True), checks=checks, cats=100, dogs=0)


def test_drift_is_not_measured_against_another_record_format(ask, make_training):
    assert "drift not measured" in ask(last=make_training(report_format=1), cats=100, dogs=0)


@pytest.mark.parametrize(
    ("day", "second", "sentence"),
    [
        (31, 11, "Training is skipped: the last training run is 30.0 days old (limit: 30), last trained 2026-03-01."),
        (31, 12, "Training: the last training run is 30.0 days old (limit: 30)."),
    ],
)
def test_age_causes_training_from_the_limit_on(ask, day, second, sentence):
    now = datetime(2026, 3, day, 3, 5, second, tzinfo=timezone.utc)
    assert ask(Retrain(max_age_days=30), now=now) == sentence


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ('{"gates": "g0", "tuner": "t0"}', '{"gates": "g0", "tuner": "t1"}', "tuner"),
        ('{"gates": "g0"}', '{"gates": "g1", "code of the Trainer": "t0"}', "code of the Trainer, gates"),
    ],
)
def test_changed_settings_or_code_always_cause_training_and_are_named(ask, make_training, before, now, changed):
    found = ask(Retrain(max_age_days=30), config_hash=now, last=make_training(config_hash=before))
    assert found == f"Training: {changed} changed after the last training run (2026-03-01)."


@pytest.mark.parametrize("part", ["gates", "evaluator", "push.allow_class_change"])
def test_what_decides_about_a_model_evaluates_the_existing_one_again_and_trains_none(ask, make_training, part):
    last, now = make_training(config_hash=f'{{"{part}": "0"}}'), f'{{"{part}": "1"}}'
    text = f"{part} changed after the last training run (2026-03-01)"
    assert ask(last=last, config_hash=now) == f"Training is not repeated: {text}, so its model is evaluated again."
    assert ask(last=last, config_hash=now, span=13) == "Training: span 13 is new."
    gone = ask(last=last, config_hash=now, has_same_classes=None)
    assert gone == f"Training: {text}, and its model cannot be read."
    other = ask(Retrain(new_span=True), last=last, config_hash=now, has_same_classes=False)
    assert "but the classes of the data have changed" in other


@pytest.mark.parametrize(("fingerprint", "is_training"), [("", False), ("other", True)])
def test_after_a_rollback_only_other_data_cause_training(ask, fingerprint, is_training):
    sentence = ask(is_rolled_back=True, fingerprint=fingerprint)
    assert sentence.startswith("Training: the data have changed, and the model") == is_training
    assert "the model of the last training run was rolled back" in sentence


def test_a_refused_training_run_counts_as_finished(ask, make_training):
    assert ask(Retrain(new_span=True), last=make_training(outcome="refused")).startswith("Training is skipped")
