"""Decide whether to train; pure functions without I/O."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from detloom.components.dataset_validator.drift import describe_drift
from detloom.components.retrain.training_record import FinishedTraining
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.schedule import Retrain

# Parts of the settings that decide about a trained model, not about its training.
EVALUATION_PARTS = frozenset({"evaluator", "gates", "push.allow_class_change"})


@dataclass(frozen=True, kw_only=True)
class DataNow:
    """The data available for training.

    Attributes:
        span: latest span that was read; None for data without spans.
        version: version of the span; None for data without versions.
        report: report.json of the data set.
        fingerprint: as in `FinishedTraining.data_fingerprint`.
    """

    span: int | None
    version: int | None
    report: Mapping[str, Any]
    fingerprint: str = ""


@dataclass(frozen=True)
class TrainingDecision:
    """The decision, and a sentence that explains it; `reuse`: the model of the last training run is evaluated again."""

    train: bool
    sentence: str
    reuse: bool = False


@dataclass(frozen=True)
class _Check:
    """The result of checking one possible reason."""

    is_reason: bool
    text: str


def decide(
    settings: Retrain,
    checks: DataChecks,
    train_split: str,
    data: DataNow,
    config_hash: str,
    last: FinishedTraining | None,
    now: datetime,
    *,
    is_rolled_back: bool = False,
    has_same_classes: bool | None = True,
) -> TrainingDecision:
    """Check each reason that the settings name.

    Args:
        config_hash: hashes of the training settings and code as JSON by part; if it differs from that of the last
            training run, the decision is to train.
        last: the last finished training run; if there is none, the decision is to train.
        now: time with a time zone.
        is_rolled_back: the model of the last training run was rolled back.
        has_same_classes: its classes are those of the data; None if this model cannot be read.
    """
    if last is None:
        return TrainingDecision(True, "Training: no training run has finished yet.")
    results = []
    changed = changed_parts(last.config_hash, config_hash)
    change = f"{', '.join(sorted(changed))} changed after the last training run ({last.date})"
    if not changed <= EVALUATION_PARTS:
        results.append(_Check(True, change))
    elif changed and has_same_classes is None:
        results.append(_Check(True, f"{change}, and its model cannot be read"))
    if is_rolled_back:
        text = "the model of the last training run was rolled back"
        is_changed = data.fingerprint != last.data_fingerprint
        results.append(_Check(is_changed, f"the data have changed, and {text}" if is_changed else text))
    if settings.new_span:
        results.append(_check_span(data, last))
    if settings.min_new_images:
        results.append(_check_images(settings.min_new_images, data, train_split, last))
    if settings.drift:
        results.append(_check_drift(checks, data, train_split, last))
    if settings.max_age_days:
        results.append(_check_age(settings.max_age_days, last, now))
    reasons = [check.text for check in results if check.is_reason]
    if reasons:
        return TrainingDecision(True, f"Training: {', '.join(reasons)}.")
    missing = [check.text for check in results]
    if changed and has_same_classes:
        sentence = f"Training is not repeated: {change}, so its model is evaluated again."
        return TrainingDecision(True, sentence, reuse=True)
    if changed:
        missing.append(f"{change}, but the classes of the data have changed")
    if not settings.new_span:
        missing.append(f"last trained {last.date}")
    return TrainingDecision(False, f"Training is skipped: {', '.join(missing)}.")


def _check_span(data: DataNow, last: FinishedTraining) -> _Check:
    if data.span is None:
        return _Check(False, f"the data have no spans (last trained {last.date})")
    now, before = (data.span, data.version or 0), (-1 if last.span is None else last.span, last.version or 0)
    name = f"span {data.span}" if data.span != last.span else f"version {data.version} of span {data.span}"
    if now > before:
        return _Check(True, f"{name} is new")
    return _Check(False, f"no new span since span {last.span} ({last.date})")


def changed_parts(before: str, now: str) -> set[str]:
    """Return the names of the parts that differ."""
    old, new = json.loads(before), json.loads(now)
    return {name for name in {**old, **new} if old.get(name) != new.get(name)}


def _check_images(min_new: int, data: DataNow, train_split: str, last: FinishedTraining) -> _Check:
    num_now = int(data.report["splits"][train_split]["num_examples"])
    num_new = max(num_now - last.num_images.get(train_split, 0), 0)
    if num_new >= min_new:
        return _Check(True, f"{num_new} new images (required: {min_new})")
    return _Check(False, f"{num_new} of {min_new} required new images")


def _check_drift(checks: DataChecks, data: DataNow, train_split: str, last: FinishedTraining) -> _Check:
    drift = describe_drift(data.report["splits"], train_split, last.as_previous_report(train_split))
    if drift["reason"]:
        return _Check(False, f"drift not measured ({drift['reason']})")
    compared = drift["splits"].get(train_split, {})
    sentences, num_measured = [], 0
    for kind, noun, check in (("class", "classes", checks.class_drift), ("size", "box sizes", checks.size_drift)):
        distance = compared.get(f"{kind}_distance")
        if distance is None or check.severity == "off":
            continue
        num_measured += 1
        if distance > check.threshold:
            sentences.append(
                f"the {noun} have drifted by {distance:.3f} since {last.date} (limit: {check.threshold:g})"
            )
    if sentences:
        return _Check(True, " and ".join(sentences))
    return _Check(False, "no drift" if num_measured else "drift not measured (no boxes, or the drift checks are off)")


def _check_age(max_days: float, last: FinishedTraining, now: datetime) -> _Check:
    age = now - last.moment
    days = age / timedelta(days=1)
    if age >= timedelta(days=max_days):
        return _Check(True, f"the last training run is {days:.1f} days old (limit: {max_days:g})")
    return _Check(False, f"the last training run is {max(days, 0):.1f} days old (limit: {max_days:g})")
