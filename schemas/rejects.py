"""Quarantine: what ingestion refuses, with a machine-readable reason for each refusal."""

import enum
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

REJECTS_FILE = "rejects.jsonl"  # one Reject a line, sorted by split, file and record key
REPORT_FILE = "report.json"  # counts: in = written + quarantined


class Reason(str, enum.Enum):
    """Why a record or a box was refused. The values are stored: they are not renamed."""

    MISSING_FILE = "missing_file"
    PATH_OUTSIDE = "path_outside_data_folder"
    UNREADABLE_ANNOTATION = "unreadable_annotation"
    UNKNOWN_IMAGE = "unknown_image"
    UNREADABLE_IMAGE = "unreadable_image"
    UNSUPPORTED_FORMAT = "unsupported_image_format"
    WRONG_DIMENSIONS = "wrong_dimensions"
    TOO_MANY_PIXELS = "too_many_pixels"
    DUPLICATE_ID = "duplicate_id"
    DUPLICATE_IMAGE = "duplicate_image"
    BOX_NOT_FINITE = "box_not_finite"
    BOX_WITHOUT_AREA = "box_without_area"
    BOX_INVERTED = "box_inverted"
    BOX_OUTSIDE = "box_outside_image"
    UNKNOWN_CLASS = "unknown_class"


@dataclass(frozen=True, kw_only=True)
class Reject:
    """One refused record (the whole image) or one refused box of a record that was written without it.

    Attributes:
        scope: "record" or "box".
        file: the annotation or image file at fault, relative to the data folder.
        record_key: the `image/source_id` of the record.
        detail: a sentence with what was found and what is allowed.
    """

    reason: Reason
    scope: str
    split: str
    file: str
    record_key: str
    detail: str


def write_rejects(folder: Path, rejects: Iterable[Reject]) -> None:
    rows = sorted(rejects, key=lambda r: (r.split, r.file, r.record_key, r.detail))
    text = "".join(json.dumps(asdict(row), sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    (folder / REJECTS_FILE).write_text(text, encoding="utf-8")


def read_rejects(folder: Path) -> Iterator[Reject]:
    with (folder / REJECTS_FILE).open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Reject(**{**row, "reason": Reason(row["reason"])})
