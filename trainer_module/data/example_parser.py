"""Parse serialized tf.Examples to tensors."""

from collections.abc import Collection
from typing import NamedTuple

import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.ground_truth import AREA, BOXES, CLASSES, CROWD, IMAGE, KEYPOINTS, MASKS, WEIGHTS
from detloom.trainer_module.data.sample import Sample
from detloom.trainer_module.detectors.preprocess import decode_image

UNKNOWN_CLASS = "a class id that is not in the label map"
BAD_LENGTHS = "box features of different lengths"


def _column(dtype: tf.DType) -> tf.io.FixedLenSequenceFeature:
    return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)


_FEATURES = {
    keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string),
    keys.IMAGE_SOURCE_ID: tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: _column(tf.float32) for key in (*keys.BOX_KEYS_YXYX, keys.AREA, keys.WEIGHT)},
    **{key: _column(tf.int64) for key in (keys.CLASS_ID, keys.IS_CROWD)},
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
        image_bytes: string [].
        columns: ground truth without areas and masks.
        stored_area_px: float32 [G], or [0] if the record has no areas.
        mask_pngs: string [G], empty for a box without a mask; None unless masks are requested.
    """

    image_bytes: tf.Tensor
    columns: Sample
    stored_area_px: tf.Tensor
    mask_pngs: tf.Tensor | None


def class_index_table(class_ids: tuple[int, ...]) -> tf.lookup.StaticHashTable:
    """Return a table from label-map id to class index; -1 for an id that is not in the label map."""
    ids = tf.constant(class_ids, tf.int64)
    indices = tf.range(len(class_ids), dtype=tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(ids, indices), default_value=-1)


def parse_example(serialized: tf.Tensor, table: tf.lookup.StaticHashTable, optional: Collection[str] = ()) -> Sample:
    """Parse one serialized tf.Example and decode its image; see `parse_ground_truth`.

    Raises:
        tf.errors.InvalidArgumentError: at run time, also for a broken image.
    """
    parsed = parse_ground_truth(serialized, table, optional)
    image = decode_image(parsed.image_bytes)
    return sample_of(parsed, image, tf.shape(image)[:2])


@tf.autograph.experimental.do_not_convert
def parse_ground_truth(
    serialized: tf.Tensor, table: tf.lookup.StaticHashTable, optional: Collection[str] = ()
) -> ParsedExample:
    """Parse a serialized tf.Example without decoding pixels.

    Without `is_crowd`, no box is a crowd; without `weight`, each box has weight 1.

    Args:
        optional: the optional columns to read, of `ground_truth.OPTIONAL_COLUMNS`.

    Raises:
        tf.errors.InvalidArgumentError: at run time, for a broken record, and with the key of the record for a class id
            that is not in the label map or box features of different lengths.
    """
    features = dict(_FEATURES)
    for column in optional:
        features |= _OPTIONAL_FEATURES[column]
    parsed = tf.io.parse_single_example(serialized, features)
    class_ids, sides = parsed[keys.CLASS_ID], [parsed[key] for key in keys.BOX_KEYS_YXYX]
    may_be_absent = (keys.IS_CROWD, keys.AREA, keys.WEIGHT, *(_LENGTH_FEATURES[column] for column in optional))
    num_boxes = tf.size(class_ids)
    _check_lengths(parsed[keys.IMAGE_SOURCE_ID], num_boxes, sides, [parsed[key] for key in may_be_absent])
    class_indices = table.lookup(class_ids)
    message = [f"{UNKNOWN_CLASS}: record and its class ids:", parsed[keys.IMAGE_SOURCE_ID], class_ids]
    tf.debugging.Assert(tf.reduce_all(class_indices >= 0), message, summarize=20)
    columns = {
        BOXES: tf.stack(sides, axis=-1),
        CLASSES: class_indices,
        CROWD: _filled(parsed[keys.IS_CROWD], tf.zeros([num_boxes], tf.int64)) > 0,
        WEIGHTS: _filled(parsed[keys.WEIGHT], tf.ones([num_boxes])),
    }
    if KEYPOINTS in optional:
        columns[KEYPOINTS] = _parse_keypoints(parsed, num_boxes)
    mask_pngs = _filled(parsed[keys.MASK], tf.fill([num_boxes], "")) if MASKS in optional else None
    return ParsedExample(parsed[keys.IMAGE_ENCODED], columns, parsed[keys.AREA], mask_pngs)


def sample_of(parsed: ParsedExample, image: tf.Tensor, image_hw: tf.Tensor) -> Sample:
    """Return the record as a sample. If it has no areas, they are those of the boxes.

    Args:
        image: any tensor; it is not used.
        image_hw: int32 [2], size of the whole image in pixels.
    """
    ymin, xmin, ymax, xmax = tf.unstack(parsed.columns[BOXES], axis=-1)
    num_pixels = tf.reduce_prod(tf.cast(image_hw, tf.float32))
    area_px = _filled(parsed.stored_area_px, (ymax - ymin) * (xmax - xmin) * num_pixels)
    sample = {IMAGE: image, **parsed.columns, AREA: area_px}
    if parsed.mask_pngs is not None:
        sample[MASKS] = _decode_masks(parsed.mask_pngs, image_hw)
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


def _decode_masks(mask_pngs: tf.Tensor, image_hw: tf.Tensor) -> tf.Tensor:
    """Decode masks to uint8 [G, H, W], 0 or 1; all 0 for a box without a mask."""

    def decode(png: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.strings.length(png) > 0,
            lambda: tf.cast(tf.io.decode_png(png, channels=1)[..., 0] > 0, tf.uint8),
            lambda: tf.zeros(image_hw, tf.uint8),
        )

    at_least_one = tf.concat([mask_pngs, [""]], axis=0)  # without any, the result would have no height and width
    return tf.map_fn(decode, at_least_one, fn_output_signature=tf.TensorSpec([None, None], tf.uint8))[:-1]


def _parse_keypoints(parsed: dict[str, tf.Tensor], num_boxes: tf.Tensor) -> tf.Tensor:
    """Return keypoints [G, P, 2] for the largest number of points P; NaN for missing and unlabelled points.

    Without `num_keypoints`, all boxes have equally many points.
    """
    y, x, visibility = (parsed[key] for key in (keys.KEYPOINT_Y, keys.KEYPOINT_X, keys.KEYPOINT_VISIBILITY))
    num_points = tf.size(y)
    each = tf.cast(num_points // tf.maximum(num_boxes, 1), tf.int64)
    lengths = _filled(parsed[keys.NUM_KEYPOINTS], tf.fill([num_boxes], each))
    _check_lengths(parsed[keys.IMAGE_SOURCE_ID], num_points, [x], [visibility])
    adds_up = tf.reduce_sum(lengths) == tf.cast(num_points, tf.int64)
    message = [f"{BAD_LENGTHS}: record, keypoints, keypoints of each box:", parsed[keys.IMAGE_SOURCE_ID], num_points]
    tf.debugging.Assert(adds_up & tf.reduce_all(lengths >= 0), [*message, lengths], summarize=20)
    seen = _filled(visibility, tf.ones([num_points], tf.int64)) > 0
    points = tf.where(seen[:, tf.newaxis], tf.stack([y, x], axis=-1), float("nan"))
    return tf.RaggedTensor.from_row_lengths(points, lengths).to_tensor(float("nan"))
