"""Draw single records as they are stored, and in several augmented versions."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.arrays import Uint8Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.trainer_module.data.cropped_decoding import decode_sample
from detloom.trainer_module.data.input_pipeline import build_parser, build_train_dataset
from detloom.trainer_module.drawing.training_images import (
    as_pixels,
    crowd_notes,
    draw_train_batch,
    draw_truth,
    fit_size,
)


@dataclass(frozen=True, eq=False)
class DrawnRecord:
    """One record with its versions, uint8 [H, W, 3] each.

    Attributes:
        image_hw: size of the stored image in pixels.
        num_boxes: number of stored boxes.
        error: why the record cannot be drawn; otherwise "".
    """

    stored: Uint8Array
    versions: tuple[Uint8Array, ...]
    image_hw: tuple[int, int]
    num_boxes: int
    error: str = ""


def draw_records(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[DrawnRecord]:
    """Draw serialized tf.Examples as training would see them, with the ground truth that the detector is trained on.

    The versions are those of the first steps of training on these records alone, in this order. Mosaic and MixUp mix
    these images with each other.
    """
    drawn = [_draw_stored(config, label_map, record) for record in records]
    usable = [number for number, record in enumerate(drawn) if not record.error]
    if not usable:
        return drawn
    versions = _versions(config, label_map, [records[number] for number in usable], num_versions)
    for number, images in zip(usable, versions, strict=True):
        drawn[number] = replace(drawn[number], versions=tuple(images))
    return drawn


def _draw_stored(config: TrainEvalConfig, label_map: LabelMap, record: bytes) -> DrawnRecord:
    parse = build_parser(config, label_map)
    try:
        sample = decode_sample(parse(tf.constant(record)))
    except tf.errors.InvalidArgumentError as error:
        cause = " ".join(error.message.split())[:200]
        return DrawnRecord(np.zeros([1, 1, 3], np.uint8), (), (0, 0), 0, f"training cannot read it: {cause}")
    row = {name: np.asarray(value) for name, value in sample.items()}
    height, width = row[truth.IMAGE].shape[:2]
    image = draw_truth(fit_size(as_pixels(row[truth.IMAGE])), row, label_map, crowd_notes(row))
    return DrawnRecord(image, (), (height, width), len(row[truth.CLASSES]))


def _versions(
    config: TrainEvalConfig, label_map: LabelMap, records: Sequence[bytes], num_versions: int
) -> list[list[Uint8Array]]:
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
        by_version = [draw_train_batch(batch, label_map, len(records)) for batch in batches]
    return [list(images) for images in zip(*by_version, strict=True)]
