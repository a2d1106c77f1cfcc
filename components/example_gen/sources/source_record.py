"""Define the input and output of annotation readers: records as the data set states them, not checked against the
image.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError

LEFT_OUT_CLASS = "other_class"  # kind of marks that are left out: objects of a class that was not requested
# After this many chunks of a source, the others are larger by this factor: each chunk costs several requests.
_NUM_SMALL_CHUNKS = 64
_LARGE_CHUNK = 4
MAX_ANNOTATION_BYTES = 16 * 2**20  # of a file of one image, or of one element of a file of all images
RECORDS_PER_CHUNK = 256
TOO_MANY_CLASSES = 100_000  # different names; more indicate damage or a wrong column, not classes


class SourceObject(NamedTuple):
    """One labelled object. A named tuple is created four times as fast as a data class; data sets have millions of
    objects.

    Attributes:
        box_xyxy: xmin, ymin, xmax, ymax as in the file, in pixels or, if the record is relative, from 0 to 1. It may be
            inverted, outside the image or not finite.
        area_px: square pixels, of the mask if there is one; None means the box's area.
        group_of: the box covers several touching objects (Open Images).
        mask: as in the file, in COCO's forms: a list of polygons [x1, y1, x2, y2, ...] in pixels, or a mapping with
            `size` [height, width] and `counts` (compressed as text, uncompressed as list); None without a mask.
        keypoints: x, y in the unit of the box, and COCO's visibility 0, 1 or 2, in the class's order.
    """

    class_name: str
    box_xyxy: tuple[float, float, float, float]
    difficult: bool = False
    truncated: bool = False
    is_crowd: bool = False
    group_of: bool = False
    area_px: float | None = None
    mask: Any = None
    keypoints: tuple[tuple[float, float, int], ...] | None = None


class SourceRecord(NamedTuple):
    """One image and its labels.

    Attributes:
        split: as in the chunk.
        record_key: written as `image/source_id`; unique in its source.
        image_path: relative to the data folder, with forward slashes; for TFRecords, the records file. A reader may
            return it as written in the annotation: `formats.read_chunk` finds the file.
        annotation_path: likewise; rejects of boxes name this file. "" for an image without a label file.
        declared_hw: height and width that the annotation states, or None.
        is_relative: boxes and keypoints are fractions of the image's size, not pixels.
        left_out: marks that are not objects, by kind, such as KITTI's DontCare: counted, not rejected.
        example_at: for TFRecords, byte offset and length of the serialized tf.Example in `image_path`; else None.
        is_found_by_name: the image is not exactly where the annotation says; it may belong to another record.
    """

    split: str
    record_key: str
    image_path: str
    annotation_path: str
    declared_hw: tuple[int, int] | None
    objects: tuple[SourceObject, ...]
    is_relative: bool = False
    left_out: tuple[tuple[str, int], ...] = ()
    example_at: tuple[int, int] | None = None
    is_found_by_name: bool = False

    @property
    def num_fractions(self) -> int:
        """Number of boxes in pixels that are inside of one pixel."""
        if self.is_relative:
            return 0
        return sum(0 <= min(each.box_xyxy) <= max(each.box_xyxy) <= 1 for each in self.objects)

    def reject_record(self, reason: Reason, detail: str) -> Reject:
        """Return a reject of the whole image, which names the image file."""
        chunk = Chunk(self.split, self.image_path)
        return chunk.reject_record(reason, self.record_key, detail, num_boxes=len(self.objects))

    def reject_box(self, reason: Reason, detail: str) -> Reject:
        """Return a reject of one box, which names the annotation file."""
        return Chunk(self.split, self.annotation_path).reject_box(reason, self.record_key, detail)


@dataclass(frozen=True, slots=True)
class SourceClass:
    """A class that the data set declares; `class_id` is its label-map id, or None if the format has no ids.

    A reader may yield classes before or after its records, any number of times.
    """

    name: str
    class_id: int | None = None


SourceItem = SourceRecord | Reject | SourceClass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the annotations that one worker reads.

    Attributes:
        split: the data set's own; "" if splits are assigned later.
        source: the list, annotation file or folder of the chunk, relative to the data folder; named in the report and
            in messages.
        names: the records' names, for formats with one file per image; empty if the chunk is all of `source`.
    """

    split: str
    source: str
    names: tuple[str, ...] = ()

    def reject_record(
        self, reason: Reason, record_key: str, detail: str, *, file: str = "", num_boxes: int = 0
    ) -> Reject:
        """Return a reject of a record with its boxes; `file` is the source by default."""
        return self._reject("record", reason, record_key, detail, file, num_boxes)

    def reject_box(self, reason: Reason, record_key: str, detail: str, *, file: str = "", num_boxes: int = 1) -> Reject:
        """Return a reject of one box of a record that is kept; `file` is the source by default."""
        return self._reject("box", reason, record_key, detail, file, num_boxes)

    def _reject(self, scope: str, reason: Reason, record_key: str, detail: str, file: str, num_boxes: int) -> Reject:
        return Reject(
            reason=reason,
            scope=scope,
            split=self.split,
            file=file or self.source,
            record_key=record_key,
            detail=detail,
            num_boxes=num_boxes,
        )


@dataclass(frozen=True, slots=True)
class FormatEvidence:
    """The reason why a folder matches a format.

    Attributes:
        sentence: what was found, as text without a full stop.
        splits: the data set's own splits, source by name; empty if it has none.
    """

    sentence: str
    splits: Mapping[str, str]


def cut_into_chunks(split: str, source: str, names: Iterable[str], if_empty: str = "") -> Iterator[Chunk]:
    """Yield chunks of `RECORDS_PER_CHUNK` names, of a large source more; the last one may be smaller.

    Raises:
        InputError: `if_empty`, if it is given and there is no name.
    """
    rest, size = iter(names), RECORDS_PER_CHUNK
    for number in itertools.count():
        if number == _NUM_SMALL_CHUNKS:
            size *= _LARGE_CHUNK
        part = tuple(itertools.islice(rest, size))
        if not part:
            break
        yield Chunk(split, source, part)
    if number == 0 and if_empty:
        raise InputError(if_empty)


def bounding_box(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the box around points; NaN if a coordinate is not finite, which `min` and `max` would hide."""
    if not all(map(math.isfinite, (*xs, *ys))):
        return math.nan, math.nan, math.nan, math.nan
    return min(xs), min(ys), max(xs), max(ys)
