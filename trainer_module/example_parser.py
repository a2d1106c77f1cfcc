"""Serialized tf.Examples to tensors."""

from typing import TypedDict

import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.trainer_module.preprocess import decode_image

UNKNOWN_CLASS = "a class id that the label map lacks"
BAD_LENGTHS = "box features of different lengths"


class Sample(TypedDict):
    """One picture with its `G` boxes.

    Attributes:
        image: uint8 or float32 [H, W, 3], 0 to 255.
        boxes_yxyx_rel: float32 [G, 4].
        class_indices: int32 [G], 0-based.
        is_crowd: bool [G].
        area_px: float32 [G], of the object in the original picture.
    """

    image: tf.Tensor
    boxes_yxyx_rel: tf.Tensor
    class_indices: tf.Tensor
    is_crowd: tf.Tensor
    area_px: tf.Tensor


_FEATURES = {
    keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string),
    keys.IMAGE_SOURCE_ID: tf.io.FixedLenFeature([], tf.string, default_value=""),
    **{key: tf.io.VarLenFeature(tf.float32) for key in (*keys.BOX_KEYS_YXYX, keys.AREA)},
    keys.CLASS_ID: tf.io.VarLenFeature(tf.int64),
    keys.IS_CROWD: tf.io.VarLenFeature(tf.int64),
}


def class_index_table(class_ids: tuple[int, ...]) -> tf.lookup.StaticHashTable:
    """Label-map id to class index; -1 for an id that the label map lacks."""
    ids = tf.constant(class_ids, tf.int64)
    indices = tf.range(len(class_ids), dtype=tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(ids, indices), default_value=-1)


def parse_example(serialized: tf.Tensor, table: tf.lookup.StaticHashTable) -> Sample:
    """One serialized tf.Example. Without `is_crowd` none is; without `area` it is the area of the box.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, for a broken record, a broken picture, a class id that the label
            map lacks, or box features of different lengths; the last two with the record's key.
    """
    parsed = tf.io.parse_single_example(serialized, _FEATURES)
    source_id = parsed[keys.IMAGE_SOURCE_ID]
    image = decode_image(parsed[keys.IMAGE_ENCODED])
    sides = [tf.sparse.to_dense(parsed[key]) for key in keys.BOX_KEYS_YXYX]
    class_ids = tf.sparse.to_dense(parsed[keys.CLASS_ID])
    is_crowd = tf.sparse.to_dense(parsed[keys.IS_CROWD]) > 0
    area_px = tf.sparse.to_dense(parsed[keys.AREA])
    num_boxes = tf.size(class_ids)
    lengths = tf.stack([tf.size(feature) for feature in (*sides, is_crowd, area_px)])
    fits = (lengths == num_boxes) | (
        (lengths == 0) & tf.constant([False] * 4 + [True] * 2)
    )  # the last two may be absent
    tf.debugging.Assert(
        tf.reduce_all(fits), [f"{BAD_LENGTHS}: record, classes, features:", source_id, num_boxes, lengths]
    )
    class_indices = table.lookup(class_ids)
    known = tf.reduce_all(class_indices >= 0)
    tf.debugging.Assert(known, [f"{UNKNOWN_CLASS}: record and its class ids:", source_id, class_ids], summarize=20)
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    box_area_px = (sides[2] - sides[0]) * height * (sides[3] - sides[1]) * width
    return Sample(
        image=image,
        boxes_yxyx_rel=tf.stack(sides, axis=-1),
        class_indices=class_indices,
        is_crowd=is_crowd if tf.size(is_crowd) == num_boxes else tf.zeros([num_boxes], tf.bool),
        area_px=area_px if tf.size(area_px) == num_boxes else box_area_px,
    )
