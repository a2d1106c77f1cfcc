"""Draw single records as they are stored, and in several augmented versions."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.trainer_module.data.augmentations.mixing import mixings_of
from detloom.trainer_module.data.example_parser import class_index_table, parse_example, parse_ground_truth
from detloom.trainer_module.data.input_pipeline import AugmentationSeeds, augmented_sample, build_train_dataset
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.data.sample import Sample
from detloom.trainer_module.drawing.draw import blend_masks, draw_detections, draw_keypoints
from detloom.trainer_module.drawing.training_images import draw_train_batch, fit_size


@dataclass(frozen=True, eq=False)
class DrawnRecord:
    """One record with its versions, uint8 [H, W, 3] each.

    Attributes:
        image_hw: size of the stored image in pixels.
        num_boxes: number of stored boxes.
        error: why the record cannot be drawn; otherwise "".
    """

    stored: npt.NDArray[np.uint8]
    versions: tuple[npt.NDArray[np.uint8], ...]
    image_hw: tuple[int, int]
    num_boxes: int
    error: str = ""


def draw_records(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[DrawnRecord]:
    """Draw serialized tf.Examples as training would see them, with boxes, masks and keypoints.

    The versions are those of the first steps of training on these records alone, in this order. Mosaic and MixUp mix
    these images with each other; masks and keypoints are then not drawn.
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
    """Function that draws a sample with all its ground truth."""

    def __init__(self, label_map: LabelMap) -> None:
        self._label_map = label_map

    def __call__(self, sample: Sample) -> npt.NDArray[np.uint8]:
        arrays = {name: np.asarray(value) for name, value in sample.items()}
        image = np.rint(np.clip(np.nan_to_num(arrays[truth.IMAGE]), 0, 255)).astype(np.uint8)
        class_ids = np.array(self._label_map.class_ids)[arrays[truth.CLASSES]]
        labels = [
            self._label_map.name_of(int(class_id)) + (" (crowd)" if is_crowd else "")
            for class_id, is_crowd in zip(class_ids, arrays[truth.CROWD], strict=True)
        ]
        if truth.MASKS in arrays:
            image = blend_masks(image, arrays[truth.MASKS], class_ids)
        image = fit_size(image)
        if truth.KEYPOINTS in arrays:
            image = draw_keypoints(image, arrays[truth.KEYPOINTS], class_ids)
        return np.asarray(draw_detections(image, arrays[truth.BOXES], class_ids, labels))


def _draw_stored(record: bytes, table: tf.lookup.StaticHashTable, drawer: _Drawer) -> DrawnRecord:
    try:
        sample = parse_example(tf.constant(record), table, _optional_columns(record))
    except tf.errors.InvalidArgumentError as error:
        cause = " ".join(error.message.split())[:200]
        return DrawnRecord(np.zeros([1, 1, 3], np.uint8), (), (0, 0), 0, f"training cannot read it: {cause}")
    height, width = sample[truth.IMAGE].shape[:2]
    return DrawnRecord(drawer(sample), (), (int(height), int(width)), len(sample[truth.CLASSES]))


def _optional_columns(record: bytes) -> tuple[str, ...]:
    """Return the optional columns that the record has."""
    features = ExampleFeatures(record)
    masks, keypoints = any(features.texts(keys.MASK)), len(features.floats(keys.KEYPOINT_Y)) > 0
    return ((truth.MASKS,) if masks else ()) + ((truth.KEYPOINTS,) if keypoints else ())


def _versions(
    config: TrainEvalConfig,
    table: tf.lookup.StaticHashTable,
    records: Sequence[bytes],
    num_versions: int,
    drawer: _Drawer,
) -> list[list[npt.NDArray[np.uint8]]]:
    """Augment without mixing. As in `_mixed_versions`, version v of image i is element v * number of images + i."""
    seeds = AugmentationSeeds(config)

    @tf.autograph.experimental.do_not_convert
    def augment(record: tf.Tensor, number: tf.Tensor, optional: tuple[str, ...]) -> Sample:
        return augmented_sample(config, parse_ground_truth(record, table, optional), seeds.of_element(number))

    compiled, drawn = tf.function(augment), []
    for i, record in enumerate(records):
        numbers = [tf.constant(version * len(records) + i, tf.int64) for version in range(num_versions)]
        drawn.append([drawer(compiled(tf.constant(record), number, _optional_columns(record))) for number in numbers])
    return drawn


def _mixed_versions(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[list[npt.NDArray[np.uint8]]]:
    """Augment batches of all records: version v of image i is in batch v, at index i."""
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
