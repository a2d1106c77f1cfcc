"""Input pipelines: from TFRecord shards to batches."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.ground_truth import (
    AREA,
    CLASSES,
    COLUMNS,
    IMAGE,
    IMAGE_HW,
    MASK_PNGS,
    MASKS,
    NUM_DROPPED,
    OPTIONAL_COLUMNS,
    TRUE_HW,
)
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import Augmentation, Mixing
from detloom.schemas.model.config import TrainEvalConfig
from detloom.trainer_module.data.augmentations.apply import apply_all, split_at_resize
from detloom.trainer_module.data.augmentations.crops import WindowCrop
from detloom.trainer_module.data.augmentations.mixing import mix_batch, mixings_of
from detloom.trainer_module.data.class_lookup import ClassLookup, ClassTables
from detloom.trainer_module.data.cropped_decoding import decode_crop, decode_sample
from detloom.trainer_module.data.data_service import ServerAddress, read_from_servers
from detloom.trainer_module.data.example_parser import (
    ParsedExample,
    check_has_masks,
    keypoint_class_of,
    parse_ground_truth,
    sample_of,
)
from detloom.trainer_module.data.record_stream import build_record_stream, elements_per_step
from detloom.trainer_module.data.records import ExampleFeatures, read_records
from detloom.trainer_module.data.sample import Sample, columns_of
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.detectors.preprocess import Preprocessing, decode_image, resize_image, resize_masks

_BATCHES_AHEAD = 2
_EVAL_ROWS = 64  # columns are padded to a multiple of this in evaluation, because XLA compiles once per shape
_LOGGER = logging.getLogger("detloom")
_NUMBER = "number"  # key of the element number, until batches are mixed


def per_replica_batch_size(config: TrainEvalConfig, num_replicas: int) -> int:
    """Return the number of images per step on each replica, processed in `gradient_accumulation_steps` equal parts.

    Raises:
        InputError: if the batch cannot be divided evenly.
    """
    parts = config.train.gradient_accumulation_steps
    size, remainder = divmod(config.train.batch_size, num_replicas * parts)
    if remainder:
        raise InputError(
            f"train.batch_size: got {config.train.batch_size} for {num_replicas} replicas and {parts} parts per step, "
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
    servers: Sequence[ServerAddress] = (),
) -> tf.data.Dataset:
    """Build endless batches of augmented images that begin with the first image of `start_step`.

    An image and its random changes depend only on configuration, files, pipeline and its number in the stream.
    Consecutive batches make a step; several replicas that share the pipeline take them in turn.

    A batch has the padded images with colors 0 to 255, which the device normalizes (`Preprocessing.normalize_padded`),
    `true_hw`, the columns that the detector family needs, relative to the padded images and padded to
    `max_number_of_boxes`, and `num_dropped`. Crowds are left out: a group cannot be learned as one object.

    Args:
        servers: of tf.data service, to make the batches; they must read the files under the same names.
    """
    family = family_of(config.model)
    preprocessing, columns, parse = family.preprocessing, family.ground_truth_columns, build_parser(config, label_map)
    context = input_context or tf.distribute.InputContext()
    per_step = elements_per_step(config.train, context)
    stream = build_record_stream(
        config.train_input,
        files,
        ClassLookup(label_map, config.train_input.unknown_classes),
        seed=config.train.seed,
        context=context,
        first_element=start_step * per_step,
    )
    seeds = AugmentationSeeds(config, context.input_pipeline_id)

    @tf.autograph.experimental.do_not_convert
    def to_element(number: tf.Tensor, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        sample = augmented_sample(config, parse(serialized), seeds.of_element(number))
        element = train_element(sample, preprocessing, columns, config.train_input.max_number_of_boxes)
        return {_NUMBER: number, **(element if mixings else to_image_type(element))}

    @tf.autograph.experimental.do_not_convert
    def mix(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        first_element = batch.pop(_NUMBER)[0]
        if not mixings:
            return batch
        is_on = first_element // per_step < config.train.num_steps - config.train.last_steps_without_mixing
        return to_image_type(mix_batch(mixings, batch, seeds.of_batch(first_element), is_on=is_on))

    def to_image_type(images: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        if config.train_input.image_type == "float32":
            return images
        return {**images, IMAGE: tf.saturate_cast(tf.round(images[IMAGE]), tf.uint8)}

    def to_batches(numbered_records: tf.data.Dataset) -> tf.data.Dataset:
        elements = numbered_records.map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
        batches = elements.batch(batch_size, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE)
        return batches.map(mix, num_parallel_calls=tf.data.AUTOTUNE if mixings else None).with_options(_options())

    mixings = mixings_of(config.train.augmentations)
    if mixings and batch_size == 1:
        _LOGGER.warning(
            "Mosaic and MixUp have no effect: they mix the images of a replica's batch, which is one image."
        )
    if servers:
        shares = [stream.batch(batch_size).shard(len(servers), i).unbatch() for i in range(len(servers))]
        batches = read_from_servers(servers, [to_batches(share) for share in shares])
    else:
        batches = to_batches(stream)
    # With an unknown number of batches, all workers ask each other before each step whether any has ended.
    batches = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return batches.prefetch(_BATCHES_AHEAD)


def build_parser(config: TrainEvalConfig, label_map: LabelMap) -> Callable[[tf.Tensor], ParsedExample]:
    """Return a function that parses a serialized example with all ground truth that the family needs."""
    family, classes = family_of(config.model), ClassTables(ClassLookup(label_map, config.train_input.unknown_classes))
    optional = [name for name in family.ground_truth_columns if name in OPTIONAL_COLUMNS]
    keypoint_class = keypoint_class_of(family.keypoints, label_map)

    def parse(serialized: tf.Tensor) -> ParsedExample:
        parsed = parse_ground_truth(serialized, classes, optional, keypoint_class)
        if MASKS in optional:
            check_has_masks(parsed)
        return parsed

    return parse


def example_keys(
    config: TrainEvalConfig,
    label_map: LabelMap,
    files: Sequence[str],
    *,
    step: int,
    num_input_pipelines: int = 1,
    only_broken: bool = False,
) -> list[str]:
    """Return the keys of the records of a step, of all pipelines.

    Args:
        only_broken: return those of records that cannot be parsed or decoded.
    """
    lookup, parse = ClassLookup(label_map, config.train_input.unknown_classes), build_parser(config, label_map)
    found = []
    for pipeline in range(num_input_pipelines):
        context = tf.distribute.InputContext(num_input_pipelines, pipeline, num_input_pipelines)
        count = elements_per_step(config.train, context)
        stream = build_record_stream(
            config.train_input, files, lookup, seed=config.train.seed, context=context, first_element=step * count
        )
        for _, serialized in stream.take(count).as_numpy_iterator():
            if not only_broken or _is_broken(parse, serialized):
                found.append(ExampleFeatures(serialized).record_key)
    return found


def _is_broken(parse: Callable[[tf.Tensor], ParsedExample], serialized: bytes) -> bool:
    try:
        decode_sample(parse(tf.constant(serialized)))
    except tf.errors.InvalidArgumentError:
        return True
    return False


class AugmentationSeeds:
    """Seeds of the augmentations of one input pipeline."""

    def __init__(self, config: TrainEvalConfig, pipeline: int = 0) -> None:
        entropy = [config.train.seed, pipeline]
        states = np.random.SeedSequence(entropy).generate_state(len(config.train.augmentations) + 1, np.uint64)
        self._states = [int(state) >> 1 for state in states]  # int64 has one bit less

    def of_element(self, number: tf.Tensor) -> list[tf.Tensor]:
        """Return a seed, int64 [2], for each augmentation."""
        return [tf.stack([tf.constant(state, tf.int64), number]) for state in self._states[:-1]]

    def of_batch(self, first_element: tf.Tensor) -> tf.Tensor:
        """Return the seed, int64 [2], for mixing the batch that begins with this element."""
        return tf.stack([tf.constant(self._states[-1], tf.int64), first_element])


def augmented_sample(config: TrainEvalConfig, parsed: ParsedExample, seeds: Sequence[tf.Tensor]) -> Sample:
    """Return an augmented and resized training image; it is not yet mixed with others, normalized or padded.

    Args:
        seeds: of `AugmentationSeeds.of_element`.
    """
    pairs = [pair for pair in zip(config.train.augmentations, seeds, strict=True) if not isinstance(pair[0], Mixing)]
    before, after = split_at_resize(pairs)
    crop = before[0][0] if before else None
    if isinstance(crop, WindowCrop):
        sample = decode_crop(parsed, crop, before.pop(0)[1])
    else:
        sample = decode_sample(parsed)
    sample = _augmented(before, sample)
    return _augmented(after, _resized(config, sample))


def _augmented(pairs: Sequence[tuple[Augmentation, tf.Tensor]], sample: Sample) -> Sample:
    return apply_all([augmentation for augmentation, _ in pairs], sample, [seed for _, seed in pairs])


def _resized(config: TrainEvalConfig, sample: Sample) -> Sample:
    image = resize_image(sample[IMAGE], config.model.image_resizer)
    resized = {**sample, IMAGE: image}
    for name in columns_of(sample, "masks"):
        resized[name] = resize_masks(sample[name], tf.shape(image)[:2], config.model.image_resizer)
    return resized


def train_element(
    sample: Sample, preprocessing: Preprocessing, columns: Sequence[str], max_boxes: int
) -> dict[str, tf.Tensor]:
    """Pad an augmented image; its ground truth becomes relative to the padded image."""
    image, true_hw = preprocessing.pad_colors(sample[IMAGE])
    height, width = preprocessing.network_hw
    shares_yx = tf.cast(true_hw, tf.float32) / tf.constant([height, width], tf.float32)
    padded = dict(sample)
    for name in columns_of(sample, "boxes"):
        padded[name] = sample[name] * tf.tile(shares_yx, [2])
    for name in columns_of(sample, "points"):
        padded[name] = sample[name] * shares_yx
    for name in columns_of(sample, "masks"):
        padded[name] = _padded_masks(sample[name], true_hw, preprocessing.network_hw)
    return {IMAGE: image, TRUE_HW: true_hw, **keep_largest(padded, columns, max_boxes)}


def _padded_masks(masks_GHW: tf.Tensor, true_hw: tf.Tensor, network_hw: tuple[int, int]) -> tf.Tensor:
    height, width = network_hw
    padded = tf.pad(masks_GHW, [[0, 0], [0, height - true_hw[0]], [0, width - true_hw[1]]])
    return tf.ensure_shape(padded, [None, height, width])


def keep_largest(sample: Sample, columns: Sequence[str], max_boxes: int) -> dict[str, tf.Tensor]:
    """Return columns padded to `max_boxes`, with the largest boxes if there are more, and the number of the others."""
    num_boxes = tf.shape(sample[CLASSES])[0]
    largest = tf.argsort(sample[AREA], direction="DESCENDING", stable=True)[:max_boxes]
    num_missing = max_boxes - tf.shape(largest)[0]
    kept = {}
    for name in columns:
        value = tf.gather(sample[name], largest)
        paddings = [[0, num_missing], *[[0, 0]] * (len(value.shape) - 1)]
        value = tf.pad(value, paddings, constant_values=tf.cast(COLUMNS[name].padding, value.dtype))
        kept[name] = tf.ensure_shape(value, [max_boxes, *value.shape[1:]])
    return {**kept, NUM_DROPPED: tf.maximum(num_boxes - max_boxes, 0)}


def build_eval_dataset(
    config: TrainEvalConfig,
    label_map: LabelMap,
    files: Sequence[str],
    *,
    batch_size: int,
    worker: int = 0,
    num_workers: int = 1,
) -> tf.data.Dataset:
    """Build one pass over a split, in the order of the files: prepared images with all their ground truth.

    Columns are padded to a multiple of 64 rows. Boxes and keypoints are relative to the image without padding. Masks
    are those of the padded image, for the losses, with the stored masks beside them. `eval_input` only decides which
    examples are read. Of several workers, each gets every `num_workers`-th batch; the others are not decoded.
    """
    family = family_of(config.model)
    preprocessing, parse = family.preprocessing, build_parser(config, label_map)

    @tf.autograph.experimental.do_not_convert
    def to_element(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = parse(serialized)
        decoded = decode_image(parsed.image_bytes)
        image_hw = tf.shape(decoded)[:2]
        sample = sample_of(parsed, decoded, image_hw)
        image, true_hw = preprocessing.prepare(decoded)
        if MASKS in sample:
            masks = resize_masks(sample[MASKS], true_hw, config.model.image_resizer)
            sample |= {
                MASKS: _padded_masks(masks, true_hw, preprocessing.network_hw),
                MASK_PNGS: parsed.mask_pngs,
            }
        return {**sample, IMAGE: image, TRUE_HW: true_hw, IMAGE_HW: image_hw}

    records = read_records(files, one_of=config.eval_input.sample_1_of_n_examples)
    if num_workers > 1:
        records = records.batch(batch_size).shard(num_workers, worker).unbatch()
    elements = records.map(to_element, num_parallel_calls=tf.data.AUTOTUNE)
    padding = {
        name: tf.constant(
            "" if spec.dtype == tf.string else COLUMNS[name].padding if name in COLUMNS else 0, spec.dtype
        )
        for name, spec in elements.element_spec.items()
    }
    columns = [name for name in padding if name in COLUMNS or name == MASK_PNGS]

    @tf.autograph.experimental.do_not_convert
    def to_whole_rows(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        num_rows = tf.shape(batch[CLASSES])[1]
        num_missing = tf.maximum(_EVAL_ROWS - num_rows, -num_rows % _EVAL_ROWS)
        padded = dict(batch)
        for name in columns:
            paddings = [[0, 0], [0, num_missing], *[[0, 0]] * (len(batch[name].shape) - 2)]
            padded[name] = tf.pad(batch[name], paddings, constant_values=padding[name])
        return padded

    batches = elements.padded_batch(batch_size, padding_values=padding).map(to_whole_rows)
    return batches.prefetch(_BATCHES_AHEAD).with_options(_options())


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    return options
