"""One source record and its image bytes to one serialized tf.Example, or to the reason why not."""

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from detloom.components.example_gen.decoded_image import check_decodes, turn_upright
from detloom.components.example_gen.image_header import ImageError, ImageHeader, read_image_header
from detloom.components.example_gen.ingest_job import LEFT_OUT_CLASS
from detloom.components.example_gen.mask_png import encode_mask_png
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord
from detloom.schemas import example_keys as keys
from detloom.schemas.rejects import Reason, Reject

# A box that sticks out of the image by at most this is clipped, not refused: 1 px absorbs 0- against 1-based pixels,
# 1 % of the side absorbs labels that were drawn on a resized copy.
CLIP_TOLERANCE_PX = 1.0
CLIP_TOLERANCE_FRACTION = 0.01
MAX_RECORD_BYTES = 512 * 2**20  # with masks; protocol buffers end at 2 GiB, readers hold many records at a time

REPAIR_CLIPPED = "box_clipped"
REPAIR_AREA = "area_recomputed"  # a stated area that is not positive or exceeds the image becomes that of the box
REPAIR_ROTATED = "exif_rotated"  # turned upright and encoded again
REPAIR_EXIF_IGNORED = "exif_ignored"  # left as stored, since the labels were made on that
REPAIR_FORMAT = "format_corrected"  # the file's name says another format than its content

_FORMAT_OF_SUFFIX = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}
_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class SourceImage:
    """The image of one record.

    Attributes:
        encoded: JPEG or PNG, as stored.
        file_name: becomes `image/filename`.
        features: of an existing tf.Example, the ones beside our own, which are passed through.
        is_upright: the labels belong to the pixels as stored, whatever EXIF says: TensorFlow's decoders do not look.
    """

    encoded: bytes
    file_name: str
    features: Mapping[str, tf.train.Feature] = field(default_factory=dict)
    is_upright: bool = False


@dataclass(slots=True)
class BuiltExample:
    """A record that is good enough to be written.

    Attributes:
        example: serialized tf.train.Example; the same bytes for the same input, always.
        rejects: its refused boxes.
        repairs, left_out: how often each kind of repair was applied, and each kind of mark is no object.
        class_names: of the boxes written.
        decode_seconds: spent on decoding the whole image, if that was asked for.
    """

    example: bytes = b""
    rejects: list[Reject] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    class_names: list[str] = field(default_factory=list)
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """An object to be written; `box_yxyx_rel` lies inside 0 to 1 and has an area, also in float32."""

    item: SourceObject
    box_yxyx_rel: _Box
    mask_png: bytes | None


def build_example(
    record: SourceRecord, image: SourceImage, *, class_ids: Mapping[str, int], params: ExampleGenParams
) -> BuiltExample | Reject:
    """Check one record and encode it; a `Reject` is that of the whole record.

    An object of a class that is not in `class_ids` is refused as a box, or left out where `unknown_class` says so.
    """
    built = BuiltExample()
    built.left_out.update(dict(record.left_out))
    try:
        encoded, header = _check_image(record, image, params, built)
    except ImageError as error:
        return record.reject_record(error.reason, error.detail)
    if len(record.objects) > params.max_boxes:
        detail = f"{len(record.objects)} boxes, allowed: {params.max_boxes} (max_boxes)"
        return record.reject_record(Reason.TOO_MANY_BOXES, detail)
    kept = []
    for index, item in enumerate(record.objects):
        if item.class_name not in class_ids:
            if params.unknown_class == "leave_out":
                built.left_out[LEFT_OUT_CLASS] += 1
            else:
                detail = f"object {index}: class {item.class_name!r} is not among the classes"
                built.rejects.append(record.reject_box(Reason.UNKNOWN_CLASS, detail))
            continue
        checked = _check_object(item, header, record.is_relative, params.with_masks, built)
        if isinstance(checked, _Kept):
            kept.append(checked)
        else:
            detail = f"object {index} ({item.class_name!r:.80}): {checked[1]}"
            built.rejects.append(record.reject_box(checked[0], detail))
    built.class_names.extend(entry.item.class_name for entry in kept)
    features = _encode(record, image, encoded, header, kept, class_ids, built)
    if params.with_masks:
        features[keys.MASK] = _bytes([entry.mask_png or b"" for entry in kept])
    if params.with_keypoints:
        features.update(_encode_keypoints(kept, header, record.is_relative))
    num_bytes = len(encoded) + sum(len(entry.mask_png or b"") for entry in kept)
    if num_bytes > MAX_RECORD_BYTES:
        return record.reject_record(Reason.RECORD_TOO_LARGE, f"{num_bytes} bytes, allowed: {MAX_RECORD_BYTES}")
    example = tf.train.Example(features=tf.train.Features(feature=features))
    built.example = example.SerializeToString(deterministic=True)
    return built


def _check_image(
    record: SourceRecord, image: SourceImage, params: ExampleGenParams, built: BuiltExample
) -> tuple[bytes, ImageHeader]:
    """The bytes to write, upright, and their header."""
    header = read_image_header(image.encoded)
    stored_hw = (header.height, header.width)
    if header.height * header.width > params.max_pixels:
        detail = f"{header.width}x{header.height} pixels, allowed: {params.max_pixels} (max_pixels)"
        raise ImageError(Reason.TOO_MANY_PIXELS, detail)
    if record.declared_hw not in (None, stored_hw, header.upright_hw):
        assert record.declared_hw is not None
        height, width = record.declared_hw
        detail = f"the annotation states {width}x{height} pixels, the image has {header.width}x{header.height}"
        raise ImageError(Reason.WRONG_DIMENSIONS, detail)
    encoded = image.encoded
    if params.decode_images:
        started = time.monotonic()
        check_decodes(encoded)
        built.decode_seconds += time.monotonic() - started
    if header.orientation != 1:
        # Stated sizes tell whether labels were made on the image as stored or as shown; where both are alike or none is
        # stated, as shown: labelling tools turn images.
        if image.is_upright or (record.declared_hw == stored_hw != header.upright_hw):
            built.repairs[REPAIR_EXIF_IGNORED] += 1
        elif params.exif_rotation == "reject":
            raise ImageError(Reason.EXIF_ROTATED, f"EXIF orientation {header.orientation}, allowed: 1 (exif_rotation)")
        else:
            encoded = turn_upright(encoded)
            header = read_image_header(encoded)
            built.repairs[REPAIR_ROTATED] += 1
    elif record.declared_hw not in (None, stored_hw):
        raise AssertionError("an upright image has one size")
    suffix = os.path.splitext(image.file_name)[1].lower()
    if _FORMAT_OF_SUFFIX.get(suffix, header.format) != header.format:
        built.repairs[REPAIR_FORMAT] += 1
    return encoded, header


def _check_object(
    item: SourceObject, header: ImageHeader, is_relative: bool, with_masks: bool, built: BuiltExample
) -> _Kept | tuple[Reason, str]:
    checked = check_box(item.box_xyxy, header, is_relative=is_relative)
    if len(checked) == 2:
        return checked
    box, clipped = checked[:4], checked[4]
    for point in item.keypoints or ():
        if not (math.isfinite(point[0]) and math.isfinite(point[1]) and point[2] in (0, 1, 2)):
            return Reason.UNREADABLE_KEYPOINTS, f"keypoint {point}, allowed: two finite numbers and 0, 1 or 2"
    mask_png = None
    if with_masks:
        if item.mask is None:
            return Reason.UNREADABLE_MASK, "no mask"
        try:
            mask_png = encode_mask_png(item.mask, (header.height, header.width))
        except ValueError as error:
            return Reason.UNREADABLE_MASK, str(error)
    if clipped:
        built.repairs[REPAIR_CLIPPED] += 1
    return _Kept(item, box, mask_png)


def check_box(
    box_xyxy: _Box, header: ImageHeader, *, is_relative: bool
) -> tuple[float, float, float, float, bool] | tuple[Reason, str]:
    """ymin, xmin, ymax, xmax from 0 to 1 and whether the box was clipped; or why it is refused."""
    xmin, ymin, xmax, ymax = box_xyxy
    # One comparison each for what nearly every box satisfies; NaN satisfies none.
    if not (xmin < xmax and ymin < ymax):
        if not all(map(math.isfinite, box_xyxy)):
            return Reason.BOX_NOT_FINITE, _show(box_xyxy)
        if xmax < xmin or ymax < ymin:
            return Reason.BOX_INVERTED, _show(box_xyxy)
        return Reason.BOX_WITHOUT_AREA, _show(box_xyxy)
    width, height = (1.0, 1.0) if is_relative else (header.width, header.height)
    clipped = xmin < 0 or ymin < 0 or xmax > width or ymax > height
    if clipped:
        refused = _check_outside(box_xyxy, width, height, header)
        if refused is not None:
            return refused
        xmin, ymin, xmax, ymax = max(xmin, 0.0), max(ymin, 0.0), min(xmax, width), min(ymax, height)
    box = (ymin / height, xmin / width, ymax / height, xmax / width)
    # Only where the sides are tiny can float32, of 24 bits, make the corners meet.
    if min(box[2] - box[0], box[3] - box[1]) < 1e-6:
        low_y, low_x, high_y, high_x = np.array(box, np.float32)
        if not (high_y > low_y and high_x > low_x):
            return Reason.BOX_WITHOUT_AREA, f"{_show(box_xyxy)}: without area in float32"
    return *box, clipped


def _check_outside(box_xyxy: _Box, width: float, height: float, header: ImageHeader) -> tuple[Reason, str] | None:
    """Why a box that sticks out of the image is refused, in the unit of the box; None where it may be clipped."""
    xmin, ymin, xmax, ymax = box_xyxy
    if not all(map(math.isfinite, box_xyxy)):
        return Reason.BOX_NOT_FINITE, _show(box_xyxy)
    unit = "" if width == 1.0 and height == 1.0 else " px"
    size = f"the image has {header.width}x{header.height} pixels"
    if xmax <= 0 or ymax <= 0 or xmin >= width or ymin >= height:
        return Reason.BOX_OUTSIDE, f"{_show(box_xyxy)}: entirely outside; {size}"
    allowed_x = max(CLIP_TOLERANCE_PX / header.width, CLIP_TOLERANCE_FRACTION) * width
    allowed_y = max(CLIP_TOLERANCE_PX / header.height, CLIP_TOLERANCE_FRACTION) * height
    out_x, out_y = max(-xmin, xmax - width), max(-ymin, ymax - height)
    if out_x <= allowed_x and out_y <= allowed_y:
        return None
    detail = f"sticks out by {max(out_x, out_y):g}{unit}; {size}; clipped up to {allowed_x:g} by {allowed_y:g}{unit}"
    return Reason.BOX_OUTSIDE, f"{_show(box_xyxy)}: {detail}"


def _show(box_xyxy: _Box) -> str:
    return "xmin {:g}, ymin {:g}, xmax {:g}, ymax {:g}".format(*box_xyxy)


def _encode(
    record: SourceRecord,
    image: SourceImage,
    encoded: bytes,
    header: ImageHeader,
    kept: list[_Kept],
    class_ids: Mapping[str, int],
    built: BuiltExample,
) -> dict[str, tf.train.Feature]:
    boxes_yxyx_N4 = np.array([entry.box_yxyx_rel for entry in kept], np.float32).reshape(-1, 4)
    num_pixels = header.height * header.width
    box_areas_N = ((boxes_yxyx_N4[:, 2:] - boxes_yxyx_N4[:, :2]) * (header.height, header.width)).prod(axis=1)
    areas = box_areas_N.tolist()
    for index, entry in enumerate(kept):
        area = entry.item.area_px
        if area is None:
            continue
        if 0 < area <= num_pixels:
            areas[index] = area
        else:
            built.repairs[REPAIR_AREA] += 1
    items = [entry.item for entry in kept]
    features = {
        **image.features,
        keys.IMAGE_ENCODED: _bytes([encoded]),
        keys.IMAGE_FORMAT: _bytes([header.format.encode()]),
        keys.IMAGE_HEIGHT: _ints([header.height]),
        keys.IMAGE_WIDTH: _ints([header.width]),
        keys.IMAGE_FILENAME: _bytes([image.file_name.encode()]),
        keys.IMAGE_SOURCE_ID: _bytes([record.record_key.encode()]),
        keys.IMAGE_SHA256: _bytes([hashlib.sha256(encoded).hexdigest().encode()]),
        keys.CLASS_ID: _ints([class_ids[item.class_name] for item in items]),
        keys.CLASS_TEXT: _bytes([item.class_name.encode() for item in items]),
        keys.AREA: _floats(areas),
        keys.IS_CROWD: _ints([item.is_crowd for item in items]),
        keys.DIFFICULT: _ints([item.difficult for item in items]),
        keys.TRUNCATED: _ints([item.truncated for item in items]),
        keys.GROUP_OF: _ints([item.group_of for item in items]),
    }
    columns = boxes_yxyx_N4.T.tolist()
    for key, column in zip(keys.BOX_KEYS_YXYX, columns, strict=True):
        features[key] = _floats(column)
    return features


def _encode_keypoints(kept: list[_Kept], header: ImageHeader, is_relative: bool) -> dict[str, tf.train.Feature]:
    width, height = (1, 1) if is_relative else (header.width, header.height)
    points = [point for entry in kept for point in entry.item.keypoints or ()]
    return {
        keys.KEYPOINT_X: _floats([x / width for x, _, _ in points]),
        keys.KEYPOINT_Y: _floats([y / height for _, y, _ in points]),
        keys.KEYPOINT_VISIBILITY: _ints([visibility for _, _, visibility in points]),
        keys.NUM_KEYPOINTS: _ints([len(entry.item.keypoints or ()) for entry in kept]),
    }


def _bytes(values: Iterable[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _ints(values: Iterable[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: Iterable[float]) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
