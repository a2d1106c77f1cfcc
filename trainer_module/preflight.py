"""What is checked before the first training step: what would train the wrong thing, or not at all, is said at once."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf
from google.protobuf.message import DecodeError

from detloom.schemas import example_keys as keys
from detloom.schemas.config import Model, TrainEvalConfig
from detloom.schemas.config_checks import warnings_before_run
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.metric_names import CLASS_AP
from detloom.schemas.model_config import Ssd
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.memory_estimate import check_memory, estimate_memory
from detloom.trainer_module.records import list_shards, read_records

_MAX_SAMPLED = 200  # records: enough to find ids that are off by one, few enough to take no time
_MAX_NAMED = 10  # classes or ids in a message
_LOGGER = logging.getLogger("detloom")


def preflight(
    config: TrainEvalConfig, label_map: LabelMap, detector: Detector, train_files: Sequence[str]
) -> tuple[str, ...]:
    """Check the configuration against data, network and machine; log how much memory training will need.

    Args:
        train_files: TFRecord shards, or patterns.

    Returns:
        Warnings, a sentence each: what is allowed but probably not meant.

    Raises:
        InputError: if classes of configuration, label map, network and data differ, a metric is that of another class,
            a record cannot be read, or memory is certain not to suffice.
    """
    check_classes(config.model, label_map, detector.network)
    check_metrics(config, label_map)
    files = list_shards(train_files)
    sample = sample_records(files)
    warnings = [*warnings_before_run(config), *check_records(sample, label_map)]
    memory = estimate_memory(
        config,
        detector.network,
        mean_record_bytes=sample.mean_bytes,
        split_bytes=sum(tf.io.gfile.stat(file).length for file in files),
    )
    _LOGGER.info("%s", memory.sentence())
    return (*warnings, *check_memory(memory))


# --- classes --------------------------------------------------------------------------------------------------------


def check_classes(config: Model, label_map: LabelMap, network: keras.Model) -> None:
    """Raise InputError unless the network's heads have a channel for each class of the label map.

    That the configuration's `num_classes` is the label map's has been checked by `build_detector`.
    """
    has_background = isinstance(config, Ssd) and config.add_background_class
    wanted = label_map.num_classes + int(has_background)
    for name, output in network.output.items():
        if name.startswith("class_logits") and output.shape[-1] != wanted:
            background = " and background" if has_background else ""
            raise InputError(
                f"network: got {output.shape[-1]} class outputs, allowed: {wanted} ({label_map.num_classes} classes of "
                f"the label map{background}); build it for this label map."
            )


def check_metrics(config: TrainEvalConfig, label_map: LabelMap) -> None:
    """Raise InputError for the AP of a class that the label map lacks: the first evaluation would, hours later."""
    metrics = {"eval.best_metric": config.eval.best_metric}
    if config.train.early_stopping is not None:
        metrics["train.early_stopping.metric"] = config.train.early_stopping.metric
    for path, metric in metrics.items():
        class_name = metric.removeprefix(CLASS_AP)
        if class_name != metric and class_name not in label_map.names:
            raise InputError(
                f"{path}: got the class {class_name!r}, allowed: those of the label map, {_list(label_map.names)}."
            )


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampledRecord:
    """What a record says about classes.

    Attributes:
        where: file, place in it, and the record's own key.
        class_ids: one a box.
        class_texts: one a box, or empty.
    """

    where: str
    num_bytes: int
    class_ids: tuple[int, ...]
    class_texts: tuple[str, ...]


@dataclass(frozen=True)
class RecordSample:
    """The first records of the shards; `is_whole_split` if there are no others."""

    records: tuple[SampledRecord, ...]
    is_whole_split: bool

    @property
    def mean_bytes(self) -> float:
        """Mean size of a serialized record; 0 without any."""
        return sum(record.num_bytes for record in self.records) / max(len(self.records), 1)


def sample_records(files: Sequence[str], max_records: int = _MAX_SAMPLED) -> RecordSample:
    """The first records of each shard, as many of each, about `max_records` in all.

    Raises:
        InputError: naming file and place, for a record that cannot be read.
    """
    sampled_files = files[:max_records]
    quota = -(-max_records // max(len(sampled_files), 1))
    records: list[SampledRecord] = []
    is_whole_split = len(sampled_files) == len(files)
    for file in sampled_files:
        found = list(_read_first(file, quota + 1))
        records += found[:quota]
        is_whole_split = is_whole_split and len(found) <= quota
    return RecordSample(tuple(records), is_whole_split)


def check_records(sample: RecordSample, label_map: LabelMap) -> tuple[str, ...]:
    """Warnings about classes in the data.

    Raises:
        InputError: for a class id that the label map lacks, and for a class text that is another id's name.
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
        feature = tf.train.Example.FromString(serialized).features.feature
    except DecodeError as error:
        raise InputError(f"{where} is no tf.Example ({error}); write the file again.") from None
    source_ids = [*_bytes_of(feature, keys.IMAGE_SOURCE_ID), *_bytes_of(feature, keys.IMAGE_FILENAME)]
    key = next((text for text in source_ids if text), "")
    ids = feature[keys.CLASS_ID].int64_list.value if keys.CLASS_ID in feature else ()
    return SampledRecord(
        f"{where} ({key})" if key else where, len(serialized), tuple(ids), _bytes_of(feature, keys.CLASS_TEXT)
    )


def _bytes_of(feature: "dict[str, tf.train.Feature]", key: str) -> tuple[str, ...]:
    values = feature[key].bytes_list.value if key in feature else ()  # indexing alone would add the key
    return tuple(value.decode("utf-8", errors="replace") for value in values)


def _check_ids(record: SampledRecord, label_map: LabelMap) -> None:
    unknown = sorted(set(record.class_ids) - set(label_map.class_ids))
    if unknown:
        hint = " Ids start at 1: 0 is background." if unknown[0] == 0 else ""
        raise InputError(
            f"{record.where}: got class id {unknown[0]}, allowed: the label map's {_list(label_map.class_ids)}; "
            f"train with the label map that the data were written with.{hint}"
        )


def _check_text(
    record: SampledRecord, class_id: int, text: str, ids_by_name: dict[str, int], label_map: LabelMap
) -> None:
    """A text that the label map lacks is not wrong: Open Images writes "/m/01g317" where the map displays "person"."""
    if ids_by_name.get(text, class_id) != class_id:
        raise InputError(
            f"{record.where}: got class id {class_id} with the text {text!r}, but in the label map {class_id} is "
            f"{label_map.name_of(class_id)!r} and {text!r} is {ids_by_name[text]}; train with the label map that the "
            "data were written with."
        )


def _class_warnings(
    sample: RecordSample, label_map: LabelMap, counts: Counter[int], unknown_texts: Counter[str]
) -> Iterator[str]:
    if unknown_texts:
        yield (
            f"Training data: class texts that the label map lacks: {_list(list(unknown_texts))}; what counts are the "
            "class ids, so look whether they mean the same in data and label map."
        )
    if not counts:
        whole = "the training split" if sample.is_whole_split else f"its first {len(sample.records)} records"
        yield f"Training data: no box in {whole}; a detector learns nothing from pictures without boxes."
    elif sample.is_whole_split:
        without = [name for class_id, name in label_map.names_by_id if not counts[class_id]]
        if without:
            yield (
                f"Training data: no box of {_list(without)} in the whole training split; the detector cannot learn "
                "what it never sees: add pictures, or leave the class out of the label map."
            )


def _list(values: Sequence[object]) -> str:
    """The first few, and how many there are beside."""
    more = f" and {len(values) - _MAX_NAMED} more" if len(values) > _MAX_NAMED else ""
    return ", ".join(map(str, values[:_MAX_NAMED])) + more
