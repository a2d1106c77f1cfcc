"""Parse serialized tf.Examples to tensors."""

from collections.abc import Collection
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.ground_truth import AREA, BOXES, CLASSES, CROWD, IMAGE, KEYPOINTS, MASKS, WEIGHTS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.class_lookup import ClassTables
from detloom.trainer_module.data.sample import Sample
from detloom.trainer_module.detectors.detector import Keypoints

BAD_LENGTHS = "box features of different lengths"
BAD_KEYPOINTS = "an object with another number of keypoints than the detector's"
BAD_MASK_SIZE = "a mask of another size than its image"
NO_MASK = "an object without a mask"


def _column(dtype: tf.DType) -> tf.io.FixedLenSequenceFeature:
    return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)


_FEATURES = {
    keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string),
    keys.IMAGE_SOURCE_ID: tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: _column(tf.float32) for key in (*keys.BOX_KEYS_YXYX, keys.AREA, keys.WEIGHT)},
    **{key: _column(tf.int64) for key in (keys.CLASS_ID, keys.IS_CROWD)},
    keys.CLASS_TEXT: _column(tf.string),
}
_OPTIONAL_FEATURES = {
    MASKS: {keys.MASK: _column(tf.string)},
    KEYPOINTS: {
        **{key: _column(tf.float32) for key in (keys.KEYPOINT_Y, keys.KEYPOINT_X)},
        **{key: _column(tf.int64) for key in (keys.KEYPOINT_VISIBILITY, keys.NUM_KEYPOINTS)},
    },
}
_LENGTH_FEATURES = {MASKS: keys.MASK, KEYPOINTS: keys.NUM_KEYPOINTS}  # with one value per box


class ParsedExample(NamedTuple):
    """A record whose image and masks are still encoded.

    Attributes:
        source_id: string [], for messages.
        image_bytes: string [].
        columns: ground truth without areas and masks.
        stored_area_px: float32 [G], or [0] if the record has no areas.
        mask_pngs: string [G], empty for a box without a mask; None unless masks are requested.
    """

    source_id: tf.Tensor
    image_bytes: tf.Tensor
    columns: Sample
    stored_area_px: tf.Tensor
    mask_pngs: tf.Tensor | None


class KeypointClass(NamedTuple):
    """The class whose objects have keypoints, and the number of points of each object."""

    class_index: int
    num_points: int


def keypoint_class_of(keypoints: Keypoints | None, label_map: LabelMap) -> KeypointClass | None:
    """Return the class with the keypoints of a detector family; None for a family without keypoints.

    Raises:
        InputError: if the label map lacks the class.
    """
    if keypoints is None:
        return None
    if keypoints.class_name not in label_map.names:
        raise InputError(
            f"model: the keypoints are those of class {keypoints.class_name!r}, which the label map lacks; allowed: "
            f"{', '.join(label_map.names)}."
        )
    return KeypointClass(label_map.names.index(keypoints.class_name), len(keypoints.names))


@tf.autograph.experimental.do_not_convert
def parse_ground_truth(
    serialized: tf.Tensor,
    classes: ClassTables,
    optional: Collection[str] = (),
    keypoint_class: KeypointClass | None = None,
) -> ParsedExample:
    """Parse a serialized tf.Example without decoding pixels.

    Without `is_crowd`, no box is a crowd; without `weight`, each box has weight 1.

    Args:
        optional: the optional columns to read, of `ground_truth.OPTIONAL_COLUMNS`.
        keypoint_class: makes the number of points static, and all points NaN for objects of other classes. An object of
            this class may have no points; otherwise it has all of them. None: as many points as the record has.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a broken record, and with the key of the record for a class
            that `classes` refuses, box features of different lengths, or a wrong number of keypoints.
    """
    features = dict(_FEATURES)
    for column in optional:
        features |= _OPTIONAL_FEATURES[column]
    parsed = tf.io.parse_single_example(serialized, features)
    source_id, sides = parsed[keys.IMAGE_SOURCE_ID], [parsed[key] for key in keys.BOX_KEYS_YXYX]
    class_ids, texts = _ids_and_texts(parsed, tf.size(sides[0]))
    may_be_absent = (keys.IS_CROWD, keys.AREA, keys.WEIGHT, *(_LENGTH_FEATURES[column] for column in optional))
    num_boxes = tf.size(class_ids)
    _check_lengths(source_id, num_boxes, sides, [parsed[key] for key in may_be_absent])
    class_indices = classes.class_indices(class_ids, texts, source_id)
    columns = {
        BOXES: tf.stack(sides, axis=-1),
        CLASSES: class_indices,
        CROWD: _filled(parsed[keys.IS_CROWD], tf.zeros([num_boxes], tf.int64)) > 0,
        WEIGHTS: _filled(parsed[keys.WEIGHT], tf.ones([num_boxes])),
    }
    if KEYPOINTS in optional:
        if keypoint_class is None:
            columns[KEYPOINTS] = _parse_keypoints(parsed, num_boxes)
        else:
            columns[KEYPOINTS] = _parse_keypoints_of_class(parsed, class_indices, keypoint_class)
    mask_pngs = _filled(parsed[keys.MASK], tf.fill([num_boxes], "")) if MASKS in optional else None
    area_px = parsed[keys.AREA]
    if classes.drops:
        is_kept = class_indices >= 0
        columns = {name: tf.boolean_mask(value, is_kept) for name, value in columns.items()}
        area_px = tf.boolean_mask(area_px, is_kept[: tf.size(area_px)])
        mask_pngs = None if mask_pngs is None else tf.boolean_mask(mask_pngs, is_kept)
    return ParsedExample(source_id, parsed[keys.IMAGE_ENCODED], columns, area_px, mask_pngs)


def _ids_and_texts(parsed: dict[str, tf.Tensor], num_boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return class ids and texts, equally many; 0 without ids, and "" without a text for each box."""
    class_ids, texts = parsed[keys.CLASS_ID], parsed[keys.CLASS_TEXT]
    has_texts = tf.size(texts) == num_boxes
    num_ids = tf.where(has_texts & (tf.size(class_ids) == 0), num_boxes, tf.size(class_ids))
    class_ids = _filled(class_ids, tf.zeros([num_ids], tf.int64))
    num_texts = tf.where(has_texts & (num_ids == num_boxes), num_ids, 0)
    return class_ids, _filled(texts[:num_texts], tf.fill([num_ids], ""))


def check_has_masks(parsed: ParsedExample) -> None:
    """Check that each object that is not a crowd has a mask.

    Raises:
        tf.errors.InvalidArgumentError: at run time, with the key of the record.
    """
    assert parsed.mask_pngs is not None
    is_missing = (tf.strings.length(parsed.mask_pngs) == 0) & ~parsed.columns[CROWD]
    message = [f"{NO_MASK}: record:", parsed.source_id, "; detloom ingest --masks (data.masks: true) keeps masks"]
    tf.debugging.Assert(~tf.reduce_any(is_missing), message)


def sample_of(parsed: ParsedExample, image: tf.Tensor, image_hw: tf.Tensor) -> Sample:
    """Return the record as a sample. An area that is absent or not above 0 is that of the box, as in the reference.

    Args:
        image: any tensor; it is not used.
        image_hw: int32 [2], size of the whole image in pixels.
    """
    ymin, xmin, ymax, xmax = tf.unstack(parsed.columns[BOXES], axis=-1)
    num_pixels = tf.reduce_prod(tf.cast(image_hw, tf.float32))
    box_area_px = (ymax - ymin) * (xmax - xmin) * num_pixels
    stored_area_px = _filled(parsed.stored_area_px, box_area_px)
    area_px = tf.where(stored_area_px > 0, stored_area_px, box_area_px)
    sample = {IMAGE: image, **parsed.columns, AREA: area_px}
    if parsed.mask_pngs is not None:
        sample[MASKS] = _decode_masks(parsed.mask_pngs, image_hw, parsed.source_id)
    return sample


def _filled(column: tf.Tensor, absent: tf.Tensor) -> tf.Tensor:
    """Return the column, or `absent` if the column is empty."""
    return tf.concat([column, absent], axis=0)[: tf.shape(absent)[0]]


def _check_lengths(
    source_id: tf.Tensor, count: tf.Tensor, required: list[tf.Tensor], optional: list[tf.Tensor]
) -> None:
    lengths = tf.stack([tf.size(column) for column in (*required, *optional)])
    may_be_absent = tf.constant([False] * len(required) + [True] * len(optional))
    fits = (lengths == count) | ((lengths == 0) & may_be_absent)
    message = [f"{BAD_LENGTHS}: record, how many, in features:", source_id, count, lengths]
    tf.debugging.Assert(tf.reduce_all(fits), message, summarize=20)


def _decode_masks(mask_pngs: tf.Tensor, image_hw: tf.Tensor, source_id: tf.Tensor) -> tf.Tensor:
    """Decode masks to uint8 [G, H, W], 0 or 1; all 0 for a box without a mask."""

    def decoded(png: tf.Tensor) -> tf.Tensor:
        mask_HW = tf.cast(tf.io.decode_png(png, channels=1)[..., 0] > 0, tf.uint8)
        fits = tf.reduce_all(tf.shape(mask_HW) == image_hw)
        message = [f"{BAD_MASK_SIZE}: record, size of its mask, of its image:", source_id, tf.shape(mask_HW), image_hw]
        with tf.control_dependencies([tf.debugging.Assert(fits, message)]):
            return tf.identity(mask_HW)

    def decode(png: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.strings.length(png) > 0, lambda: decoded(png), lambda: tf.zeros(image_hw, tf.uint8))

    at_least_one = tf.concat([mask_pngs, [""]], axis=0)  # without any, the result would have no height and width
    return tf.map_fn(decode, at_least_one, fn_output_signature=tf.TensorSpec([None, None], tf.uint8))[:-1]


def _parse_keypoints(parsed: dict[str, tf.Tensor], num_boxes: tf.Tensor) -> tf.Tensor:
    """Return keypoints [G, P, 2] for the largest number of points P; NaN for missing and unlabelled points.

    Without `num_keypoints`, all boxes have equally many points.
    """
    points, num_points = _labelled_points(parsed)
    points_of_box = tf.cast(num_points // tf.maximum(num_boxes, 1), tf.int64)
    lengths = _filled(parsed[keys.NUM_KEYPOINTS], tf.fill([num_boxes], points_of_box))
    _check_num_points(parsed[keys.IMAGE_SOURCE_ID], num_points, lengths)
    return tf.RaggedTensor.from_row_lengths(points, lengths, validate=False).to_tensor(float("nan"))


def _parse_keypoints_of_class(
    parsed: dict[str, tf.Tensor], class_indices: tf.Tensor, keypoint_class: KeypointClass
) -> tf.Tensor:
    """Return keypoints [G, P, 2] of the objects of one class; NaN for all others and for unlabelled points.

    The Object Detection API's writer of COCO records stores all P points of every box, but in `num_keypoints` only the
    number of labelled ones.
    """
    points, num_points = _labelled_points(parsed)
    num_boxes, num_class_points = tf.shape(class_indices)[0], tf.constant(keypoint_class.num_points, tf.int64)
    lengths = _filled(parsed[keys.NUM_KEYPOINTS], tf.fill([num_boxes], tf.constant(0, tf.int64)))
    adds_up = tf.reduce_sum(lengths) == tf.cast(num_points, tf.int64)
    is_full = tf.cast(num_points, tf.int64) == num_class_points * tf.cast(num_boxes, tf.int64)
    lengths = tf.where(~adds_up & is_full, num_class_points, lengths)
    _check_num_points(parsed[keys.IMAGE_SOURCE_ID], num_points, lengths)
    is_of_class = class_indices == keypoint_class.class_index
    is_wrong = is_of_class & (lengths != num_class_points) & (lengths != 0)
    got = tf.boolean_mask(lengths, is_wrong)
    message = [f"{BAD_KEYPOINTS}: record, got, allowed: 0 or", parsed[keys.IMAGE_SOURCE_ID], got, num_class_points]
    tf.debugging.Assert(~tf.reduce_any(is_wrong), message, summarize=20)
    shape = [None, keypoint_class.num_points, 2]
    ragged = tf.RaggedTensor.from_row_lengths(points, lengths, validate=False)
    points_GP2 = tf.ensure_shape(ragged.to_tensor(float("nan"), shape=shape), shape)
    return tf.where(is_of_class[:, tf.newaxis, tf.newaxis], points_GP2, float("nan"))


def _labelled_points(parsed: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the points of all boxes [N, 2], NaN where not labelled, and N."""
    y, x, visibility = (parsed[key] for key in (keys.KEYPOINT_Y, keys.KEYPOINT_X, keys.KEYPOINT_VISIBILITY))
    num_points = tf.size(y)
    _check_lengths(parsed[keys.IMAGE_SOURCE_ID], num_points, [x], [visibility])
    is_labelled = _filled(visibility, tf.ones([num_points], tf.int64)) > 0
    return tf.where(is_labelled[:, tf.newaxis], tf.stack([y, x], axis=-1), float("nan")), num_points


def _check_num_points(source_id: tf.Tensor, num_points: tf.Tensor, lengths: tf.Tensor) -> None:
    adds_up = tf.reduce_sum(lengths) == tf.cast(num_points, tf.int64)
    message = [f"{BAD_LENGTHS}: record, keypoints, keypoints of each box:", source_id, num_points, lengths]
    tf.debugging.Assert(adds_up & tf.reduce_all(lengths >= 0), message, summarize=20)
