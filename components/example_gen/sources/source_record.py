"""What every annotation reader takes and returns: records as the data set states them, unchecked against the image."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from detloom.schemas.rejects import Reason, Reject


class SourceObject(NamedTuple):
    """One labelled object. A named tuple, since data sets hold hundreds of millions: it is made four times as fast.

    Attributes:
        box_xyxy: xmin, ymin, xmax, ymax as the file says, in pixels or, where the record is relative, from 0 to 1: may
            be inverted, outside the image or not finite.
        area_px: square pixels, of the mask where there is one; None: that of the box.
        group_of: the box holds several objects that touch (Open Images).
        mask: of COCO's kinds, as it stands in the file: a list of polygons [x1, y1, x2, y2, ...] in pixels, or a
            mapping with `size` [height, width] and `counts` (text: compressed, list: not); None where there is none.
        keypoints: x, y in the unit of the box, and COCO's visibility 0, 1 or 2, in the order of the class's names.
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


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """One image and its labels.

    Attributes:
        split: as the chunk says.
        record_key: becomes `image/source_id`; unique in its source.
        image_path: relative to the data folder, forward slashes; for TFRecords, the records file.
        annotation_path: likewise; the file that a reject of a box names.
        declared_hw: height and width that the annotation states, if it does.
        is_relative: boxes and keypoints are fractions of the image's size, not pixels.
        left_out: marks that are no objects, by kind, such as KITTI's DontCare: counted, not refused.
        example_at: byte offset and length of the serialized tf.Example in `image_path`, for TFRecords; else None.
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

    def reject_record(self, reason: Reason, detail: str) -> Reject:
        """A refusal of the whole image; the file at fault is the image."""
        return reject_record(self.split, reason, self.image_path, self.record_key, detail, len(self.objects))

    def reject_box(self, reason: Reason, detail: str) -> Reject:
        """A refusal of one box; the file at fault is the annotation."""
        return reject_box(self.split, reason, self.annotation_path, self.record_key, detail)


def reject_record(split: str, reason: Reason, file: str, record_key: str, detail: str, num_boxes: int = 0) -> Reject:
    """A refusal of a record with its boxes."""
    return Reject(
        reason=reason,
        scope="record",
        split=split,
        file=file,
        record_key=record_key,
        detail=detail,
        num_boxes=num_boxes,
    )


def reject_box(split: str, reason: Reason, file: str, record_key: str, detail: str) -> Reject:
    """A refusal of one box of a record that is kept."""
    return Reject(reason=reason, scope="box", split=split, file=file, record_key=record_key, detail=detail, num_boxes=1)


@dataclass(frozen=True, slots=True)
class SourceClass:
    """A class that the data set declares; `class_id` is its label-map id, None where the format has no ids of its own.

    A reader yields them before or after its records, each as often as it likes.
    """

    name: str
    class_id: int | None = None


SourceItem = SourceRecord | Reject | SourceClass


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the annotations that one worker reads on its own.

    Attributes:
        split: as the data set gives it; "" where splits are assigned later.
        source: the list, annotation file or folder that the chunk belongs to, relative to the data folder; named in the
            report and in messages.
        names: the records' names, of formats with a file an image; empty where the chunk is all of `source`.
    """

    split: str
    source: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """What readers need to know beside the data folder.

    Attributes:
        images_dir: folder of the images relative to the data folder; "" for the format's usual one.
        hierarchy_file: Open Images' class hierarchy JSON, relative to the data folder: boxes of a class become boxes of
            its ancestors too; "" for none.
        with_masks, with_keypoints: whether to keep them; without, they are not even parsed.
        max_annotation_bytes: of one file an image, or of one element of a file for all images.
        records_per_chunk: names in one chunk.
        scratch: a folder for temporary files of the worker, on its own disk; "" for the system's.
    """

    images_dir: str = ""
    hierarchy_file: str = ""
    with_masks: bool = False
    with_keypoints: bool = False
    max_annotation_bytes: int = 16 * 2**20
    records_per_chunk: int = 256
    scratch: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a folder looks like a format.

    Attributes:
        sentence: what was found, for people, without a full stop.
        splits: the data set's own splits, source by name; empty where it has none.
    """

    sentence: str
    splits: Mapping[str, str]


def cut_into_chunks(split: str, source: str, names: Iterator[str], settings: ReaderSettings) -> Iterator[Chunk]:
    """Chunks of `records_per_chunk` names each, the last of what is left."""
    part: list[str] = []
    for name in names:
        part.append(name)
        if len(part) == settings.records_per_chunk:
            yield Chunk(split, source, tuple(part))
            part = []
    if part:
        yield Chunk(split, source, tuple(part))
