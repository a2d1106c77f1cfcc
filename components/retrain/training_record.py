"""What finished trainings read: one small file each, in a folder or at an address (`retrain.records`).

    training_records/<pipeline>/20260301T030512.123456Z.json

The newest is what the next decision compares with; the others are history and may be deleted.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from detloom.components.dataset_validator.drift import REPORT_FORMAT, PreviousReport
from detloom.components.small_files import list_names, read_bytes, write_bytes
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact, show_address
from detloom.schemas.retrain_config import Retrain
from detloom.schemas.typed_dict import from_dict

_FOLDER = "training_records"
_NAME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_SUFFIX = ".json"
_MAX_BYTES = 64 << 20  # thousands of classes need less than one of these MiB
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """What a training read that was judged, blessed or refused.

    Attributes:
        time: when it was recorded, in UTC, such as 2026-03-01T03:05:12+00:00.
        outcome: what the evaluator said of the model.
        reason: why it was trained.
        span: latest that was read; None where data have none.
        version: of the span; None where data have none.
        data_fingerprint: over names, sizes and times of the files that were read; for people, no decision reads it.
        config_hash: of settings and code of the training.
        num_images: by split.
        report_format: of the data set report that the following numbers of the training split come from.
        boxes_by_class: how many boxes each class has.
        box_area_bins, box_area_counts: histogram of the boxes' shares of their image.
    """

    time: str
    outcome: Literal["blessed", "refused"]
    reason: str = ""
    span: int | None = None
    version: int | None = None
    data_fingerprint: str = ""
    config_hash: str = ""
    num_images: dict[str, int]
    report_format: int = REPORT_FORMAT
    boxes_by_class: dict[str, int]
    box_area_bins: tuple[str, ...]
    box_area_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if datetime.fromisoformat(self.time).tzinfo is None:
            raise InputError(f"time: got {redact(self.time)!r}, allowed: a time with its zone.")

    @property
    def date(self) -> str:
        """Day in UTC."""
        return self.moment.strftime("%Y-%m-%d")

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.time).astimezone(timezone.utc)

    def as_previous_report(self, train_split: str) -> PreviousReport | str:
        """What drift is measured against, or the sentence that says why it cannot be."""
        if self.report_format != REPORT_FORMAT:
            return "the record of the last training is of another version"
        areas = {"bins": list(self.box_area_bins), "counts": list(self.box_area_counts)}
        split = {"boxes_by_class": self.boxes_by_class, "distributions": {"box_areas_rel": areas}}
        return PreviousReport(self.span, {train_split: split})


def data_of_report(report: Mapping[str, Any], train_split: str) -> dict[str, Any]:
    """The fields of `FinishedTraining` that a report.json has."""
    train = report["splits"][train_split]
    areas = train["distributions"]["box_areas_rel"]
    return {
        "num_images": {name: split["num_examples"] for name, split in report["splits"].items()},
        "report_format": report["format"],
        "boxes_by_class": dict(train["boxes_by_class"]),
        "box_area_bins": tuple(areas["bins"]),
        "box_area_counts": tuple(areas["counts"]),
    }


def short_fingerprint(text: str) -> str:
    """16 hex digits for a fingerprint of many lines; empty for none."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def append_record(records: str, pipeline: str, training: FinishedTraining) -> str:
    """Write a record and return its name; one of that very moment is replaced.

    Raises:
        OSError: it cannot be written there.
    """
    name = f"{training.moment.strftime(_NAME_FORMAT)}{_SUFFIX}"
    write_bytes(_folder(records, pipeline), name, format_record(training).encode())
    return name


def format_record(training: FinishedTraining) -> str:
    """The record as its file has it."""
    return json.dumps(asdict(training), indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_last_record(records: str, pipeline: str) -> FinishedTraining | None:
    """The newest that can be read, None where there is none; a file that was cut off is logged and left out.

    Raises:
        OSError: the storage does not answer.
    """
    folder = _folder(records, pipeline)
    for name in _record_names(records, pipeline):
        data = read_bytes(folder, name, _MAX_BYTES)
        try:
            return _parse(data) if data is not None else None
        except (ValueError, RecursionError) as error:  # InputError is a ValueError
            _LOGGER.warning(
                "%s: no record of a training (%s); it is left out.", show_address(f"{folder}/{name}"), error
            )
    return None


def current_time() -> datetime:
    """In UTC."""
    return datetime.now(timezone.utc)


def records_state(retrain: Retrain, pipeline: str) -> str:
    """What a decision depends on beside its inputs: which record is the newest, and whether it is too old.

    While this stays as it is, so does the decision. It is then answered from TFX's cache, and with it the nodes behind
    the condition, whose cache keys hold the decision: what failed is tried again without another training.

    Raises:
        InputError: the storage does not answer.
    """
    try:
        newest = next(iter(_record_names(retrain.records, pipeline)), "")
    except OSError as error:
        raise InputError(
            f"retrain.records: {show_address(retrain.records)} cannot be read "
            f"({redact(error.strerror or str(error))}); run again when it answers."
        ) from None
    if not newest or not retrain.max_age_days:
        return newest
    age = current_time() - _moment_of(newest)
    return f"{newest}, too old" if age >= timedelta(days=retrain.max_age_days) else newest


def _record_names(records: str, pipeline: str) -> list[str]:
    """Newest first; other files are left alone."""
    return [name for name in reversed(list_names(_folder(records, pipeline))) if _is_record(name)]


def _folder(records: str, pipeline: str) -> str:
    return "/".join([records.rstrip("/"), _FOLDER, *([pipeline] if pipeline else [])])


def _is_record(name: str) -> bool:
    try:
        _moment_of(name)
    except ValueError:
        return False
    return True


def _moment_of(name: str) -> datetime:
    return datetime.strptime(name, f"{_NAME_FORMAT}{_SUFFIX}").replace(tzinfo=timezone.utc)


def _parse(data: bytes) -> FinishedTraining:
    """Raises ValueError for what is none."""
    if len(data) > _MAX_BYTES:
        raise InputError(f"got more than {_MAX_BYTES} bytes.")
    content = json.loads(data)
    known = {field.name for field in fields(FinishedTraining)}  # a later version may know more
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key in known}
    return from_dict(FinishedTraining, content, locate=lambda _: "JSON")
