"""What training makes of single records, drawn for people: each as it is stored, and in several augmented versions."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas import example_keys as keys
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.augmentations.mixing import mixings_of
from detloom.trainer_module.draw import draw_detections
from detloom.trainer_module.draw_shapes import blend_masks, draw_keypoints
from detloom.trainer_module.example_parser import class_index_table, parse_example
from detloom.trainer_module.input_pipeline import AugmentationSeeds, augmented_sample, build_train_dataset
from detloom.trainer_module.training_pictures import draw_train_batch, fit_size

_Columns = dict[str, Any]  # of a `Sample`


@dataclass(frozen=True, eq=False)
class DrawnRecord:
    """One record with its versions, uint8 [H, W, 3] each; `error` says why there is nothing to draw, else "".

    Attributes:
        image_hw: pixels of the stored picture.
        num_boxes: that it has stored.
    """

    stored: npt.NDArray[np.uint8]
    versions: tuple[npt.NDArray[np.uint8], ...]
    image_hw: tuple[int, int]
    num_boxes: int
    error: str = ""


def draw_records(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[DrawnRecord]:
    """Serialized tf.Examples as training takes them, with boxes, and with masks and keypoints where they have some.

    The versions are those that training on these records alone, in this order, would see in its first steps. Where
    pictures are mixed with others, it is with each other, and masks and keypoints are left out.
    """
    table = class_index_table(label_map.class_ids)
    drawer = _Drawer(label_map)
    drawn = [_draw_stored(record, table, drawer) for record in records]
    usable = [number for number, record in enumerate(drawn) if not record.error]
    if not usable:
        return drawn
    sound = [records[number] for number in usable]
    if mixings_of(config.train.augmentations):
        versions = _mixed_versions(config, label_map, sound, num_versions)
    else:
        versions = _versions(config, table, sound, num_versions, drawer)
    for number, images in zip(usable, versions, strict=True):
        drawn[number] = replace(drawn[number], versions=tuple(images))
    return drawn


class _Drawer:
    """Draws samples with all that they hold."""

    def __init__(self, label_map: LabelMap) -> None:
        self._label_map = label_map

    def __call__(self, sample: _Columns) -> npt.NDArray[np.uint8]:
        arrays = {name: np.asarray(value) for name, value in sample.items()}
        image = np.rint(np.clip(np.nan_to_num(arrays["image"]), 0, 255)).astype(np.uint8)
        class_ids = np.array(self._label_map.class_ids)[arrays["class_indices"]]
        labels = [
            self._label_map.name_of(int(class_id)) + (" (crowd)" if is_crowd else "")
            for class_id, is_crowd in zip(class_ids, arrays["is_crowd"], strict=True)
        ]
        if "masks_GHW" in arrays:
            image = blend_masks(image, arrays["masks_GHW"], class_ids)
        image = fit_size(image)
        if "keypoints_yx_rel_GP2" in arrays:
            image = draw_keypoints(image, arrays["keypoints_yx_rel_GP2"], class_ids)
        return np.asarray(draw_detections(image, arrays["boxes_yxyx_rel"], class_ids, labels))


def _draw_stored(record: bytes, table: tf.lookup.StaticHashTable, drawer: _Drawer) -> DrawnRecord:
    try:
        sample = parse_example(tf.constant(record), table, **_what_else(record))
    except tf.errors.InvalidArgumentError as error:
        cause = " ".join(error.message.split())[:200]
        return DrawnRecord(np.zeros([1, 1, 3], np.uint8), (), (0, 0), 0, f"training cannot read it: {cause}")
    height, width = sample["image"].shape[:2]
    return DrawnRecord(drawer(dict(sample)), (), (int(height), int(width)), len(sample["class_indices"]))


def _what_else(record: bytes) -> dict[str, bool]:
    """Which of a record's optional columns are worth reading."""
    feature = tf.train.Example.FromString(record).features.feature
    return {
        "with_masks": any(feature[keys.MASK].bytes_list.value),
        "with_keypoints": bool(feature[keys.KEYPOINT_Y].float_list.value),
    }


def _versions(
    config: TrainEvalConfig,
    table: tf.lookup.StaticHashTable,
    records: Sequence[bytes],
    num_versions: int,
    drawer: _Drawer,
) -> list[list[npt.NDArray[np.uint8]]]:
    """The same draws as `_mixed_versions` has: version v of picture i is element v * number of pictures + i."""
    seeds = AugmentationSeeds(config)

    @tf.autograph.experimental.do_not_convert
    def augment(record: tf.Tensor, number: tf.Tensor, with_masks: bool, with_keypoints: bool) -> _Columns:
        sample = augmented_sample(
            config, record, table, seeds.of_element(number), with_masks=with_masks, with_keypoints=with_keypoints
        )
        return dict(sample)

    compiled, drawn = tf.function(augment), []
    for i, record in enumerate(records):
        numbers = [tf.constant(version * len(records) + i, tf.int64) for version in range(num_versions)]
        drawn.append([drawer(compiled(tf.constant(record), number, **_what_else(record))) for number in numbers])
    return drawn


def _mixed_versions(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[list[npt.NDArray[np.uint8]]]:
    """Batches of all records in order: version v of picture i is in batch v, at place i."""
    whole = replace(config.train_input, shuffle=False, sample_1_of_n_examples=1, class_balance=0.0)
    steps = replace(
        config.train,
        batch_size=len(records),
        gradient_accumulation_steps=1,
        num_steps=max(config.train.num_steps, num_versions),
        last_steps_without_mixing=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "records")
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(record)
        alone = replace(config, train=steps, train_input=whole)
        batches = build_train_dataset(alone, label_map, [path], batch_size=len(records)).take(num_versions)
        by_version = [draw_train_batch(batch, config.model, label_map, len(records)) for batch in batches]
    return [list(images) for images in zip(*by_version, strict=True)]
