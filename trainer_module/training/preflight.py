"""Checks before the first training step: find settings and data that cannot train the intended model."""

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
from detloom.trainer_module.data.example_parser import keypoint_class_of
from detloom.trainer_module.data.records import ExampleFeatures, list_shards, read_records
from detloom.trainer_module.detectors.detector import Detector, Family, Keypoints
from detloom.trainer_module.training.memory_estimate import check_memory, estimate_memory

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
    warnings = [*warnings_before_run(config), *check_records(sample, label_map)]
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
        class_ids: one per box.
        class_texts: one per box, or empty.
        num_without_mask: number of boxes without a mask, except crowds.
        num_keypoints: number of stored keypoints of all boxes.
        keypoint_counts: number of stored keypoints of each box as the record states it, or empty.
    """

    where: str
    num_bytes: int
    class_ids: tuple[int, ...]
    class_texts: tuple[str, ...]
    num_without_mask: int = 0
    num_keypoints: int = 0
    keypoint_counts: tuple[int, ...] = ()


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


def check_records(sample: RecordSample, label_map: LabelMap) -> tuple[str, ...]:
    """Return warnings about classes in the data.

    Raises:
        InputError: for a class id that the label map lacks, and for a class text that names another class id.
    """
    counts: Counter[int] = Counter()
    unknown_texts: Counter[str] = Counter()
    ids_by_name = {name: class_id for class_id, name in label_map.names_by_id}
    for record in sample.records:
        counts.update(record.class_ids)
        _check_ids(record, label_map)
        if len(record.class_texts) == len(record.class_ids):
            for class_id, text in zip(record.class_ids, record.class_texts, strict=True):
                _check_text(record, class_id, text, ids_by_name, label_map)
        unknown_texts.update(text for text in record.class_texts if text and text not in ids_by_name)
    return tuple(_class_warnings(sample, label_map, counts, unknown_texts))


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
            yield _parse(serialized, f"{file}: record {place}")
            place += 1
    except tf.errors.OpError as error:
        cause = " ".join(str(error.message).split())
        raise InputError(f"{file}: record {place} cannot be read ({cause}); write the file again.") from None


def _parse(serialized: bytes, where: str) -> SampledRecord:
    try:
        features = ExampleFeatures(serialized)
    except ValueError as error:
        raise InputError(f"{where} is {error}; write the file again.") from None
    key, texts = features.record_key, features.texts(keys.CLASS_TEXT)
    return SampledRecord(
        f"{where} ({key})" if key else where,
        len(serialized),
        tuple(features.ints(keys.CLASS_ID).tolist()),
        tuple(text.decode("utf-8", errors="replace") for text in texts),
        _count_without_mask(features),
        len(features.floats(keys.KEYPOINT_Y)),
        tuple(features.ints(keys.NUM_KEYPOINTS).tolist()),
    )


def _count_without_mask(features: ExampleFeatures) -> int:
    masks, crowds = features.texts(keys.MASK), features.ints(keys.IS_CROWD).tolist()
    num_boxes = len(features.ints(keys.CLASS_ID))
    masks = masks if len(masks) == num_boxes else [b""] * num_boxes
    crowds = crowds if len(crowds) == num_boxes else [0] * num_boxes
    return sum(not mask and not is_crowd for mask, is_crowd in zip(masks, crowds, strict=True))


def _check_ids(record: SampledRecord, label_map: LabelMap) -> None:
    unknown = sorted(set(record.class_ids) - set(label_map.class_ids))
    if unknown:
        hint = " Ids start at 1: 0 is background." if unknown[0] == 0 else ""
        raise InputError(
            f"{record.where}: got class id {unknown[0]}, allowed: the ids of the label map, "
            f"{list_first(label_map.class_ids)}; use the label map that the data were written with.{hint}"
        )


def _check_text(
    record: SampledRecord, class_id: int, text: str, ids_by_name: dict[str, int], label_map: LabelMap
) -> None:
    """Reject a text that names another class. Unknown texts are fine: Open Images writes "/m/01g317" for "person"."""
    if ids_by_name.get(text, class_id) != class_id:
        raise InputError(
            f"{record.where}: got class id {class_id} with the text {text!r}, but in the label map {class_id} is "
            f"{label_map.name_of(class_id)!r} and {text!r} is {ids_by_name[text]}; use the label map that the data "
            "were written with."
        )


def _class_warnings(
    sample: RecordSample, label_map: LabelMap, counts: Counter[int], unknown_texts: Counter[str]
) -> Iterator[str]:
    if unknown_texts:
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
