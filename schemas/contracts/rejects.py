"""Quarantine: the records and boxes that ingestion rejects, each with a machine-readable reason."""

import enum
import json
from dataclasses import asdict, dataclass

REJECTS_FILE = "rejects.jsonl"  # one Reject per line: first those of the readers, then those of the images
REPORT_FILE = "report.json"  # counts: in = written + quarantined
NO_SPLIT = "(none)"  # in the report: records rejected before `split_by_ratio` assigned a split


class Reason(str, enum.Enum):
    """Reason for rejecting a record or a box. The values are stored in files, so they must not be renamed."""

    # the files
    MISSING_FILE = "missing_file"
    AMBIGUOUS_NAME = "ambiguous_name"
    PATH_OUTSIDE = "path_outside_data_folder"
    UNREADABLE_FILE = "unreadable_file"
    FILE_TOO_LARGE = "file_too_large"
    UNREADABLE_ANNOTATION = "unreadable_annotation"
    # the image
    NOT_AN_IMAGE = "not_an_image"
    UNSUPPORTED_FORMAT = "unsupported_image_format"
    UNREADABLE_IMAGE = "unreadable_image"
    TRUNCATED_IMAGE = "truncated_image"
    EMPTY_IMAGE = "empty_image_file"
    WRONG_DIMENSIONS = "wrong_dimensions"
    EXIF_ROTATED = "exif_rotated"
    TOO_MANY_PIXELS = "too_many_pixels"
    RECORD_TOO_LARGE = "record_too_large"
    # the record
    DUPLICATE_ID = "duplicate_id"
    DUPLICATE_IMAGE = "duplicate_image"
    TOO_MANY_BOXES = "too_many_boxes"
    NO_GROUP = "no_group"
    # a box
    UNKNOWN_IMAGE = "unknown_image"
    UNKNOWN_CLASS = "unknown_class"
    BOX_NOT_FINITE = "box_not_finite"
    BOX_WITHOUT_AREA = "box_without_area"
    BOX_INVERTED = "box_inverted"
    BOX_OUTSIDE = "box_outside_image"
    UNREADABLE_MASK = "unreadable_mask"
    UNREADABLE_KEYPOINTS = "unreadable_keypoints"


@dataclass(frozen=True, kw_only=True)
class Reject:
    """One rejected record (the whole image), or one rejected box of a record that was written without the box.

    Attributes:
        scope: "record" or "box".
        file: the faulty annotation or image file, relative to the data folder.
        record_key: the `image/source_id` of the record.
        detail: a sentence that says what was found and what is allowed.
        num_boxes: number of boxes lost: 1 for a box, all boxes of the image for a record.
    """

    reason: Reason
    scope: str
    split: str
    file: str
    record_key: str
    detail: str
    num_boxes: int = 0


def format_reject(reject: Reject) -> bytes:
    """Format one line of `REJECTS_FILE`, without the line break."""
    return json.dumps(asdict(reject), sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")


def parse_reject(line: bytes | str) -> Reject:
    """Parse a line written by `format_reject`; raise ValueError, KeyError or TypeError for any other text."""
    row = json.loads(line)
    return Reject(**{**row, "reason": Reason(row["reason"])})
