"""From TFRecord shards to batches."""

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.augment import apply_augmentation, runs_before_resize
from detloom.trainer_module.example_parser import Sample, class_index_table, parse_example
from detloom.trainer_module.preprocess import network_hw, normalize_and_pad, prepare_image, resize_image

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


def read_records(files: Sequence[str], *, one_of: int = 1) -> tf.data.Dataset:
    """Serialized examples, in an order that does not depend on timing; `*.gz` is decompressed.

    With `one_of`, only the first of each so many, the same ones every time.
    """

    compression = "GZIP" if all(Path(file).suffix == ".gz" for file in files) else ""

    def read(file: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(file, compression_type=compression)

    records = tf.data.Dataset.from_tensor_slices(list(files)).interleave(read, cycle_length=_READ_CYCLE)
    return records if one_of == 1 else records.shard(one_of, 0)


def build_train_dataset(
    config: TrainEvalConfig,
    label_map: LabelMap,
    files: Sequence[str],
    *,
    batch_size: int,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Endless batches of augmented pictures, shuffled if `train_input` says so; the same for the same seed.

    Elements: image_BHW3 float32 and true_hw_B2 (`prepare_image`), boxes_yxyx_rel_BG4 relative to that image with its
    padding, class_indices_BG (-1 pads), num_dropped_B (boxes over `max_number_of_boxes`). Crowds are left out: nothing
    can learn a group as one object.
    """
    reader, table = config.train_input, class_index_table(label_map.class_ids)
    records = read_records(files, one_of=reader.sample_1_of_n_examples)
    if input_context is not None and input_context.num_input_pipelines > 1:
        records = records.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if reader.shuffle:
        records = records.shuffle(reader.shuffle_buffer_size, seed=config.train.seed, reshuffle_each_iteration=True)
    records = records.repeat()

    def to_element(index: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        seed = tf.stack([tf.constant(config.train.seed, tf.int64), index])
        return _train_element(config, parse_example(serialized, table), seed)

    elements = records.enumerate().map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.batch(batch_size, drop_remainder=True).prefetch(2)


def _train_element(config: TrainEvalConfig, sample: Sample, seed: tf.Tensor) -> dict[str, tf.Tensor]:
    sample, augmentations = _keep(sample, ~sample["is_crowd"]), config.train.augmentations
    seeds = [tf.random.experimental.stateless_fold_in(seed, i) for i in range(len(augmentations))]
    for augmentation, its_seed in zip(augmentations, seeds, strict=True):
        if runs_before_resize(augmentation):
            sample = apply_augmentation(augmentation, sample, its_seed)
    sample["image"] = resize_image(sample["image"], config.model.image_resizer)
    for augmentation, its_seed in zip(augmentations, seeds, strict=True):
        if not runs_before_resize(augmentation):
            sample = apply_augmentation(augmentation, sample, its_seed)
    boxes, class_indices, num_dropped = keep_largest(sample, config.train_input.max_number_of_boxes)
    image, true_hw = normalize_and_pad(sample["image"], config.model)
    shares_yx = tf.cast(true_hw, tf.float32) / tf.constant(network_hw(config.model.image_resizer), tf.float32)
    return {
        "image": image,
        "true_hw": true_hw,
        "boxes_yxyx_rel": boxes * tf.tile(shares_yx, [2]),
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


def build_eval_dataset(
    config: TrainEvalConfig, label_map: LabelMap, files: Sequence[str], *, batch_size: int
) -> tf.data.Dataset:
    """One pass in order: image_BHW3, true_hw_B2 (`prepare_image`), image_hw_B2 (original pixels), and the ground truth.

    Its boxes are relative to the picture without padding, its class_indices_BG -1 where there is no box. All boxes are
    kept, and the order is that of the files: `eval_input` says only which examples are read.
    """
    table = class_index_table(label_map.class_ids)

    def to_element(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        sample = parse_example(serialized, table)
        image_hw = tf.shape(sample["image"])[:2]
        image, true_hw = prepare_image(sample["image"], config.model)
        return {**sample, "image": image, "true_hw": true_hw, "image_hw": image_hw}

    padding = {
        "image": 0.0,
        "true_hw": 0,
        "image_hw": 0,
        "boxes_yxyx_rel": 0.0,
        "class_indices": -1,
        "is_crowd": False,
        "area_px": 0.0,
    }
    records = read_records(files, one_of=config.eval_input.sample_1_of_n_examples)
    elements = records.map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    return elements.padded_batch(batch_size, padding_values=padding).prefetch(2)
