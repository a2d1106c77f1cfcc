"""Records of finished training runs: one small file for each, in a folder or at an address (`retrain.records`).

    training_records/<pipeline>/20260301T030512.123456Z.json

The next decision compares the data with the newest record; the older ones are history and may be deleted. An evaluation
that is repeated replaces the record of its training run.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from detloom.components.dataset_validator.drift import REPORT_FORMAT, PreviousReport
from detloom.components.pusher.endpoint import is_endpoint, rolled_back_identities_at
from detloom.components.pusher.versions import open_destination, pushed_versions, rolled_back_identities
from detloom.components.storage.storage import open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact, show_address
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.run_file.schedule import Retrain

_FOLDER = "training_records"
_NAME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_SUFFIX = ".json"
_MAX_BYTES = 64 << 20  # thousands of classes need less than 1 MiB
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class FinishedTraining:
    """The data and result of a training run whose model was evaluated.

    Attributes:
        time: time of the record in UTC, such as 2026-03-01T03:05:12+00:00.
        outcome: the evaluator's verdict on the model.
        reason: why the model was trained.
        span: latest span that was read; None for data without spans.
        version: version of the span; None for data without versions.
        data_fingerprint: fingerprint of names, sizes and times of the files that were read.
        config_hash: hashes of the training settings and code, as JSON by part.
        model_identity: `Manifest.identity` of the model.
        outputs: addresses of the Trainer's outputs by name; empty in records of earlier versions.
        num_images: number of images by split.
        report_format: format of the data set report that the following numbers of the training split come from.
        boxes_by_class: number of boxes by class.
        box_area_bins, box_area_counts: histogram of box areas relative to the image.
    """

    time: str
    outcome: Literal["blessed", "refused"]
    reason: str = ""
    span: int | None = None
    version: int | None = None
    data_fingerprint: str = ""
    config_hash: str = "{}"
    model_identity: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    num_images: dict[str, int]
    report_format: int = REPORT_FORMAT
    boxes_by_class: dict[str, int]
    box_area_bins: tuple[str, ...]
    box_area_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if datetime.fromisoformat(self.time).tzinfo is None:
            raise InputError(f"time: got {redact(self.time)!r}, allowed: a time with a time zone.")
        if not isinstance(json.loads(self.config_hash), dict):
            raise InputError(f"config_hash: got {redact(self.config_hash)!r}, allowed: a JSON object.")

    @property
    def date(self) -> str:
        """The day in UTC, such as 2026-03-01."""
        return self.moment.strftime("%Y-%m-%d")

    @property
    def moment(self) -> datetime:
        return datetime.fromisoformat(self.time).astimezone(timezone.utc)

    def as_previous_report(self, train_split: str) -> PreviousReport | str:
        """Return the reference for drift, or a sentence that says why drift cannot be measured."""
        if self.report_format != REPORT_FORMAT:
            return "the record of the last training run has another format version"
        areas = {"bins": list(self.box_area_bins), "counts": list(self.box_area_counts)}
        split = {"boxes_by_class": self.boxes_by_class, "distributions": {"box_areas_rel": areas}}
        return PreviousReport(self.span, {train_split: split})


def data_of_report(report: Mapping[str, Any], train_split: str) -> dict[str, Any]:
    """Return the fields of `FinishedTraining` that come from a report.json."""
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
    """Return 16 hex digits for a fingerprint of many lines, or an empty string for an empty one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def append_record(records: str, pipeline: str, training: FinishedTraining) -> str:
    """Write a record and return its name; replace a record with the same time.

    Raises:
        OSError: it cannot be written there.
    """
    name = f"{training.moment.strftime(_NAME_FORMAT)}{_SUFFIX}"
    open_storage(_folder(records, pipeline)).write(name, format_record(training).encode())
    return name


def format_record(training: FinishedTraining) -> str:
    """Format a record as the content of its file."""
    return json.dumps(asdict(training), indent=1, sort_keys=True, allow_nan=False) + "\n"


def read_last_record(records: str, pipeline: str) -> FinishedTraining | None:
    """Return the newest readable record, or None.

    A truncated file is logged and skipped.

    Raises:
        OSError: a storage cannot be read.
    """
    return next(_readable_records(records, pipeline), None)


def _readable_records(records: str, pipeline: str) -> Iterator[FinishedTraining]:
    """Yield the records, the newest first."""
    folder = _folder(records, pipeline)
    for name in _record_names(records, pipeline):
        data = open_storage(folder).read(name, _MAX_BYTES)
        if data is None:  # deleted in the meantime
            continue
        try:
            yield _parse(data)
        except (ValueError, RecursionError) as error:  # InputError is a ValueError
            _LOGGER.warning("%s: not a valid training record (%s); skipped.", show_address(f"{folder}/{name}"), error)
            continue


def is_rolled_back(training: FinishedTraining, production: str) -> bool:
    """Return True if the model was rolled back at `production`, and neither pushed nor restored since."""
    if not production:
        return False
    if is_endpoint(production):
        return training.model_identity in rolled_back_identities_at(production)
    destination = open_destination(production)
    return training.model_identity in rolled_back_identities(destination, pushed_versions(destination))


def current_time() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def next_time(records: str, pipeline: str) -> datetime:
    """Return the time of a new record: now, or just after the newest record if the clock was moved back since.

    The newest record counts, so a record with an earlier time would have no effect.

    Raises:
        OSError: the storage cannot be read.
    """
    newest = next(iter(_record_names(records, pipeline)), None)
    now = current_time()
    return max(now, _moment_of(newest) + timedelta(microseconds=1)) if newest else now


def records_state(retrain: Retrain, pipeline: str, production: str) -> str:
    """Return the state that a decision depends on besides its inputs: the last record, whether it is too old, and
    whether its model was rolled back.

    As long as the state is unchanged, TFX's cache returns the previous decision and the results of the nodes behind
    the condition, whose cache keys contain the decision: a rerun repeats failed nodes without another training run.

    Raises:
        InputError: the storage cannot be read.
    """
    try:
        last = read_last_record(retrain.records, pipeline)
        rolled_back = last is not None and is_rolled_back(last, production)
    except OSError as error:
        raise InputError(
            f"retrain.records: {show_address(retrain.records)} cannot be read "
            f"({redact(error.strerror or str(error))}); run again when the storage is available."
        ) from None
    if last is None:
        return ""
    is_old = retrain.max_age_days and current_time() - last.moment >= timedelta(days=retrain.max_age_days)
    state = short_fingerprint(format_record(last))
    return f"{state}{', rolled back' if rolled_back else ''}{', too old' if is_old else ''}"


def _record_names(records: str, pipeline: str) -> list[str]:
    """Return the names of records, the newest first; ignore other files."""
    return [name for name in reversed(open_storage(_folder(records, pipeline)).list_names()) if _is_record(name)]


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
    """Parse a record; raise ValueError if it is invalid."""
    if len(data) > _MAX_BYTES:
        raise InputError(f"got more than {_MAX_BYTES} bytes.")
    content = json.loads(data)
    known = {field.name for field in fields(FinishedTraining)}  # a later version may write more fields
    if isinstance(content, dict):
        content = {key: value for key, value in content.items() if key in known}
    return from_dict(FinishedTraining, content, locate=lambda _: "JSON")
