"""What every annotation reader returns: records as the data set states them, unchecked against the image."""

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from detloom.schemas.rejects import Reason, Reject


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One labelled object.

    Attributes:
        box_xyxy_px: xmin, ymin, xmax, ymax as the file says: may be inverted, outside the image or not finite.
        area_px: square pixels, of the mask where there is one; None: that of the box.
    """

    class_name: str
    box_xyxy_px: tuple[float, float, float, float]
    difficult: bool = False
    truncated: bool = False
    is_crowd: bool = False
    area_px: float | None = None


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One image and its labels.

    Attributes:
        record_key: becomes `image/source_id`; unique in its source split.
        image_path: relative to the data folder, forward slashes.
        annotation_path: likewise; the file that a reject of a box names.
        declared_hw: height and width that the annotation states, if it does.
    """

    split: str
    record_key: str
    image_path: str
    annotation_path: str
    declared_hw: tuple[int, int] | None
    objects: tuple[SourceObject, ...]

    def reject_record(self, reason: Reason, detail: str) -> Reject:
        """A refusal of the whole image; the file at fault is the image."""
        return Reject(
            reason=reason,
            scope="record",
            split=self.split,
            file=self.image_path,
            record_key=self.record_key,
            detail=detail,
        )

    def reject_box(self, reason: Reason, detail: str) -> Reject:
        """A refusal of one box; the file at fault is the annotation."""
        return Reject(
            reason=reason,
            scope="box",
            split=self.split,
            file=self.annotation_path,
            record_key=self.record_key,
            detail=detail,
        )


@dataclass
class SourceSplit:
    """One split as its reader found it.

    Attributes:
        source: the list file or annotation file, relative to the data folder.
        class_ids: label-map ids by class name where the format states them (COCO categories), else None.
        rejects: what the reader itself refused; those of scope "record" are not in `records`.
        num_boxes_in: objects that the annotations hold, usable or not.
        num_boxes_quarantined: those of refused records that are not in `records`.
    """

    split: str
    source: str
    class_ids: Mapping[str, int] | None = None
    records: list[SourceRecord] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    num_boxes_in: int = 0
    num_boxes_quarantined: int = 0

    @property
    def num_records_in(self) -> int:
        return len(self.records) + sum(reject.scope == "record" for reject in self.rejects)

    def class_names(self) -> Iterator[str]:
        return (item.class_name for record in self.records for item in record.objects)


def join_inside(folder: str, name: str) -> str | None:
    """`folder/name` in normal form, relative to the data folder; None where the name leads out of the folder."""
    if not name or "\0" in name or os.path.isabs(name) or posixpath.isabs(name):
        return None
    path = posixpath.normpath(posixpath.join(folder, name))
    base = posixpath.normpath(folder) if folder else "."
    inside = not path.startswith("../") and path not in ("..", ".")
    return path if inside and (base == "." or path.startswith(base + "/")) else None
