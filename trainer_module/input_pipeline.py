"""From TFRecord shards to batches."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from detloom.schemas.augmentation_config import Augmentation
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.mixing_config import Mixing
from detloom.trainer_module.augmentations.apply import apply_all, split_at_resize
from detloom.trainer_module.augmentations.crops import WindowCrop
from detloom.trainer_module.augmentations.mixing import mix_batch, mixings_of
from detloom.trainer_module.cropped_decoding import decode_crop, decode_sample
from detloom.trainer_module.example_parser import class_index_table, parse_boxes, parse_example
from detloom.trainer_module.preprocess import network_hw, normalize_and_pad, prepare_image, resize_image
from detloom.trainer_module.record_stream import build_record_stream, elements_per_step
from detloom.trainer_module.records import read_records, record_key
from detloom.trainer_module.sample import Sample, replaced

_BATCHES_AHEAD = 2
_LOGGER = logging.getLogger("detloom")
_NUMBER = "number"  # an element's, on the way to where batches are mixed


def per_replica_batch_size(config: TrainEvalConfig, num_replicas: int) -> int:
    """Pictures of a step on each replica, which takes them in `gradient_accumulation_steps` equal parts.

    Raises:
        InputError: if replicas and parts cannot have equally many.
    """
    parts = config.train.gradient_accumulation_steps
    size, remainder = divmod(config.train.batch_size, num_replicas * parts)
    if remainder:
        raise InputError(
            f"train.batch_size: got {config.train.batch_size} for {num_replicas} replicas and {parts} parts of a step, "
            f"allowed: a multiple of {num_replicas * parts}."
        )
    return size * parts


def build_train_dataset(
    config: TrainEvalConfig,
    label_map: LabelMap,
    files: Sequence[str],
    *,
    batch_size: int,
    input_context: tf.distribute.InputContext | None = None,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Endless batches of augmented pictures, shuffled if `train_input` says so, from where `start_step` begins.

    A picture, and what is drawn at random for it, depend on configuration, files, pipeline and its number in the
    stream alone. Consecutive batches make a step; several replicas that share the pipeline take them in turn.

    Elements: image_BHW3 float32 and true_hw_B2 (`prepare_image`), boxes_yxyx_rel_BG4 relative to that image with its
    padding, class_indices_BG (-1 pads), box_weights_BG (0 pads), num_dropped_B (boxes over `max_number_of_boxes`).
    Crowds are left out: nothing can learn a group as one object.
    """
    context = input_context or tf.distribute.InputContext()
    table, per_step = class_index_table(label_map.class_ids), elements_per_step(config.train, context)
    stream = build_record_stream(
        config.train_input,
        files,
        seed=config.train.seed,
        context=context,
        first_element=start_step * per_step,
    )
    seeds = AugmentationSeeds(config, context.input_pipeline_id)

    @tf.autograph.experimental.do_not_convert
    def to_element(number: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        sample = augmented_sample(config, serialized, table, seeds.of_element(number))
        return {_NUMBER: number, **_train_element(config, sample)}

    @tf.autograph.experimental.do_not_convert
    def mixed(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        first_element = batch.pop(_NUMBER)[0]
        is_on = first_element // per_step < config.train.num_steps - config.train.last_steps_without_mixing
        return mix_batch(mixings, batch, seeds.of_batch(first_element), is_on=is_on)

    mixings = mixings_of(config.train.augmentations)
    if mixings and batch_size == 1:
        _LOGGER.warning("Mosaic and MixUp do nothing: they mix pictures of a replica's batch, which is one picture.")
    elements = stream.map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    batches = elements.batch(batch_size, drop_remainder=True)
    batches = batches.map(mixed, num_parallel_calls=tf.data.AUTOTUNE if mixings else None)
    return batches.prefetch(_BATCHES_AHEAD).with_options(_options())


def example_keys(
    config: TrainEvalConfig, files: Sequence[str], *, step: int, num_input_pipelines: int = 1
) -> list[str]:
    """What the records of a step call themselves, of all pipelines: source id, else file name, else nothing."""
    return [record_key(serialized) for serialized in _records_of_step(config, files, step, num_input_pipelines)]


def broken_example_keys(
    config: TrainEvalConfig, label_map: LabelMap, files: Sequence[str], *, step: int, num_input_pipelines: int = 1
) -> list[str]:
    """`example_keys` of those records of a step that cannot be parsed or decoded."""
    table = class_index_table(label_map.class_ids)

    def is_broken(serialized: bytes) -> bool:
        try:
            parse_example(tf.constant(serialized), table)
        except tf.errors.InvalidArgumentError:
            return True
        return False

    records = _records_of_step(config, files, step, num_input_pipelines)
    return [record_key(serialized) for serialized in records if is_broken(serialized)]


def _records_of_step(
    config: TrainEvalConfig, files: Sequence[str], step: int, num_input_pipelines: int
) -> Iterator[bytes]:
    for pipeline in range(num_input_pipelines):
        context = tf.distribute.InputContext(num_input_pipelines, pipeline, num_input_pipelines)
        count = elements_per_step(config.train, context)
        stream = build_record_stream(
            config.train_input, files, seed=config.train.seed, context=context, first_element=step * count
        )
        for _, serialized in stream.take(count).as_numpy_iterator():
            yield serialized


class AugmentationSeeds:
    """What the random changes of a pipeline's pictures are drawn from."""

    def __init__(self, config: TrainEvalConfig, pipeline: int = 0) -> None:
        entropy = [config.train.seed, pipeline]
        states = np.random.SeedSequence(entropy).generate_state(len(config.train.augmentations) + 1, np.uint64)
        self._states = [int(state) >> 1 for state in states]  # int64 has a bit less

    def of_element(self, number: tf.Tensor) -> list[tf.Tensor]:
        """int64 [2] for each augmentation."""
        return [tf.stack([tf.constant(state, tf.int64), number]) for state in self._states[:-1]]

    def of_batch(self, first_element: tf.Tensor) -> tf.Tensor:
        """int64 [2], for what is made of the whole batch that begins with this element."""
        return tf.stack([tf.constant(self._states[-1], tf.int64), first_element])


def augmented_sample(
    config: TrainEvalConfig,
    serialized: tf.Tensor,
    table: tf.lookup.StaticHashTable,
    seeds: Sequence[tf.Tensor],
    *,
    with_masks: bool = False,
    with_keypoints: bool = False,
) -> Sample:
    """A training picture as it is seen, but that it is not yet mixed with others, normalized and padded; see `Sample`.

    Args:
        seeds: `AugmentationSeeds.of_element`.
    """
    parsed = parse_boxes(serialized, table, with_masks=with_masks, with_keypoints=with_keypoints)
    pairs = [pair for pair in zip(config.train.augmentations, seeds, strict=True) if not isinstance(pair[0], Mixing)]
    before, after = split_at_resize(pairs)
    crop = before[0][0] if before else None
    if isinstance(crop, WindowCrop):
        sample = decode_crop(parsed, crop, before.pop(0)[1])
    else:
        sample = decode_sample(parsed)
    sample = _changed(before, sample)
    return _changed(after, _resized(config, sample))


def _changed(pairs: Sequence[tuple[Augmentation, tf.Tensor]], sample: Sample) -> Sample:
    return apply_all([augmentation for augmentation, _ in pairs], sample, [seed for _, seed in pairs])


def _resized(config: TrainEvalConfig, sample: Sample) -> Sample:
    image = resize_image(sample["image"], config.model.image_resizer)
    resized = replaced(sample, image=image)
    if "masks_GHW" in sample:
        masks = sample["masks_GHW"][..., tf.newaxis]
        resized["masks_GHW"] = tf.image.resize(masks, tf.shape(image)[:2], method="nearest")[..., 0]
    return resized


def _train_element(config: TrainEvalConfig, sample: Sample) -> dict[str, tf.Tensor]:
    image, true_hw = normalize_and_pad(sample["image"], config.model)
    shares_yx = tf.cast(true_hw, tf.float32) / tf.constant(network_hw(config.model.image_resizer), tf.float32)
    boxes = sample["boxes_yxyx_rel"] * tf.tile(shares_yx, [2])
    columns = keep_largest(replaced(sample, boxes_yxyx_rel=boxes), config.train_input.max_number_of_boxes)
    return {"image": image, "true_hw": true_hw, **columns}


def keep_largest(sample: Sample, max_boxes: int) -> dict[str, tf.Tensor]:
    """Box columns padded to `max_boxes`, of more boxes those of the largest; num_dropped, how many were too many."""
    num_boxes = tf.shape(sample["class_indices"])[0]
    largest = tf.argsort(sample["area_px"], direction="DESCENDING", stable=True)[:max_boxes]
    padding = [[0, max_boxes - tf.shape(largest)[0]]]
    boxes = tf.pad(tf.gather(sample["boxes_yxyx_rel"], largest), [*padding, [0, 0]])
    class_indices = tf.pad(tf.gather(sample["class_indices"], largest), padding, constant_values=-1)
    box_weights = tf.pad(tf.gather(sample["box_weights"], largest), padding)
    return {
        "boxes_yxyx_rel": tf.ensure_shape(boxes, [max_boxes, 4]),
        "class_indices": tf.ensure_shape(class_indices, [max_boxes]),
        "box_weights": tf.ensure_shape(box_weights, [max_boxes]),
        "num_dropped": tf.maximum(num_boxes - max_boxes, 0),
    }


def build_eval_dataset(
    config: TrainEvalConfig, label_map: LabelMap, files: Sequence[str], *, batch_size: int
) -> tf.data.Dataset:
    """One pass in order: image_BHW3, true_hw_B2 (`prepare_image`), image_hw_B2 (original pixels), and the ground truth.

    Its boxes are relative to the picture without padding, its class_indices_BG -1 where there is no box. All boxes are
    kept, and the order is that of the files: `eval_input` says only which examples are read.
    """
    table = class_index_table(label_map.class_ids)

    @tf.autograph.experimental.do_not_convert
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
        "box_weights": 0.0,
    }
    records = read_records(files, one_of=config.eval_input.sample_1_of_n_examples)
    elements = records.map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    batches = elements.padded_batch(batch_size, padding_values=padding)
    return batches.prefetch(_BATCHES_AHEAD).with_options(_options())


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    return options
