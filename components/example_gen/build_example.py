"""One source record and its image bytes to one serialized tf.Example, or to the reason why not."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from detloom.components.example_gen.image_header import ImageError, ImageHeader, read_image_header
from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord
from detloom.schemas import example_keys as keys
from detloom.schemas.rejects import Reason, Reject

# A box that sticks out of the image by at most this is clipped, not refused: 1 px absorbs 0- against 1-based pixels,
# 1 % of the side absorbs labels that were drawn on a resized copy.
CLIP_TOLERANCE_PX = 1.0
CLIP_TOLERANCE_FRACTION = 0.01
REPAIR_CLIPPED = "box_clipped"
REPAIR_AREA = "area_recomputed"  # a stated area that is not positive or exceeds the image becomes that of the box


@dataclass(frozen=True)
class BuiltExample:
    """A record that is good enough to be written.

    Attributes:
        example: serialized tf.train.Example; the same bytes for the same input, always.
        rejects: its refused boxes.
        repairs: how often each kind of repair was applied.
        class_names: of the boxes written.
    """

    example: bytes
    rejects: list[Reject] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    class_names: list[str] = field(default_factory=list)


def build_example(
    record: SourceRecord, image: bytes, *, class_ids: Mapping[str, int], max_pixels: int
) -> BuiltExample | Reject:
    """Check one record and encode it; a `Reject` is that of the whole record.

    An object of a class that is not in `class_ids` is refused as a box.
    """
    try:
        header = read_image_header(image)
    except ImageError as error:
        return record.reject_record(error.reason, error.detail)
    if header.height * header.width > max_pixels:
        detail = f"{header.width}x{header.height} pixels, allowed: {max_pixels} (max_pixels)"
        return record.reject_record(Reason.TOO_MANY_PIXELS, detail)
    if record.declared_hw is not None and record.declared_hw != (header.height, header.width):
        height, width = record.declared_hw
        detail = f"the annotation states {width}x{height} pixels, the image has {header.width}x{header.height}"
        return record.reject_record(Reason.WRONG_DIMENSIONS, detail)

    built = BuiltExample(b"")
    objects: list[SourceObject] = []
    boxes_yxyx_rel: list[np.ndarray] = []
    for index, item in enumerate(record.objects):
        if item.class_name not in class_ids:
            detail = f"object {index}: class {item.class_name!r} is not among the classes"
            built.rejects.append(record.reject_box(Reason.UNKNOWN_CLASS, detail))
            continue
        checked = check_box(item.box_xyxy_px, header)
        if isinstance(checked, CheckedBox):
            objects.append(item)
            boxes_yxyx_rel.append(checked.box_yxyx_rel)
            built.repairs.update([REPAIR_CLIPPED] if checked.clipped else [])
            built.repairs.update([REPAIR_AREA] if item.area_px is not None and not _has_area(item, header) else [])
        else:
            reason, problem = checked
            detail = f"object {index} ({item.class_name!r}): {problem}"
            built.rejects.append(record.reject_box(reason, detail))
    built.class_names.extend(item.class_name for item in objects)
    example = _encode(record, image, header, objects, boxes_yxyx_rel, class_ids)
    return BuiltExample(example, built.rejects, built.repairs, built.class_names)


@dataclass(frozen=True, slots=True)
class CheckedBox:
    """`box_yxyx_rel` is float32 [4], inside 0 to 1, with an area."""

    box_yxyx_rel: np.ndarray
    clipped: bool


def check_box(box_xyxy_px: tuple[float, float, float, float], header: ImageHeader) -> CheckedBox | tuple[Reason, str]:
    """The box relative to the image, or why it is refused."""
    xmin, ymin, xmax, ymax = box_xyxy_px
    shown = f"xmin {xmin:g}, ymin {ymin:g}, xmax {xmax:g}, ymax {ymax:g}"
    if not all(math.isfinite(value) for value in box_xyxy_px):
        return Reason.BOX_NOT_FINITE, shown
    if xmax < xmin or ymax < ymin:
        return Reason.BOX_INVERTED, shown
    if xmax == xmin or ymax == ymin:
        return Reason.BOX_WITHOUT_AREA, shown
    size = f"the image has {header.width}x{header.height} pixels"
    if xmax <= 0 or ymax <= 0 or xmin >= header.width or ymin >= header.height:
        return Reason.BOX_OUTSIDE, f"{shown}: entirely outside; {size}"
    allowed_x = max(CLIP_TOLERANCE_PX, CLIP_TOLERANCE_FRACTION * header.width)
    allowed_y = max(CLIP_TOLERANCE_PX, CLIP_TOLERANCE_FRACTION * header.height)
    out_x, out_y = max(-xmin, xmax - header.width), max(-ymin, ymax - header.height)
    if out_x > allowed_x or out_y > allowed_y:
        detail = (
            f"{shown}: sticks out by {max(out_x, out_y):g} px; {size}; clipped up to {allowed_x:g} by {allowed_y:g}"
        )
        return Reason.BOX_OUTSIDE, detail
    box_yxyx_rel = np.array(
        [
            max(ymin, 0.0) / header.height,
            max(xmin, 0.0) / header.width,
            min(ymax, header.height) / header.height,
            min(xmax, header.width) / header.width,
        ],
        np.float32,
    )
    if not (box_yxyx_rel[2] > box_yxyx_rel[0] and box_yxyx_rel[3] > box_yxyx_rel[1]):
        return Reason.BOX_WITHOUT_AREA, f"{shown}: without area in float32"
    return CheckedBox(box_yxyx_rel, clipped=out_x > 0 or out_y > 0)


def _has_area(item: SourceObject, header: ImageHeader) -> bool:
    return item.area_px is not None and 0 < item.area_px <= header.height * header.width


def _encode(
    record: SourceRecord,
    image: bytes,
    header: ImageHeader,
    objects: list[SourceObject],
    boxes_yxyx_rel: list[np.ndarray],
    class_ids: Mapping[str, int],
) -> bytes:
    boxes_yxyx_N4 = np.stack(boxes_yxyx_rel) if boxes_yxyx_rel else np.zeros((0, 4), np.float32)
    heights_widths_N2 = (boxes_yxyx_N4[:, 2:] - boxes_yxyx_N4[:, :2]) * np.array([header.height, header.width])
    box_areas_N = heights_widths_N2.prod(axis=1)
    areas = [
        item.area_px if item.area_px is not None and _has_area(item, header) else box_area
        for item, box_area in zip(objects, box_areas_N, strict=True)
    ]
    feature = {
        keys.IMAGE_ENCODED: _bytes([image]),
        keys.IMAGE_FORMAT: _bytes([header.format.encode()]),
        keys.IMAGE_HEIGHT: _ints([header.height]),
        keys.IMAGE_WIDTH: _ints([header.width]),
        keys.IMAGE_FILENAME: _bytes([record.image_path.encode()]),
        keys.IMAGE_SOURCE_ID: _bytes([record.record_key.encode()]),
        keys.IMAGE_SHA256: _bytes([hashlib.sha256(image).hexdigest().encode()]),
        keys.CLASS_ID: _ints([class_ids[item.class_name] for item in objects]),
        keys.CLASS_TEXT: _bytes([item.class_name.encode() for item in objects]),
        keys.IS_CROWD: _ints([int(item.is_crowd) for item in objects]),
        keys.AREA: _floats(areas),
        keys.DIFFICULT: _ints([int(item.difficult) for item in objects]),
        keys.TRUNCATED: _ints([int(item.truncated) for item in objects]),
    }
    for column, key in enumerate(keys.BOX_KEYS_YXYX):
        feature[key] = _floats(boxes_yxyx_N4[:, column])
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)


def _bytes(values: Iterable[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _ints(values: Iterable[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: Iterable[float]) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
