"""From TFRecord shards to batches."""

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from detloom.schemas.config import Ssd, TrainerConfig, Training
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.augment import apply_augmentation, runs_before_resize
from detloom.trainer_module.example_parser import Sample, class_index_table, parse_example
from detloom.trainer_module.preprocess import normalize_image, resize_image

_READ_CYCLE = 4  # shards read in turn


def list_shards(patterns: Sequence[str]) -> list[str]:
    """Files that match, sorted.

    Raises:
        InputError: if there is none.
    """
    files = sorted(file for pattern in patterns for file in tf.io.gfile.glob(pattern))
    if not files:
        raise InputError(f"{', '.join(patterns) or 'no pattern'}: no TFRecord file matches; is the split empty?")
    return files


def read_records(files: Sequence[str]) -> tf.data.Dataset:
    """Serialized examples, in an order that does not depend on timing; `*.gz` is decompressed."""

    compression = "GZIP" if all(Path(file).suffix == ".gz" for file in files) else ""

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    return tf.data.Dataset.from_tensor_slices(list(files)).interleave(read, cycle_length=_READ_CYCLE)


def build_train_dataset(
    config: TrainerConfig,
    label_map: LabelMap,
    files: Sequence[str],
    *,
    batch_size: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Endless shuffled batches of augmented pictures; the same for the same seed.

    Elements: image_BHW3 float32 in [-1, 1], boxes_yxyx_rel_BG4, class_indices_BG (-1 pads), num_dropped_B (boxes over
    `max_boxes`). Crowds are left out: an anchor cannot learn a group.
    """
    training, table = config.training, class_index_table(label_map.class_ids)
    records = read_records(files)
    if input_context is not None and input_context.num_input_pipelines > 1:
        records = records.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    records = records.shuffle(training.shuffle_records, seed=training.seed, reshuffle_each_iteration=True).repeat()

    def to_element(index: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        seed = tf.stack([tf.constant(training.seed, tf.int64), index])
        return _train_element(config.detector, training, parse_example(serialized, table), seed)

    elements = records.enumerate().map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.batch(batch_size, drop_remainder=True).prefetch(2)


def _train_element(detector: Ssd, training: Training, sample: Sample, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    sample = _keep(sample, ~sample["is_crowd"])
    seeds = [tf.random.experimental.stateless_fold_in(seed, i) for i in range(len(training.augmentations))]
    for augmentation, its_seed in zip(training.augmentations, seeds, strict=True):
        if runs_before_resize(augmentation):
            sample = apply_augmentation(augmentation, sample, its_seed)
    sample["image"] = resize_image(sample["image"], detector.image_size)
    for augmentation, its_seed in zip(training.augmentations, seeds, strict=True):
        if not runs_before_resize(augmentation):
            sample = apply_augmentation(augmentation, sample, its_seed)
    boxes, class_indices, num_dropped = keep_largest(sample, training.max_boxes)
    return {
        "image": normalize_image(sample["image"]),
        "boxes_yxyx_rel": boxes,
        "class_indices": class_indices,
        "num_dropped": num_dropped,
    }


def _keep(sample: Sample, mask: tf.Tensor) -> Sample:
    return Sample(
        image=sample["image"],
        boxes_yxyx_rel=tf.boolean_mask(sample["boxes_yxyx_rel"], mask),
        class_indices=tf.boolean_mask(sample["class_indices"], mask),
        is_crowd=tf.boolean_mask(sample["is_crowd"], mask),
        area_px=tf.boolean_mask(sample["area_px"], mask),
    )


def keep_largest(sample: Sample, max_boxes: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Pad to `max_boxes`, or keep the largest: boxes [G, 4], class indices [G] (-1 pads), number dropped."""
    num_boxes = tf.shape(sample["class_indices"])[0]
    largest = tf.argsort(sample["area_px"], direction="DESCENDING", stable=True)[:max_boxes]
    padding = max_boxes - tf.shape(largest)[0]
    boxes = tf.pad(tf.gather(sample["boxes_yxyx_rel"], largest), [[0, padding], [0, 0]])
    class_indices = tf.pad(tf.gather(sample["class_indices"], largest), [[0, padding]], constant_values=-1)
    boxes.set_shape([max_boxes, 4])
    class_indices.set_shape([max_boxes])
    return boxes, class_indices, tf.maximum(num_boxes - max_boxes, 0)


def build_eval_dataset(detector: Ssd, label_map: LabelMap, files: Sequence[str], *, batch_size: int) -> tf.data.Dataset:
    """One pass in order: image_BHW3 in [-1, 1], image_hw_B2 (original pixels), and the ground truth padded with -1."""
    table = class_index_table(label_map.class_ids)

    def to_element(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        sample = parse_example(serialized, table)
        image_hw = tf.shape(sample["image"])[:2]
        image = normalize_image(resize_image(sample["image"], detector.image_size))
        return {**sample, "image": image, "image_hw": image_hw}

    padding = {
        "image": 0.0,
        "image_hw": 0,
        "boxes_yxyx_rel": 0.0,
        "class_indices": -1,
        "is_crowd": False,
        "area_px": 0.0,
    }
    elements = read_records(files).map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.padded_batch(batch_size, padding_values=padding).prefetch(2)
