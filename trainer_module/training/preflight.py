"""Checks before the first training step: find settings and data that cannot train the intended model."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import CLASS_AP, MASK
from detloom.schemas.errors import InputError, list_first
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.config_checks import warnings_before_run
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.example_parser import keypoint_class_of
from detloom.trainer_module.data.records import ExampleFeatures, list_shards, read_records
from detloom.trainer_module.detectors.detector import Detector, Family, Keypoints
from detloom.trainer_module.training.memory_estimate import check_memory, estimate_memory

_MIN_PAIRS, _ORDERED_SHARE = 8, 0.8  # of successive records with boxes, to tell whether files are ordered by class
_MAX_SAMPLED = 200  # enough records to find ids that are off by one, few enough to be fast
_LOGGER = logging.getLogger("detloom")


def preflight(
    config: TrainEvalConfig,
    label_map: LabelMap,
    detector: Detector,
    train_files: Sequence[str],
    num_replicas: int = 1,
) -> tuple[str, ...]:
    """Check the configuration against data, network and machine; log the estimated memory of training.

    Args:
        train_files: TFRecord shards, or patterns.

    Returns:
        Warnings, one sentence each, about settings that are allowed but probably unintended.

    Raises:
        InputError: if classes of configuration, label map, network and data differ, a metric names an unknown class,
            a record cannot be read, the data lack the masks or keypoints that the detector learns, or memory is
            certainly insufficient.
    """
    check_classes(detector.family, label_map, detector.network)
    check_metrics(config, label_map)
    files = list_shards(train_files)
    sample = sample_records(files)
    check_optional_columns(sample, detector.family, label_map)
    lookup = ClassLookup(label_map, config.train_input.unknown_classes)
    warnings = [*warnings_before_run(config), *check_records(sample, lookup, config.train_input.num_readers)]
    memory = estimate_memory(
        config,
        detector.network,
        activations_per_image=detector.activation_bytes_per_image(),
        num_replicas=num_replicas,
        mean_record_bytes=sample.mean_bytes,
        split_bytes=sum(tf.io.gfile.stat(file).length for file in files),
    )
    _LOGGER.info("%s", memory.sentence())
    return (*warnings, *check_memory(memory))


# --- classes --------------------------------------------------------------------------------------------------------


def check_classes(family: Family, label_map: LabelMap, network: keras.Model) -> None:
    """Raise InputError unless the network's heads have one channel per class of the label map.

    `build_detector` has already checked that the configuration's `num_classes` is that of the label map.
    """
    num_channels = family.num_class_channels(label_map.num_classes)
    for name, output in network.output.items():
        if name.startswith("class_logits") and output.shape[-1] != num_channels:
            background = " and background" if num_channels > label_map.num_classes else ""
            raise InputError(
                f"network: got {output.shape[-1]} class outputs, allowed: {num_channels} ({label_map.num_classes} "
                f"classes of the label map{background}); build it for this label map."
            )


def check_metrics(config: TrainEvalConfig, label_map: LabelMap) -> None:
    """Raise InputError for the AP of a class that the label map lacks, hours before the first evaluation would."""
    metrics = {"eval.best_metric": config.eval.best_metric}
    if config.train.early_stopping is not None:
        metrics["train.early_stopping.metric"] = config.train.early_stopping.metric
    for path, metric in metrics.items():
        of_class = metric.removeprefix(MASK)
        class_name = of_class.removeprefix(CLASS_AP)
        if class_name != of_class and class_name not in label_map.names:
            raise InputError(
                f"{path}: got the class {class_name!r}, allowed: those of the label map, {list_first(label_map.names)}."
            )


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampledRecord:
    """Class information of a record.

    Attributes:
        where: file, position in it, and the record's own key.
        class_ids: one per box, or empty.
        class_texts: one per box, or empty.
        num_without_mask: number of boxes without a mask, except crowds.
        num_keypoints: number of stored keypoints of all boxes.
        keypoint_counts: number of stored keypoints of each box as the record states it, or empty.
    """

    where: str
    num_bytes: int
    class_ids: tuple[int, ...]
    class_texts: tuple[bytes, ...]
    num_without_mask: int = 0
    num_keypoints: int = 0
    keypoint_counts: tuple[int, ...] = ()
    num_boxes: int = 0
    file: str = ""


@dataclass(frozen=True)
class RecordSample:
    """The first records of the shards; `is_whole_split` is True if there are no others."""

    records: tuple[SampledRecord, ...]
    is_whole_split: bool

    @property
    def mean_bytes(self) -> float:
        """Mean size of a serialized record; 0 without records."""
        return sum(record.num_bytes for record in self.records) / max(len(self.records), 1)


def sample_records(files: Sequence[str], max_records: int = _MAX_SAMPLED) -> RecordSample:
    """Read the first records of each shard, equally many from each, about `max_records` in total.

    Raises:
        InputError: with file and position of a record that cannot be read.
    """
    sampled_files = files[:max_records]
    quota = -(-max_records // max(len(sampled_files), 1))
    records: list[SampledRecord] = []
    is_whole_split = len(sampled_files) == len(files)
    for file in sampled_files:
        first = list(_read_first(file, quota + 1))
        records += first[:quota]
        is_whole_split = is_whole_split and len(first) <= quota
    return RecordSample(tuple(records), is_whole_split)


def check_records(sample: RecordSample, lookup: ClassLookup, num_readers: int) -> tuple[str, ...]:
    """Return warnings about classes in the data.

    Args:
        num_readers: files that are read in turn.

    Raises:
        InputError: for a class that `lookup` refuses.
    """
    counts: Counter[int] = Counter()
    unknown_texts: Counter[str] = Counter()
    classes_by_file: dict[str, list[set[int]]] = {}
    for record in sample.records:
        try:
            class_ids = lookup.class_ids(record.class_ids, record.class_texts, record.num_boxes)
        except ValueError as error:
            raise InputError(f"{record.where}: {error}") from None
        counts.update(class_ids)
        classes_by_file.setdefault(record.file, []).append({class_id for class_id in class_ids if class_id})
        texts = [text.decode("utf-8", errors="replace") for text in record.class_texts if text]
        unknown_texts.update(text for text in texts if text not in lookup.ids_by_text)
    return (
        *_class_warnings(sample, lookup, counts, unknown_texts),
        *(_order_warnings(list(classes_by_file.values())) if len(classes_by_file) > num_readers else ()),
    )


def check_optional_columns(sample: RecordSample, family: Family, label_map: LabelMap) -> None:
    """Check that the data have the masks and keypoints that the detector learns.

    Raises:
        InputError: for a record with a box without a mask, if no record with the class of the keypoints has any, or for
            a box of that class with another number of keypoints.
    """
    if truth.MASKS in family.ground_truth_columns:
        for record in sample.records:
            if record.num_without_mask:
                raise InputError(
                    f"{record.where}: {record.num_without_mask} of its {len(record.class_ids)} boxes have no mask, but "
                    "the detector learns masks; ingest the data with masks (data.masks: true, or detloom ingest "
                    "--masks), or leave out objects without a mask."
                )
    if truth.KEYPOINTS in family.ground_truth_columns and family.keypoints is not None:
        keypoint_class = keypoint_class_of(family.keypoints, label_map)
        assert keypoint_class is not None
        class_id = label_map.class_ids[keypoint_class.class_index]
        for record in sample.records:
            _check_keypoint_counts(record, class_id, family.keypoints)
        with_class = [record for record in sample.records if class_id in record.class_ids]
        if with_class and not any(record.num_keypoints for record in with_class):
            raise InputError(
                f"{with_class[0].where}: no keypoints in this and {len(with_class) - 1} other records with the class "
                f"{family.keypoints.class_name!r}, but the detector learns keypoints; ingest the data with keypoints "
                "(data.keypoints: true, or detloom ingest --keypoints)."
            )


def _check_keypoint_counts(record: SampledRecord, class_id: int, keypoints: Keypoints) -> None:
    """Refuse what the parser of the training data would refuse at the first step; see `parse_ground_truth`."""
    num_points = len(keypoints.names)
    if sum(record.keypoint_counts) != record.num_keypoints == num_points * len(record.class_ids):
        return  # records that store all keypoints, and in the counts only those with a label
    for box_class, count in zip(record.class_ids, record.keypoint_counts):  # noqa: B905 (none, or one for each box)
        if box_class == class_id and count not in (0, num_points):
            raise InputError(
                f"{record.where}: an object of class {keypoints.class_name!r} has {count} keypoints, allowed: 0 or "
                f"{num_points}, as many as model.keypoint_estimation_task.keypoint_label_to_std has."
            )


def _read_first(file: str, count: int) -> Iterator[SampledRecord]:
    place = 0
    try:
        for place, serialized in enumerate(read_records([file]).take(count).as_numpy_iterator()):
            yield _parse(serialized, file, place)
            place += 1
    except tf.errors.OpError as error:
        cause = " ".join(str(error.message).split())
        raise InputError(f"{file}: record {place} cannot be read ({cause}); write the file again.") from None


def _parse(serialized: bytes, file: str, place: int) -> SampledRecord:
    where = f"{file}: record {place}"
    try:
        features = ExampleFeatures(serialized)
    except ValueError as error:
        raise InputError(f"{where} is {error}; write the file again.") from None
    key, texts = features.record_key, features.texts(keys.CLASS_TEXT)
    return SampledRecord(
        f"{where} ({key})" if key else where,
        len(serialized),
        tuple(features.ints(keys.CLASS_ID).tolist()),
        tuple(texts),
        _count_without_mask(features),
        len(features.floats(keys.KEYPOINT_Y)),
        tuple(features.ints(keys.NUM_KEYPOINTS).tolist()),
        len(features.floats(keys.BOX_XMIN)),
        file,
    )


def _count_without_mask(features: ExampleFeatures) -> int:
    masks, crowds = features.texts(keys.MASK), features.ints(keys.IS_CROWD).tolist()
    num_boxes = len(features.ints(keys.CLASS_ID))
    masks = masks if len(masks) == num_boxes else [b""] * num_boxes
    crowds = crowds if len(crowds) == num_boxes else [0] * num_boxes
    return sum(not mask and not is_crowd for mask, is_crowd in zip(masks, crowds, strict=True))


def _class_warnings(
    sample: RecordSample, lookup: ClassLookup, counts: Counter[int], unknown_texts: Counter[str]
) -> Iterator[str]:
    label_map, num_dropped = lookup.label_map, counts.pop(0, 0)
    if num_dropped:
        yield (
            f"Training data: {num_dropped} of {num_dropped + counts.total()} boxes in {len(sample.records)} records "
            f"are left out, because the label map lacks their class ({list_first(unknown_texts) or 'by id'}; "
            "train_input.unknown_classes: drop)."
        )
    elif unknown_texts:
        yield (
            f"Training data: class texts that the label map lacks: {list_first(unknown_texts)}; only the class ids "
            "count, so check that they mean the same in data and label map."
        )
    if not counts:
        whole = "the training split" if sample.is_whole_split else f"its first {len(sample.records)} records"
        yield f"Training data: no box in {whole}; a detector learns nothing from images without boxes."
    elif sample.is_whole_split:
        without = [name for class_id, name in label_map.names_by_id if not counts[class_id]]
        if without:
            yield (
                f"Training data: no box of {list_first(without)} in the whole training split; the detector cannot "
                "learn these classes: add images, or remove the classes from the label map."
            )


def _order_warnings(classes_of_files: Sequence[Sequence[set[int]]]) -> Iterator[str]:
    """Warn if successive records of a file usually share a class, and records of different files hardly ever do."""
    inside = [
        bool(one & other) for file in classes_of_files for one, other in itertools.pairwise(file) if one and other
    ]
    heads = [file[0] for file in classes_of_files if file[0]]
    between = [bool(one & other) for one, other in itertools.combinations(heads, 2)]
    if len(inside) < _MIN_PAIRS or not between:
        return
    share_inside, share_between = sum(inside) / len(inside), sum(between) / len(between)
    if share_inside > _ORDERED_SHARE and share_between < 1 - _ORDERED_SHARE:
        yield (
            f"Training data: each of {len(classes_of_files)} files has classes of its own, as if they were written "
            "class by class; shuffle the records over the files, or raise train_input.num_readers and "
            "train_input.shuffle_buffer_size so that batches mix them."
        )
