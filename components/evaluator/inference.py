"""Beam over the shards of a split: ground truth and detections of every image, never its bytes.

Every model gets batches of exactly one size, so that an image's detections do not depend on its neighbours, on the
shards or on the number of workers. Mistakes in the data travel as part of the record and are raised after the pipeline
has ended: Beam would wrap them.
"""

import itertools
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging
from apache_beam.utils.shared import Shared

from detloom.components.evaluator.slices import Feature
from detloom.schemas import example_keys as keys
from detloom.schemas.detections import SIGNATURE_EXAMPLES, TFLITE_SUFFIX
from detloom.schemas.errors import InputError
from detloom.trainer_module.coco_metrics import ImageDetections, ImageGroundTruth
from detloom.trainer_module.predict import LoadedSignature, check_signature
from detloom.trainer_module.records import count_records
from detloom.trainer_module.tflite_model import TfliteDetector

_LOG_EVERY_SECONDS = 10.0
_Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageRecord:
    """One image without its bytes.

    Attributes:
        boxes_yxyx_rel, class_ids, is_crowd, area_px, is_difficult, is_group_of, verified_class_ids: ground truth, as in
            `ImageGroundTruth`.
        features: values of the features that slices are made by, of those that the example has.
        found: boxes, scores and class ids that each model found, by the model's name.
        problem: what is wrong with the record, as the end of a sentence; None where nothing is.
    """

    source_id: str
    image_hw: tuple[int, int] = (0, 0)
    boxes_yxyx_rel: npt.NDArray[Any] = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    class_ids: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    is_crowd: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, bool))
    area_px: npt.NDArray[Any] | None = None
    is_difficult: npt.NDArray[Any] | None = None
    is_group_of: npt.NDArray[Any] | None = None
    verified_class_ids: tuple[int, ...] = ()
    features: Mapping[str, Feature] = field(default_factory=dict)
    found: Mapping[str, _Rows] = field(default_factory=dict)
    problem: str | None = None

    def ground_truth(self, image_id: int) -> ImageGroundTruth:
        return ImageGroundTruth(
            image_id,
            self.image_hw,
            self.boxes_yxyx_rel,
            self.class_ids,
            self.is_crowd,
            self.area_px,
            self.is_difficult,
            self.is_group_of,
            self.verified_class_ids,
        )

    def detections(self, image_id: int, model_name: str) -> ImageDetections:
        return ImageDetections(image_id, *self.found[model_name])


def parse_record(serialized: bytes, feature_keys: Sequence[str] = ()) -> ImageRecord:
    """Ground truth and the named features of one serialized tf.Example; what is wrong with it is in `problem`."""
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception:  # protobuf's DecodeError lives in another place in each of its implementations
        return ImageRecord(source_id="", problem="is not a tf.Example")
    features = example.features.feature

    def ints(key: str) -> npt.NDArray[np.int64]:
        return np.array(features[key].int64_list.value, np.int64) if key in features else np.zeros(0, np.int64)

    def floats(key: str) -> npt.NDArray[np.float32]:
        return np.array(features[key].float_list.value, np.float32) if key in features else np.zeros(0, np.float32)

    names = [features[key].bytes_list.value for key in (keys.IMAGE_SOURCE_ID, keys.IMAGE_FILENAME) if key in features]
    source_id = next((values[0].decode("utf-8", "replace") for values in names if values and values[0]), "")
    if not source_id:
        return ImageRecord(source_id="", problem=f"has neither {keys.IMAGE_SOURCE_ID} nor {keys.IMAGE_FILENAME}")
    height, width = ints(keys.IMAGE_HEIGHT), ints(keys.IMAGE_WIDTH)
    if len(height) != 1 or len(width) != 1 or height[0] < 1 or width[0] < 1:
        return ImageRecord(source_id=source_id, problem=f"lacks {keys.IMAGE_HEIGHT} or {keys.IMAGE_WIDTH} in pixels")
    sides = [floats(key) for key in keys.BOX_KEYS_YXYX]
    class_ids, crowd, area = ints(keys.CLASS_ID), ints(keys.IS_CROWD), floats(keys.AREA)
    difficult, group_of = ints(keys.DIFFICULT), ints(keys.GROUP_OF)
    num_boxes = len(class_ids)
    optional = (crowd, area, difficult, group_of)
    lengths = {len(side) for side in sides} | {len(values) for values in optional if len(values)}
    if lengths - {num_boxes}:
        return ImageRecord(source_id=source_id, problem=f"has {num_boxes} class ids, and box features of other lengths")
    if not (np.isfinite(area) & (area >= 0)).all():
        return ImageRecord(source_id=source_id, problem=f"has a value in {keys.AREA} that is no area")
    return ImageRecord(
        source_id=source_id,
        image_hw=(int(height[0]), int(width[0])),
        boxes_yxyx_rel=np.stack(sides, axis=1),
        class_ids=class_ids,
        is_crowd=crowd.astype(bool) if len(crowd) else np.zeros(num_boxes, bool),
        area_px=area if len(area) else None,
        is_difficult=difficult.astype(bool) if len(difficult) else None,
        is_group_of=group_of.astype(bool) if len(group_of) else None,
        verified_class_ids=tuple(ints(keys.IMAGE_CLASS_ID).tolist()),
        features={key: _values_of(features[key]) for key in feature_keys if key in features},
    )


def _values_of(feature: tf.train.Feature) -> Feature:
    """Text, or numbers; one that is not finite is missing."""
    if feature.HasField("bytes_list"):
        return tuple(value.decode("utf-8", "replace") for value in feature.bytes_list.value)
    return tuple(value for value in (*feature.int64_list.value, *feature.float_list.value) if math.isfinite(value))


Detect = Callable[[Sequence[bytes]], list[_Rows]]


def load_model(path: str) -> Detect:
    """A SavedModel's folder or a `.tflite` file, to be called with serialized tf.Examples."""
    return TfliteDetector(path) if path.endswith(TFLITE_SUFFIX) else LoadedSignature(path, SIGNATURE_EXAMPLES)


class _Models:
    """The loaded models of one worker process (an object of a class, because Beam keeps it by weak reference)."""

    def __init__(self, paths_by_name: Mapping[str, str]) -> None:
        self.by_name = {name: load_model(path) for name, path in paths_by_name.items()}


class DetectBatch(beam.DoFn):
    """Serialized tf.Examples of one batch to pickled `ImageRecord`s; the models are loaded once a worker process."""

    def __init__(
        self,
        paths_by_name: Mapping[str, str],
        batch_size: int,
        feature_keys: Sequence[str] = (),
        num_images: int | None = None,
    ) -> None:
        super().__init__()
        self._num_images = num_images
        self._paths_by_name = dict(paths_by_name)
        self._feature_keys = tuple(feature_keys)
        self._batch_size = batch_size
        self._shared = Shared()

    def setup(self) -> None:
        self._models = self._shared.acquire(lambda: _Models(self._paths_by_name))
        self._num_done, self._started, self._logged = 0, time.monotonic(), time.monotonic()

    def process(self, batch: list[bytes]) -> Iterator[bytes]:
        records = [parse_record(serialized, self._feature_keys) for serialized in batch]
        whole = [index for index, record in enumerate(records) if record.problem is None]
        if whole:
            serialized = [batch[index] for index in whole]
            rows_by_name = {name: self._detect(model, serialized) for name, model in self._models.by_name.items()}
            for position, index in enumerate(whole):
                found = {name: rows[position] for name, rows in rows_by_name.items()}
                problems = [rows for rows in found.values() if isinstance(rows, str)]
                extra = {"problem": problems[0]} if problems else {"found": found}
                records[index] = replace(records[index], **extra)
        self._log_progress(len(batch))
        for record in records:
            yield pickle.dumps(record)

    def _detect(self, model: Detect, serialized: list[bytes]) -> list[_Rows | str]:
        """Detections of each example, or what the model said against it."""
        filled = serialized + serialized[-1:] * (self._batch_size - len(serialized))
        try:
            return list(model(filled)[: len(serialized)])
        except (tf.errors.InvalidArgumentError, InputError) as error:
            if len(serialized) == 1:
                return [f"cannot be read by the model ({str(error).splitlines()[0][:200]})"]
            return [rows for each in serialized for rows in self._detect(model, [each])]

    def _log_progress(self, num_images: int) -> None:
        self._num_done += num_images
        now = time.monotonic()
        if now - self._logged >= _LOG_EVERY_SECONDS:
            self._logged = now
            rate = self._num_done / (now - self._started)
            line = f"{self._num_done} images by this worker, {rate:.1f} images/s"
            if self._num_images is not None:
                minutes, seconds = divmod(round((self._num_images - self._num_done) / rate), 60)
                line += f", {self._num_images} in all, ETA {minutes}:{seconds:02} or less"  # others may help
            logging.info("DetectionEvaluator: %s.", line)


def detect(
    pipeline: beam.Pipeline,
    shard_patterns: Sequence[str],
    paths_by_name: Mapping[str, str],
    batch_size: int,
    output_prefix: str,
    feature_keys: Sequence[str] = (),
    num_images: int | None = None,
) -> None:
    """Add the steps to `pipeline`: read the shards, detect, write pickled records to files at `output_prefix`.

    Args:
        num_images: in all shards, only for messages; None where it is not known.
    """
    sources = [
        pipeline | f"Read[{index}]" >> beam.io.ReadFromTFRecord(pattern) for index, pattern in enumerate(shard_patterns)
    ]
    _ = (
        sources
        | "Flatten" >> beam.Flatten()
        | "Batch" >> beam.BatchElements(min_batch_size=batch_size, max_batch_size=batch_size)
        | "Detect" >> beam.ParDo(DetectBatch(paths_by_name, batch_size, feature_keys, num_images))
        | "Write" >> beam.io.WriteToTFRecord(output_prefix)
    )


def run_inference(
    make_pipeline: Callable[[], beam.Pipeline],
    shard_patterns: Sequence[str],
    paths_by_name: Mapping[str, str],
    batch_size: int,
    work_dir: str,
    feature_keys: Sequence[str] = (),
) -> list[ImageRecord]:
    """Detections of every model on every image of the split, sorted by source id.

    Args:
        shard_patterns: paths of TFRecord shards, with or without wildcards.
        paths_by_name: each model's SavedModel folder, or its `.tflite` file.
        work_dir: folder for intermediate files, reachable by every worker; emptied first, removed at the end.
        feature_keys: features of the examples that come back with the detections.

    Raises:
        InputError: an empty split, a model without the signature, an unusable record; with the folder or record.
    """
    for path in paths_by_name.values():
        if not path.endswith(TFLITE_SUFFIX):
            check_signature(path, SIGNATURE_EXAMPLES)
    where = ", ".join(pattern.removesuffix("/*") for pattern in shard_patterns)
    patterns = [pattern for pattern in shard_patterns if tf.io.gfile.glob(pattern)]
    if not patterns:
        raise InputError(f"{where}: the split has no files; check how the data were split.")
    started = time.monotonic()
    if tf.io.gfile.exists(work_dir):  # of a run that was killed, or of somebody else: pickles are not to be trusted
        tf.io.gfile.rmtree(work_dir)
    tf.io.gfile.makedirs(work_dir)
    try:
        with make_pipeline() as pipeline:
            num_images = _count_local(patterns)
            detect(pipeline, patterns, paths_by_name, batch_size, f"{work_dir}/records", feature_keys, num_images)
        files = sorted(tf.io.gfile.glob(f"{work_dir}/records*"))
        rows = tf.data.TFRecordDataset(files).as_numpy_iterator()
        records = [pickle.loads(row) for row in rows]  # noqa: S301 - our own workers wrote them a moment ago
    finally:
        tf.io.gfile.rmtree(work_dir)
    records.sort(key=lambda record: record.source_id)
    _check_records(records, where)
    seconds = time.monotonic() - started
    rate = len(records) / seconds
    logging.info("DetectionEvaluator: %d images in %.1f s, %.1f images/s.", len(records), seconds, rate)
    return records


def _count_local(shard_patterns: Sequence[str]) -> int | None:
    """Records in files of this machine, which takes no reading; None for others, and for damaged ones."""
    paths = [path for pattern in shard_patterns for path in tf.io.gfile.glob(pattern)]
    if any(path.endswith(".gz") or not os.path.exists(path) for path in paths):
        return None
    try:
        return sum(count_records(paths))
    except InputError:
        return None  # whoever reads the file will say so


def _check_records(records: Sequence[ImageRecord], where: str) -> None:
    if not records:
        raise InputError(f"{where}: the split holds no examples; check how the data were split.")
    for record in records:
        if record.problem is not None:
            raise InputError(f"{where}: record '{record.source_id}' {record.problem}.")
    for first, second in itertools.pairwise(records):
        if first.source_id == second.source_id:
            raise InputError(f"{where}: two records have the {keys.IMAGE_SOURCE_ID} '{first.source_id}'.")
