"""Whether there is reason to train. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from detloom.components.dataset_validator.drift import describe_drift
from detloom.components.retrain.training_record import FinishedTraining
from detloom.schemas.data_checks import DataChecks
from detloom.schemas.retrain_config import Retrain


@dataclass(frozen=True, kw_only=True)
class DataNow:
    """The data that would be trained on.

    Attributes:
        span: latest that was read; None where data have none.
        version: of the span; None where data have none.
        report: report.json of the data set.
    """

    span: int | None
    version: int | None
    report: Mapping[str, Any]


@dataclass(frozen=True)
class Decision:
    """Whether to train, and the sentence that says why."""

    train: bool
    sentence: str


@dataclass(frozen=True)
class _Answer:
    """Of one possible reason."""

    is_reason: bool
    words: str


def decide(
    settings: Retrain,
    checks: DataChecks,
    train_split: str,
    data: DataNow,
    config_hash: str,
    last: FinishedTraining | None,
    now: datetime,
) -> Decision:
    """Go through the reasons that the settings name.

    Args:
        config_hash: of settings and code of the training; another one than that of the last training is always a
            reason.
        last: the last finished training; without one, there is reason.
        now: with its zone.
    """
    if last is None:
        return Decision(True, "Training: no training has finished yet.")
    answers = []
    if last.config_hash != config_hash:
        answers.append(_Answer(True, f"settings or code have changed since {last.date}"))
    if settings.new_span:
        answers.append(_ask_span(data, last))
    if settings.min_new_images:
        answers.append(_ask_images(settings.min_new_images, data, train_split, last))
    if settings.drift:
        answers.append(_ask_drift(checks, data, train_split, last))
    if settings.max_age_days:
        answers.append(_ask_age(settings.max_age_days, last, now))
    reasons = [answer.words for answer in answers if answer.is_reason]
    if reasons:
        return Decision(True, f"Training: {', '.join(reasons)}.")
    missing = [answer.words for answer in answers]
    if not settings.new_span:
        missing.append(f"last trained {last.date}")
    return Decision(False, f"Training is skipped: {', '.join(missing)}.")


def _ask_span(data: DataNow, last: FinishedTraining) -> _Answer:
    if data.span is None:
        return _Answer(False, f"the data have no spans ({last.date})")
    now, before = (data.span, data.version or 0), (-1 if last.span is None else last.span, last.version or 0)
    name = f"span {data.span}" if data.span != last.span else f"version {data.version} of span {data.span}"
    if now > before:
        return _Answer(True, f"{name} is new")
    return _Answer(False, f"no new span since {last.span} ({last.date})")


def _ask_images(min_new: int, data: DataNow, train_split: str, last: FinishedTraining) -> _Answer:
    num_now = int(data.report["splits"][train_split]["num_examples"])
    num_new = max(num_now - last.num_images.get(train_split, 0), 0)
    if num_new >= min_new:
        return _Answer(True, f"{num_new} new images, {min_new} are enough")
    return _Answer(False, f"{num_new} of {min_new} new images")


def _ask_drift(checks: DataChecks, data: DataNow, train_split: str, last: FinishedTraining) -> _Answer:
    drift = describe_drift(data.report["splits"], train_split, last.as_previous_report(train_split))
    if drift["reason"]:
        return _Answer(False, f"drift not measured ({drift['reason']})")
    compared = drift["splits"].get(train_split, {})
    found, num_measured = [], 0
    for kind, noun, check in (("class", "classes", checks.class_drift), ("size", "box sizes", checks.size_drift)):
        distance = compared.get(f"{kind}_distance")
        if distance is None or check.severity == "off":
            continue
        num_measured += 1
        if distance > check.threshold:
            found.append(f"the {noun} have drifted by {distance:.3f} since {last.date} (more than {check.threshold:g})")
    if found:
        return _Answer(True, " and ".join(found))
    return _Answer(False, "no drift" if num_measured else "drift not measured (no boxes, or its checks are off)")


def _ask_age(max_days: float, last: FinishedTraining, now: datetime) -> _Answer:
    age = now - last.moment
    days = age / timedelta(days=1)
    if age >= timedelta(days=max_days):
        return _Answer(True, f"the last training is {days:.1f} days old, {max_days:g} are the limit")
    return _Answer(False, f"{max(days, 0):.1f} of {max_days:g} days old")
