"""Serialized tf.Examples to tensors."""

from typing import NamedTuple

import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.trainer_module.preprocess import decode_image
from detloom.trainer_module.sample import Sample

UNKNOWN_CLASS = "a class id that the label map lacks"
BAD_LENGTHS = "box features of different lengths"


def _column(dtype: tf.DType) -> tf.io.FixedLenSequenceFeature:
    return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)


_FEATURES = {
    keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string),
    keys.IMAGE_SOURCE_ID: tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: _column(tf.float32) for key in (*keys.BOX_KEYS_YXYX, keys.AREA, keys.WEIGHT)},
    **{key: _column(tf.int64) for key in (keys.CLASS_ID, keys.IS_CROWD)},
}
_MASK_FEATURES = {keys.MASK: _column(tf.string)}
_KEYPOINT_FEATURES = {
    **{key: _column(tf.float32) for key in (keys.KEYPOINT_Y, keys.KEYPOINT_X)},
    **{key: _column(tf.int64) for key in (keys.KEYPOINT_VISIBILITY, keys.NUM_KEYPOINTS)},
}


class ParsedExample(NamedTuple):
    """A record whose picture is still encoded; see `Sample` for the columns.

    Attributes:
        image_bytes: string [].
        stored_area_px: float32 [G], or [0] where the record has no areas.
        mask_pngs: string [G], None unless asked for; empty for a box without a mask.
        keypoints_yx_rel_GP2: None unless asked for.
    """

    image_bytes: tf.Tensor
    boxes_yxyx_rel: tf.Tensor
    class_indices: tf.Tensor
    is_crowd: tf.Tensor
    stored_area_px: tf.Tensor
    box_weights: tf.Tensor
    mask_pngs: tf.Tensor | None
    keypoints_yx_rel_GP2: tf.Tensor | None


def class_index_table(class_ids: tuple[int, ...]) -> tf.lookup.StaticHashTable:
    """Label-map id to class index; -1 for an id that the label map lacks."""
    ids = tf.constant(class_ids, tf.int64)
    indices = tf.range(len(class_ids), dtype=tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(ids, indices), default_value=-1)


def parse_example(
    serialized: tf.Tensor,
    table: tf.lookup.StaticHashTable,
    *,
    with_masks: bool = False,
    with_keypoints: bool = False,
) -> Sample:
    """One serialized tf.Example with its picture; see `parse_boxes`.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, for a broken record or picture too.
    """
    parsed = parse_boxes(serialized, table, with_masks=with_masks, with_keypoints=with_keypoints)
    image = decode_image(parsed.image_bytes)
    return sample_of(parsed, image, tf.shape(image)[:2])


@tf.autograph.experimental.do_not_convert
def parse_boxes(
    serialized: tf.Tensor,
    table: tf.lookup.StaticHashTable,
    *,
    with_masks: bool = False,
    with_keypoints: bool = False,
) -> ParsedExample:
    """All of a serialized tf.Example but its pixels. Without `is_crowd` none is; without `weight` each box weighs 1.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, for a broken record, a class id that the label map lacks, or box
            features of different lengths; the last two with the record's key.
    """
    masks, points = _MASK_FEATURES if with_masks else {}, _KEYPOINT_FEATURES if with_keypoints else {}
    parsed = tf.io.parse_single_example(serialized, {**_FEATURES, **masks, **points})
    class_ids, sides = parsed[keys.CLASS_ID], [parsed[key] for key in keys.BOX_KEYS_YXYX]
    optional = [parsed[key] for key in (keys.IS_CROWD, keys.AREA, keys.WEIGHT)]
    if with_masks:
        optional.append(parsed[keys.MASK])
    if with_keypoints:
        optional.append(parsed[keys.NUM_KEYPOINTS])
    num_boxes = tf.size(class_ids)
    _check_lengths(parsed[keys.IMAGE_SOURCE_ID], num_boxes, sides, optional)
    class_indices = table.lookup(class_ids)
    known = tf.reduce_all(class_indices >= 0)
    message = [f"{UNKNOWN_CLASS}: record and its class ids:", parsed[keys.IMAGE_SOURCE_ID], class_ids]
    tf.debugging.Assert(known, message, summarize=20)
    return ParsedExample(
        image_bytes=parsed[keys.IMAGE_ENCODED],
        boxes_yxyx_rel=tf.stack(sides, axis=-1),
        class_indices=class_indices,
        is_crowd=_filled(parsed[keys.IS_CROWD], tf.zeros([num_boxes], tf.int64)) > 0,
        stored_area_px=parsed[keys.AREA],
        box_weights=_filled(parsed[keys.WEIGHT], tf.ones([num_boxes])),
        mask_pngs=_filled(parsed[keys.MASK], tf.fill([num_boxes], "")) if with_masks else None,
        keypoints_yx_rel_GP2=_parse_keypoints(parsed, num_boxes) if with_keypoints else None,
    )


def sample_of(parsed: ParsedExample, image: tf.Tensor, image_hw: tf.Tensor) -> Sample:
    """The record as a sample. Where it has no area, that is the area of the box.

    Args:
        image: anything; it is not looked at.
        image_hw: int32 [2], pixels of the whole picture.
    """
    ymin, xmin, ymax, xmax = tf.unstack(parsed.boxes_yxyx_rel, axis=-1)
    num_pixels = tf.reduce_prod(tf.cast(image_hw, tf.float32))
    sample = Sample(
        image=image,
        boxes_yxyx_rel=parsed.boxes_yxyx_rel,
        class_indices=parsed.class_indices,
        is_crowd=parsed.is_crowd,
        area_px=_filled(parsed.stored_area_px, (ymax - ymin) * (xmax - xmin) * num_pixels),
        box_weights=parsed.box_weights,
    )
    if parsed.mask_pngs is not None:
        sample["masks_GHW"] = _decode_masks(parsed.mask_pngs, image_hw)
    if parsed.keypoints_yx_rel_GP2 is not None:
        sample["keypoints_yx_rel_GP2"] = parsed.keypoints_yx_rel_GP2
    return sample


def _filled(column: tf.Tensor, absent: tf.Tensor) -> tf.Tensor:
    """The column, which has the length of `absent`, or if it is empty, that."""
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
    """uint8 [G, H, W], 0 or 1; all 0 for a box without a mask."""

    def decode(png: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.strings.length(png) > 0,
            lambda: tf.cast(tf.io.decode_png(png, channels=1)[..., 0] > 0, tf.uint8),
            lambda: tf.zeros(image_hw, tf.uint8),
        )

    at_least_one = tf.concat([mask_pngs, [""]], axis=0)  # of none the result would have no height and width
    return tf.map_fn(decode, at_least_one, fn_output_signature=tf.TensorSpec([None, None], tf.uint8))[:-1]


def _parse_keypoints(parsed: dict[str, tf.Tensor], num_boxes: tf.Tensor) -> tf.Tensor:
    """[G, P, 2] for the largest number of points P; NaN where a box has fewer, and for points that are not labelled.

    Without `num_keypoints` all boxes have equally many.
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
