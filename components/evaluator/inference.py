"""Run models on the shards of a split with Beam, and match their detections with the ground truth there.

The result has ground truth, detections and matches of every image, without its bytes.

All batches have the same size, so that the detections of an image do not depend on the other images, on the shards or
on the number of workers. Errors in the data are part of the records and are raised after the pipeline has ended,
because Beam would wrap them.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import apache_beam as beam
import numpy as np
import tensorflow as tf
from absl import logging
from apache_beam.utils.shared import Shared

from detloom.components.evaluation_requirements import feature_values
from detloom.components.evaluator.image_record import ImageRecord, decode_record, encode_record
from detloom.components.evaluator.mask_and_keypoint_truth import WantedShapes, read_shapes
from detloom.components.evaluator.record_table import RecordTable, match_records
from detloom.components.record_files import read_records
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.detections import BOXES, CLASSES, SCORES, SIGNATURE_ENCODED
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.runtime_names import ModelRuntime
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.records import ExampleFeatures, count_records
from detloom.trainer_module.inference.choose_runtime import load_named_runtime
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.prediction import with_image_masks
from detloom.trainer_module.inference.runtime import Rows, Runtime, detect_each
from detloom.trainer_module.inference.saved_model_runtime import check_signature
from detloom.trainer_module.inference.tflite_runtime import TfliteRuntime
from detloom.trainer_module.runtime.progress import log_progress


def parse_record(
    serialized: bytes,
    feature_keys: Sequence[str] = (),
    shapes: WantedShapes | None = None,
    lookup: ClassLookup | None = None,
) -> ImageRecord:
    """Parse ground truth and the named features of a serialized tf.Example; set `problem` if it is invalid.

    Args:
        lookup: gives the classes; None takes the stored ids.
    """
    try:
        features = ExampleFeatures(serialized)
    except ValueError as error:
        return ImageRecord(source_id="", problem=f"is {error}")
    ints, floats, source_id = features.ints, features.floats, features.record_key
    if not source_id:
        return ImageRecord(source_id="", problem=f"has neither {keys.IMAGE_SOURCE_ID} nor {keys.IMAGE_FILENAME}")
    height, width = ints(keys.IMAGE_HEIGHT), ints(keys.IMAGE_WIDTH)
    if len(height) != 1 or len(width) != 1 or height[0] < 1 or width[0] < 1:
        return ImageRecord(source_id=source_id, problem=f"lacks {keys.IMAGE_HEIGHT} or {keys.IMAGE_WIDTH} in pixels")
    sides, class_ids = [floats(key) for key in keys.BOX_KEYS_YXYX], ints(keys.CLASS_ID)
    columns = {
        "is_crowd": ints(keys.IS_CROWD).astype(bool),
        "area_px": floats(keys.AREA),
        "is_difficult": ints(keys.DIFFICULT).astype(bool),
        "is_group_of": ints(keys.GROUP_OF).astype(bool),
    }
    columns = {name: values for name, values in columns.items() if len(values)}
    if lookup is not None:
        try:
            found = lookup.class_ids(class_ids.tolist(), features.texts(keys.CLASS_TEXT), len(sides[0]))
        except ValueError as error:
            return ImageRecord(source_id=source_id, problem=f"has an unknown class: {error}")
        class_ids = np.array(found, np.int64)
    num_boxes = len(class_ids)
    if any(len(values) != num_boxes for values in (*sides, *columns.values())):
        return ImageRecord(
            source_id=source_id, problem=f"has {num_boxes} class ids, but box features of different lengths"
        )
    image_hw = (int(height[0]), int(width[0]))
    if "area_px" in columns:
        if not np.isfinite(columns["area_px"]).all():
            return ImageRecord(source_id=source_id, problem=f"has an invalid value in {keys.AREA}")
        ymin, xmin, ymax, xmax = sides
        box_area_px = (ymax - ymin) * (xmax - xmin) * image_hw[0] * image_hw[1]
        columns["area_px"] = np.where(columns["area_px"] > 0, columns["area_px"], box_area_px)  # as in training
    columns = {"is_crowd": np.zeros(num_boxes, bool), **columns}
    if shapes is not None:
        try:
            columns |= read_shapes(features, shapes, columns["is_crowd"].astype(bool), image_hw)
        except ValueError as error:
            return ImageRecord(source_id=source_id, problem=str(error))
    truth: dict[str, np.ndarray] = {"boxes_yxyx_rel": np.stack(sides, axis=1), "class_ids": class_ids, **columns}
    if lookup is not None and not class_ids.all():  # boxes are dropped
        if shapes is not None and (shapes.masks or shapes.num_keypoints):
            return ImageRecord(source_id=source_id, problem="has unknown classes, which cannot be dropped with masks")
        truth = {name: values[class_ids > 0] for name, values in truth.items()}
    return ImageRecord(
        source_id=source_id,
        image_hw=image_hw,
        truth=truth,
        verified_class_ids=tuple(ints(keys.IMAGE_CLASS_ID).tolist()),
        features=feature_values(features, feature_keys),
    )


_NO_ROWS: Rows = {
    BOXES: np.zeros((0, 4), np.float32),
    SCORES: np.zeros(0, np.float32),
    CLASSES: np.zeros(0, np.int64),
}


class ModelFile(NamedTuple):
    """A model and what runs it: the folder of a SavedModel, which may contain `model.onnx`, or a `.tflite` file."""

    path: str
    runtime: ModelRuntime | Literal["tflite"] = "tensorflow"


def load_model(file: ModelFile) -> Runtime:
    """Load a model; raises InputError if that is not possible."""
    return TfliteRuntime(file.path) if file.runtime == "tflite" else load_named_runtime(file.path, file.runtime)


class Matching(NamedTuple):
    """Matching of boxes: the model's classes, and ranges of areas in addition to those of COCO."""

    label_map: LabelMap
    sizes: Sequence[tuple[float, float]] = ()


class _Models:
    """The loaded models of one worker process (a class, because Beam keeps the object by weak reference)."""

    def __init__(self, files_by_name: Mapping[str, ModelFile]) -> None:
        self.by_name = {name: load_model(file) for name, file in files_by_name.items()}


class DetectBatch(beam.DoFn):
    """Turn a batch of serialized tf.Examples into encoded `ImageRecord`s; load the models once per worker process."""

    def __init__(
        self,
        files_by_name: Mapping[str, ModelFile],
        batch_size: int,
        feature_keys: Sequence[str] = (),
        shapes: WantedShapes | None = None,
        matching: Matching | None = None,
        lookup: ClassLookup | None = None,
    ) -> None:
        """Create the step.

        Args:
            files_by_name: the model that is judged comes first; a record that it cannot read is unusable.
            feature_keys: features of the examples to return in the records.
            shapes: shapes of the ground truth to return in the records, beyond boxes.
            matching: match detections where the models run; None returns no matches.
            lookup: of the ground truth's classes; None takes the stored ids.
        """
        super().__init__()
        self.files_by_name, self.batch_size = dict(files_by_name), batch_size
        self.num_images: int | None = None  # for the progress
        self._feature_keys, self._shapes, self._matching = tuple(feature_keys), shapes, matching
        self._lookup = lookup
        self._shared = Shared()

    def setup(self) -> None:
        self._models = self._shared.acquire(lambda: _Models(self.files_by_name))
        # The images of all workers: with several workers, the remaining time is at most what is shown.
        self._progress = log_progress("DetectionEvaluator", self.num_images, unit="images")

    def process(self, batch: list[bytes]) -> Iterator[bytes]:
        records = [parse_record(each, self._feature_keys, self._shapes, self._lookup) for each in batch]
        whole = [index for index, record in enumerate(records) if record.problem is None]
        if whole:
            images = [EncodedImage(ExampleFeatures(batch[index]).image_bytes) for index in whole]
            models = self._models.by_name.items()
            results_by_name = {name: [*detect_each(model, images, self.batch_size)] for name, model in models}
            for position, index in enumerate(whole):
                results = {name: results[position] for name, results in results_by_name.items()}
                records[index] = self._add_results(records[index], results)
        usable = [index for index, record in enumerate(records) if record.problem is None]
        if self._matching is not None and usable:
            matches = match_records([records[index] for index in usable], *self._matching)
            for index, of_record in zip(usable, matches, strict=True):
                records[index] = replace(records[index], matches=of_record)
        self._progress.advance(len(batch))
        for record in records:
            yield encode_record(record)

    def _add_results(self, record: ImageRecord, results: Mapping[str, Rows | InputError]) -> ImageRecord:
        """Add the detections of each model, or why there are none, which is a problem of the record if it is judged."""
        errors = {name: each for name, each in results.items() if isinstance(each, InputError)}
        failures = {name: str(error).splitlines()[0][:200].rstrip(".") for name, error in errors.items()}
        judged = next(iter(self.files_by_name))
        if judged in failures:
            return replace(record, problem=f"cannot be read by the model ({failures[judged]})")
        rows = {name: _NO_ROWS if isinstance(each, InputError) else each for name, each in results.items()}
        found = {name: with_image_masks(each, record.image_hw) for name, each in rows.items()}
        return replace(record, found=found, failures=failures)


def _add_steps(pipeline: beam.Pipeline, shard_patterns: Sequence[str], step: DetectBatch, output_prefix: str) -> None:
    """Add steps to `pipeline` that read the shards, run `step` on batches, and write the encoded records."""
    sources = [
        pipeline | f"Read[{index}]" >> beam.io.ReadFromTFRecord(pattern) for index, pattern in enumerate(shard_patterns)
    ]
    size = step.batch_size
    _ = (
        sources
        | "Flatten" >> beam.Flatten()
        | "Batch" >> beam.BatchElements(min_batch_size=size, max_batch_size=size)
        | "Detect" >> beam.ParDo(step)
        | "Write" >> beam.io.WriteToTFRecord(output_prefix)
    )


def run_inference(
    make_pipeline: Callable[[], beam.Pipeline],
    shard_patterns: Sequence[str],
    step: DetectBatch,
    work_dir: str,
) -> RecordTable:
    """Run every model on every image of the split; return the records sorted by source id.

    Args:
        shard_patterns: paths of TFRecord shards, with or without wildcards.
        work_dir: folder for intermediate files that every worker can reach; emptied first, removed at the end.

    Raises:
        InputError: an empty split, a damaged shard, a model without the signature, an unusable record; names the
            folder, file or record.
    """
    for file in step.files_by_name.values():
        if file.runtime == "tensorflow":
            check_signature(file.path, SIGNATURE_ENCODED)
    where = ", ".join(pattern.removesuffix("/*") for pattern in shard_patterns)
    patterns = [pattern for pattern in shard_patterns if tf.io.gfile.glob(pattern)]
    if not patterns:
        raise InputError(f"{where}: the split has no files; check how the data were split.")
    started = time.monotonic()
    if tf.io.gfile.exists(work_dir):  # files left by a killed run
        tf.io.gfile.rmtree(work_dir)
    tf.io.gfile.makedirs(work_dir)
    try:
        try:
            step.num_images = _count_local(patterns)
            with make_pipeline() as pipeline:
                _add_steps(pipeline, patterns, step, f"{work_dir}/records")
        except Exception:
            _check_shards(patterns)
            raise
        files = sorted(tf.io.gfile.glob(f"{work_dir}/records*"))
        rows = tf.data.TFRecordDataset(files).as_numpy_iterator()
        records = _read_records(map(decode_record, rows), where)
    finally:
        try:
            tf.io.gfile.rmtree(work_dir)
        except tf.errors.OpError as error:  # must not hide why the job failed
            logging.warning("%s: not deleted (%s).", work_dir, error.message)
    seconds = time.monotonic() - started
    rate = len(records) / seconds
    logging.info("DetectionEvaluator: %d images in %.1f s, %.1f images/s.", len(records), seconds, rate)
    return records


def _count_local(shard_patterns: Sequence[str]) -> int | None:
    """Count the records of local files without reading them; return None for other or damaged files."""
    paths = [path for pattern in shard_patterns for path in tf.io.gfile.glob(pattern)]
    if any(path.endswith(".gz") or not os.path.exists(path) for path in paths):
        return None
    try:
        return sum(count_records(paths))
    except InputError:
        return None  # `_check_shards` will name it


def _check_shards(shard_patterns: Sequence[str]) -> None:
    """Raise InputError for a damaged shard; Beam's error names no file and contains the bytes of the record."""
    for path in sorted(path for pattern in shard_patterns for path in tf.io.gfile.glob(pattern)):
        try:
            for _ in read_records(path):
                pass
        except tf.errors.OpError:
            raise InputError(f"{path}: the TFRecord file is damaged or truncated; write it again.") from None


def _read_records(records: Iterable[ImageRecord], where: str) -> RecordTable:
    """Return the records as a table.

    Raises:
        InputError: there is none, two have the same source id, or one has a problem; names the first by source id.
    """
    problems: list[tuple[str, str]] = []

    def without_problems() -> Iterator[ImageRecord]:
        for record in records:
            if record.problem is None:
                yield record
            else:
                problems[:] = [min([*problems, (record.source_id, record.problem)])]

    table = RecordTable.of(without_problems())
    if problems:
        source_id, problem = problems[0]
        raise InputError(f"{where}: record '{source_id}' {problem}.")
    if not len(table):
        raise InputError(f"{where}: the split holds no examples; check how the data were split.")
    for first, second in itertools.pairwise(table.source_ids):
        if first == second:
            raise InputError(f"{where}: two records have the {keys.IMAGE_SOURCE_ID} '{first}'.")
    return table
