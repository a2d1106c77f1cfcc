"""Read the image of one source record, and convert both to one serialized tf.Example, or to a reject."""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.decoded_image import check_decodes, turn_upright
from detloom.components.example_gen.encode_example import (
    bytes_feature,
    encode_example,
    float_feature,
    int_feature,
)
from detloom.components.example_gen.mask_png import encode_mask_png
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.sources.labelme import read_embedded_image
from detloom.components.example_gen.sources.source_record import LEFT_OUT_CLASS, SourceObject, SourceRecord
from detloom.components.image_header import ImageError, ImageHeader, read_image_header
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.rejects import Reason, Reject

# A box that extends past the image by at most this is clipped, not rejected: 1 px covers the difference between 0-based
# and 1-based pixels, 1 % of the side covers labels drawn on a resized copy.
CLIP_TOLERANCE_PX = 1.0
CLIP_TOLERANCE_FRACTION = 0.01
MAX_MASK_PIXELS = 500_000_000  # of all masks of a record: takes a few seconds; 60 masks of 640x480 have 18 million
# including masks; protocol buffers end at 2 GiB, and readers hold many records at a time
MAX_RECORD_BYTES = 512 * 2**20

REPAIR_CLIPPED = "box_clipped"
REPAIR_AREA = "area_recomputed"  # a stated area that is not positive or exceeds the image is replaced by the box's area
REPAIR_ROTATED = "exif_rotated"  # rotated upright and re-encoded
REPAIR_EXIF_IGNORED = "exif_ignored"  # left as stored, because the labels were made on the stored pixels
REPAIR_FEATURE_DROPPED = "object_feature_dropped"  # of an existing example that lost some of its objects
REPAIR_FORMAT = "format_corrected"  # the file name's suffix contradicts the content

_OBJECT_PREFIX = "image/object/"
_MAX_FLOAT32 = 3.4028234e38
_FORMAT_OF_SUFFIX = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}
_Box = tuple[float, float, float, float]
# Keys that ingestion computes; all other features of an existing tf.Example are copied.
OWN_KEYS = frozenset(
    (
        keys.IMAGE_ENCODED, *keys.STATISTICS_KEYS, keys.MASK,
        keys.KEYPOINT_X, keys.KEYPOINT_Y, keys.KEYPOINT_VISIBILITY, keys.NUM_KEYPOINTS,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceImage:
    """The image of one record.

    Attributes:
        encoded: JPEG or PNG, as stored.
        file_name: written as `image/filename`.
        features: features of an existing tf.Example that are copied unchanged (tf.train.Feature).
        num_objects: number of objects in that example.
        is_upright: the labels refer to the pixels as stored, whatever EXIF says: TensorFlow's decoders ignore EXIF.
    """

    encoded: bytes
    file_name: str
    features: Mapping[str, Any] = field(default_factory=dict)
    num_objects: int = 0
    is_upright: bool = False


@dataclass(slots=True)
class BuiltExample:
    """A record that can be written.

    Attributes:
        example: serialized tf.train.Example; the same input always gives the same bytes.
        rejects: the record's rejected boxes.
        repairs: number of repairs, by kind.
        left_out: number of marks that are not objects, by kind.
        class_names: classes of the written boxes.
    """

    example: bytes = b""
    rejects: list[Reject] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    class_names: list[str] = field(default_factory=list)


class _Kept(NamedTuple):
    """The object at `place` in its record, to be written; its box is inside 0 to 1 and has an area in float32."""

    place: int
    item: SourceObject
    box_yxyx_rel: _Box
    mask_png: bytes | None


def read_image(record: SourceRecord, folder: DataFolder, max_bytes: int) -> SourceImage:
    """Read the image of a record as it is stored.

    Raises:
        SourceError: if that fails.
    """
    if record.example_at is None and record.image_path.lower().endswith(".json"):
        return SourceImage(read_embedded_image(folder, record.image_path), record.image_path)
    if record.example_at is None:
        return SourceImage(folder.read_bytes(record.image_path, max_bytes), record.image_path)
    offset, length = record.example_at
    if length > max_bytes:
        raise SourceError(Reason.RECORD_TOO_LARGE, f"a record of {length} bytes, allowed: {max_bytes}")
    from detloom.trainer_module.data.records import parse_features  # late, because it imports TensorFlow

    data = folder.read_part(record.image_path, offset, length)
    try:
        features = parse_features(data)
    except ValueError:
        raise SourceError(Reason.UNREADABLE_ANNOTATION, "not a tf.Example") from None
    encoded = features[keys.IMAGE_ENCODED].bytes_list.value
    if len(encoded) != 1:
        raise SourceError(Reason.NOT_AN_IMAGE, f"{len(encoded)} values of {keys.IMAGE_ENCODED}, allowed: 1")
    named = features[keys.IMAGE_FILENAME].bytes_list.value
    file_name = named[0].decode("utf-8", "replace") if named else record.record_key
    others = {key: feature for key, feature in features.items() if key not in OWN_KEYS}
    num_objects = len(features[keys.BOX_XMIN].float_list.value)
    return SourceImage(encoded[0], file_name, others, num_objects, is_upright=True)


def build_example(
    record: SourceRecord, image: SourceImage, *, class_ids: Mapping[str, int], params: ExampleGenParams
) -> BuiltExample | Reject:
    """Check one record and encode it; a `Reject` covers the whole record.

    An object of a class that is not in `class_ids` is rejected, or left out if `unknown_class` says so.
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
    num_mask_pixels = sum(item.mask is not None for item in record.objects) * header.height * header.width
    if params.masks and num_mask_pixels > MAX_MASK_PIXELS:
        detail = f"{num_mask_pixels} mask pixels, allowed: {MAX_MASK_PIXELS}"
        return record.reject_record(Reason.RECORD_TOO_LARGE, detail)
    kept = []
    for index, item in enumerate(record.objects):
        if item.class_name not in class_ids:
            if params.unknown_class == "leave_out":
                built.left_out[LEFT_OUT_CLASS] += 1
            else:
                detail = f"object {index}: class {item.class_name!r} is not among the classes"
                built.rejects.append(record.reject_box(Reason.UNKNOWN_CLASS, detail))
            continue
        checked = _check_object(index, item, header, record.is_relative, params.masks, built)
        if isinstance(checked, _Kept):
            kept.append(checked)
        else:
            detail = f"object {index} ({item.class_name!r:.80}): {checked[1]}"
            built.rejects.append(record.reject_box(checked[0], detail))
    built.class_names.extend(entry.item.class_name for entry in kept)
    num_bytes = len(encoded) + sum(len(entry.mask_png or b"") for entry in kept)
    if num_bytes > MAX_RECORD_BYTES:
        return record.reject_record(Reason.RECORD_TOO_LARGE, f"{num_bytes} bytes, allowed: {MAX_RECORD_BYTES}")
    features = _pass_through(image, record, kept, built)
    features.update(_encode(record, image.file_name, encoded, header, kept, class_ids, built))
    if params.masks:
        features[keys.MASK] = bytes_feature([entry.mask_png or b"" for entry in kept])
    if params.keypoints:
        features.update(_encode_keypoints(kept, header, record.is_relative))
    built.example = encode_example(features)
    return built


def _check_image(
    record: SourceRecord, image: SourceImage, params: ExampleGenParams, built: BuiltExample
) -> tuple[bytes, ImageHeader]:
    """Return the upright bytes to write, and their header."""
    header = read_image_header(image.encoded)
    stored_hw = (header.height, header.width)
    if header.height * header.width > params.max_pixels:
        detail = f"{header.width}x{header.height} pixels, allowed: {params.max_pixels} (max_pixels)"
        raise ImageError(Reason.TOO_MANY_PIXELS, detail)
    if record.declared_hw not in (None, stored_hw, header.upright_hw):
        assert record.declared_hw is not None
        height, width = record.declared_hw
        detail = f"the annotation states {width}x{height} pixels, but the image has {header.width}x{header.height}"
        raise ImageError(Reason.WRONG_DIMENSIONS, detail)
    encoded = image.encoded
    if params.decode_images:
        check_decodes(encoded)
    if header.orientation != 1:
        # The stated size shows whether the labels refer to the image as stored or as displayed. If both sizes are equal
        # or no size is stated, the labels refer to the displayed image: labelling tools rotate images.
        if image.is_upright or (record.declared_hw == stored_hw != header.upright_hw):
            built.repairs[REPAIR_EXIF_IGNORED] += 1
        elif params.exif_rotation == "reject":
            raise ImageError(Reason.EXIF_ROTATED, f"EXIF orientation {header.orientation}, allowed: 1 (exif_rotation)")
        else:
            encoded = turn_upright(encoded, header.orientation)
            header = read_image_header(encoded)
            built.repairs[REPAIR_ROTATED] += 1
    elif record.declared_hw not in (None, stored_hw):
        raise AssertionError("an upright image has only one size")
    suffix = os.path.splitext(image.file_name)[1].lower()
    if _FORMAT_OF_SUFFIX.get(suffix, header.format) != header.format:
        built.repairs[REPAIR_FORMAT] += 1
    return encoded, header


def _check_object(
    index: int, item: SourceObject, header: ImageHeader, is_relative: bool, with_masks: bool, built: BuiltExample
) -> _Kept | tuple[Reason, str]:
    checked = check_box(item.box_xyxy, header, is_relative=is_relative)
    if len(checked) == 2:
        return checked
    box, clipped = checked[:4], checked[4]
    for point in item.keypoints or ():
        if not (abs(point[0]) <= _MAX_FLOAT32 and abs(point[1]) <= _MAX_FLOAT32 and point[2] in (0, 1, 2)):
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
    return _Kept(index, item, box, mask_png)


def check_box(
    box_xyxy: _Box, header: ImageHeader, *, is_relative: bool
) -> tuple[float, float, float, float, bool] | tuple[Reason, str]:
    """Return ymin, xmin, ymax, xmax from 0 to 1 and whether the box was clipped, or the reason for rejecting it."""
    xmin, ymin, xmax, ymax = box_xyxy
    # One comparison each, which nearly every box passes; NaN passes none.
    if not (xmin < xmax and ymin < ymax):
        if not all(map(math.isfinite, box_xyxy)):
            return Reason.BOX_NOT_FINITE, _format_box(box_xyxy)
        if xmax < xmin or ymax < ymin:
            return Reason.BOX_INVERTED, _format_box(box_xyxy)
        return Reason.BOX_WITHOUT_AREA, _format_box(box_xyxy)
    width, height = (1.0, 1.0) if is_relative else (header.width, header.height)
    clipped = xmin < 0 or ymin < 0 or xmax > width or ymax > height
    if clipped:
        refused = _check_outside(box_xyxy, width, height, header)
        if refused is not None:
            return refused
        xmin, ymin, xmax, ymax = max(xmin, 0.0), max(ymin, 0.0), min(xmax, width), min(ymax, height)
    box = (ymin / height, xmin / width, ymax / height, xmax / width)
    # The corners can coincide in float32 (24 bits) only if a side is tiny.
    if min(box[2] - box[0], box[3] - box[1]) < 1e-6:
        low_y, low_x, high_y, high_x = np.array(box, np.float32)
        if not (high_y > low_y and high_x > low_x):
            return Reason.BOX_WITHOUT_AREA, f"{_format_box(box_xyxy)}: zero area in float32"
    return *box, clipped


def _check_outside(box_xyxy: _Box, width: float, height: float, header: ImageHeader) -> tuple[Reason, str] | None:
    """Return why a box that extends past the image is rejected, in the box's unit; None if it may be clipped."""
    xmin, ymin, xmax, ymax = box_xyxy
    if not all(map(math.isfinite, box_xyxy)):
        return Reason.BOX_NOT_FINITE, _format_box(box_xyxy)
    unit = "" if width == 1.0 and height == 1.0 else " px"
    size = f"the image has {header.width}x{header.height} pixels"
    if xmax <= 0 or ymax <= 0 or xmin >= width or ymin >= height:
        return Reason.BOX_OUTSIDE, f"{_format_box(box_xyxy)}: completely outside; {size}"
    allowed_x = max(CLIP_TOLERANCE_PX / header.width, CLIP_TOLERANCE_FRACTION) * width
    allowed_y = max(CLIP_TOLERANCE_PX / header.height, CLIP_TOLERANCE_FRACTION) * height
    out_x, out_y = max(-xmin, xmax - width), max(-ymin, ymax - height)
    if out_x <= allowed_x and out_y <= allowed_y:
        return None
    detail = (
        f"extends past the image by {max(out_x, out_y):g}{unit}; {size}; allowed: {allowed_x:g} by {allowed_y:g}{unit}"
    )
    return Reason.BOX_OUTSIDE, f"{_format_box(box_xyxy)}: {detail}"


def _format_box(box_xyxy: _Box) -> str:
    return "xmin {:g}, ymin {:g}, xmax {:g}, ymax {:g}".format(*box_xyxy)


def _pass_through(image: SourceImage, record: SourceRecord, kept: list[_Kept], built: BuiltExample) -> dict[str, bytes]:
    """Return the features of an existing example that are not ours; per-object values stay with their objects."""
    found: dict[str, bytes] = {}
    dropped_some = len(kept) != image.num_objects
    for key, feature in image.features.items():
        values = getattr(feature, feature.WhichOneof("kind") or "bytes_list").value
        if key.startswith(_OBJECT_PREFIX) and dropped_some and len(values) == image.num_objects:
            # the reader rejected some, so values cannot be assigned to objects
            if len(record.objects) != image.num_objects:
                built.repairs[REPAIR_FEATURE_DROPPED] += 1
                continue
            kept_values = [values[entry.place] for entry in kept]
            del values[:]
            values.extend(kept_values)
        found[key] = feature.SerializeToString(deterministic=True)
    return found


def _encode(
    record: SourceRecord,
    file_name: str,
    encoded: bytes,
    header: ImageHeader,
    kept: list[_Kept],
    class_ids: Mapping[str, int],
    built: BuiltExample,
) -> dict[str, bytes]:
    """Return every feature of the contract."""
    columns = dict(zip(SourceObject._fields, zip(*(entry.item for entry in kept), strict=True), strict=False))
    class_names = columns.get("class_name", ())
    boxes_yxyx_N4 = np.array([entry.box_yxyx_rel for entry in kept], np.float32).reshape(-1, 4)
    num_pixels = header.height * header.width
    box_areas_N = ((boxes_yxyx_N4[:, 2:] - boxes_yxyx_N4[:, :2]) * (header.height, header.width)).prod(axis=1)
    areas = box_areas_N.tolist()
    for row, area in enumerate(columns.get("area_px", ())):
        if area is None:
            continue
        if 0 < area <= num_pixels:
            areas[row] = area
        else:
            built.repairs[REPAIR_AREA] += 1
    features = {
        keys.IMAGE_ENCODED: bytes_feature([encoded]),
        keys.IMAGE_FORMAT: bytes_feature([header.format.encode()]),
        keys.IMAGE_HEIGHT: int_feature([header.height]),
        keys.IMAGE_WIDTH: int_feature([header.width]),
        keys.IMAGE_FILENAME: bytes_feature([file_name.encode()]),
        keys.IMAGE_SOURCE_ID: bytes_feature([record.record_key.encode()]),
        keys.IMAGE_SHA256: bytes_feature([hashlib.sha256(encoded).hexdigest().encode()]),
        keys.CLASS_ID: int_feature([class_ids[name] for name in class_names]),
        keys.CLASS_TEXT: bytes_feature([name.encode() for name in class_names]),
        keys.AREA: float_feature(areas),
        keys.IS_CROWD: int_feature(columns.get("is_crowd", ())),
        keys.DIFFICULT: int_feature(columns.get("difficult", ())),
        keys.TRUNCATED: int_feature(columns.get("truncated", ())),
        keys.GROUP_OF: int_feature(columns.get("group_of", ())),
    }
    features.update(zip(keys.BOX_KEYS_YXYX, map(float_feature, boxes_yxyx_N4.T), strict=True))
    return features


def _encode_keypoints(kept: list[_Kept], header: ImageHeader, is_relative: bool) -> dict[str, bytes]:
    width, height = (1, 1) if is_relative else (header.width, header.height)
    points = [point for entry in kept for point in entry.item.keypoints or ()]
    return {
        keys.KEYPOINT_X: float_feature([x / width for x, _, _ in points]),
        keys.KEYPOINT_Y: float_feature([y / height for _, y, _ in points]),
        keys.KEYPOINT_VISIBILITY: int_feature([visibility for _, _, visibility in points]),
        keys.NUM_KEYPOINTS: int_feature([len(entry.item.keypoints or ()) for entry in kept]),
    }
