"""Evaluate a detector in memory: COCO metrics and losses on a split.

Batches are dealt to the replicas of a strategy, and a batch is computed as a whole by one of them. So it has the
values that one device would compute, and the numbers do not depend on the number of devices.
"""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import (
    CLASS_AP,
    KEYPOINT,
    KEYPOINT_METRIC_NAMES,
    LOSS,
    MASK,
    METRIC_NAMES,
)
from detloom.schemas.errors import InputError, list_first
from detloom.trainer_module.boxes.masks import encode_box_masks, encode_mask_pngs
from detloom.trainer_module.detectors.detector import Detector, Keypoints
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, compute_coco_metrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics, compute_keypoint_metrics
from detloom.trainer_module.evaluation.measured_batch import MeasuredBatch, decode_batches, encode_batches
from detloom.trainer_module.runtime.progress import log_progress
from detloom.trainer_module.runtime.replicas import gather_from_workers
from detloom.trainer_module.runtime.strategies import place_of_worker

_HOST_ONLY = (truth.MASK_PNGS,)  # entries of a batch that no device needs: text
_Image = TypeVar("_Image", ImageGroundTruth, ImageDetections)
_Batch = dict[str, tf.Tensor]
_Results = tuple[_Batch, _Batch]  # detections and losses of a batch


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Result of one pass over a split.

    Attributes:
        losses: mean over the images, by name; `loss` is their sum. Weight penalties are not included, because they do
            not depend on the images.
        seconds: wall time.
        mask_metrics, keypoint_metrics: None if the detector has no masks or keypoints.
    """

    metrics: CocoMetrics
    losses: dict[str, float]
    num_images: int
    seconds: float
    mask_metrics: CocoMetrics | None = None
    keypoint_metrics: KeypointMetrics | None = None

    def value_of(self, name: str) -> float:
        """Return a COCO metric, the AP of a class as `AP/<class name>`, or a loss; see `metric_names.py`.

        Raises:
            InputError: for a class that the label map lacks, or a loss that was not computed.
        """
        if name in self.losses:
            return self.losses[name]
        metrics, own_name = self._metrics_of(name)
        if metrics is None:
            known = ", ".join([*self._coco_numbers(), f"{CLASS_AP}<class name>", *self.losses])
            raise InputError(f"metric: got {name!r}, allowed in this evaluation: {known}.")
        class_name = own_name.removeprefix(CLASS_AP)
        if class_name == own_name:
            return metrics.value_of(own_name)
        assert isinstance(metrics, CocoMetrics)
        values = {row.name: row.AP for row in metrics.per_class}
        if class_name not in values:
            known = list_first(values)
            raise InputError(
                f"metric {name!r}: got the class {class_name!r}, allowed: those of the label map, {known}."
            )
        return values[class_name]

    def _metrics_of(self, name: str) -> tuple[CocoMetrics | KeypointMetrics | None, str]:
        """Return the metrics that have this name, None if there are none, and the name without its prefix."""
        if name.startswith(KEYPOINT):
            own_name = name.removeprefix(KEYPOINT)
            return (self.keypoint_metrics if own_name in KEYPOINT_METRIC_NAMES else None), own_name
        metrics, name = (self.mask_metrics, name.removeprefix(MASK)) if name.startswith(MASK) else (self.metrics, name)
        is_known = name in METRIC_NAMES or name.startswith(CLASS_AP)
        return (metrics if is_known else None), name

    def explain(self, name: str) -> str | None:
        """Explain why the number is -1; None if it was measured."""
        metrics, own_name = self._metrics_of(name)
        if metrics is not None and not own_name.startswith(CLASS_AP):
            return metrics.explain(own_name)
        if metrics is not None and self.value_of(name) < 0:
            return "no ground truth of this class"
        return None

    def _coco_numbers(self) -> dict[str, float]:
        """Return the COCO metrics over all classes."""
        numbers = {name: self.metrics.value_of(name) for name in METRIC_NAMES}
        if self.mask_metrics is not None:
            numbers |= {f"{MASK}{name}": self.mask_metrics.value_of(name) for name in METRIC_NAMES}
        if self.keypoint_metrics is not None:
            numbers |= {f"{KEYPOINT}{name}": value for name, value in self.keypoint_metrics.to_dict().items()}
        return numbers

    def numbers(self) -> dict[str, float]:
        """Return every number by the name that `value_of` accepts."""
        by_class = {f"{CLASS_AP}{row.name}": row.AP for row in self.metrics.per_class}
        if self.mask_metrics is not None:
            by_class |= {f"{MASK}{CLASS_AP}{row.name}": row.AP for row in self.mask_metrics.per_class}
        return self._coco_numbers() | by_class | self.losses

    def sentence(self) -> str:
        """Return a summary of the most important numbers."""
        loss = f", loss {self.losses[LOSS]:.3f}" if self.losses else ""
        reason = self.explain("AP")
        note = f" (-1: {reason})" if reason else ""
        metrics = f"AP {self.metrics.AP:.3f}, AP50 {self.metrics.AP50:.3f}{note}"
        if self.mask_metrics is not None:
            metrics += f", mask AP {self.mask_metrics.AP:.3f}"
        if self.keypoint_metrics is not None:
            metrics += f", keypoint AP {self.keypoint_metrics.AP:.3f}"
        return f"{metrics}{loss} on {self.num_images} images in {self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


class SplitEvaluator:
    """Evaluates a detector with its current weights at each call, on one split; the graph is built once.

    Each batch passes the network once, for detections and losses. The boxes of the split are kept in memory, and masks
    as run lengths; the images are not.
    """

    def __init__(
        self,
        detector: Detector,
        dataset: tf.data.Dataset,
        files: Sequence[str] = (),
        *,
        keypoints: Keypoints | None = None,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            dataset: result of `build_eval_dataset`, with the batches of this worker.
            files: files of the dataset, for messages.
            keypoints: of `measured_keypoints`; without them, keypoints are not measured.
            strategy: that of the detector; None is the current one.
        """
        self._detector, self._dataset, self._files = detector, dataset, files
        self._keypoints = keypoints
        self._strategy = strategy or tf.distribute.get_strategy()
        self._worker, self._num_workers = place_of_worker(self._strategy)
        self._num_replicas = self._strategy.num_replicas_in_sync // self._num_workers
        self._num_images: int | None = None  # of this worker; unknown before the first pass
        self._keys = [key for key in dataset.element_spec if key not in _HOST_ONLY]
        self._measure: Any = None  # built for the first batch

    def __call__(self, between_batches: Callable[[], None] | None = None) -> Evaluation:
        """Evaluate the whole split; every worker has to call this.

        Args:
            between_batches: called after the batches of all replicas; an exception from it ends the evaluation.

        Raises:
            InputError: if a record cannot be used, or the split has no image.
        """
        started = time.monotonic()
        measured = self._measure_own_batches(between_batches)
        if self._num_workers > 1:
            parts = gather_from_workers(self._strategy, encode_batches(measured))
            of_workers = itertools.chain.from_iterable(map(decode_batches, parts))
            measured = sorted(of_workers, key=lambda batch: batch.number)
        ground_truth = _numbered(image for batch in measured for image in batch.ground_truth)
        detections = _numbered(image for batch in measured for image in batch.detections)
        if not ground_truth:
            where = Path(self._files[0]).parent if self._files else "the eval split"
            raise InputError(f"{where}: got no image, required: at least one; check eval_input.")
        images = ground_truth, detections, self._detector.label_map
        has_masks = all(image.mask_counts is not None for image in ground_truth)
        return Evaluation(
            metrics=compute_coco_metrics(*images),
            mask_metrics=compute_coco_metrics(*images, iou_type="segm") if has_masks else None,
            keypoint_metrics=self._keypoint_metrics(ground_truth, detections),
            losses=_mean_losses(measured),
            num_images=len(ground_truth),
            seconds=time.monotonic() - started,
        )

    def detect_batch(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the detections (`schemas/contracts/detections.py`) in a batch of the dataset, with the same graph."""
        return self._on_replicas([batch])[0][0]

    # --- the batches of this worker -----------------------------------------------------------------------------------

    def _measure_own_batches(self, between_batches: Callable[[], None] | None) -> list[MeasuredBatch]:
        progress = log_progress("Evaluation", self._num_images, unit="images")
        measured: list[MeasuredBatch] = []
        num_images = 0

        def keep(batches: Sequence[_Batch], results: Sequence[_Results]) -> None:
            nonlocal num_images
            for batch, (found, losses) in zip(batches, results, strict=True):
                number = self._worker + self._num_workers * len(measured)
                measured.append(self._measured(number, batch, found, losses))
                num_images += len(measured[-1].ground_truth)
                progress.advance(len(measured[-1].ground_truth))

        with bad_records_as_input_errors(self._files):
            started: tuple[Sequence[_Batch], Sequence[_Results]] = ((), ())
            for batches in _of_equal_size(self._dataset, self._num_replicas):
                now = batches, self._on_replicas(batches)
                keep(*started)  # while accelerators compute
                started = now
                if between_batches is not None:
                    between_batches()
            keep(*started)
        self._num_images = num_images
        return measured

    def _on_replicas(self, batches: Sequence[Mapping[str, tf.Tensor]]) -> list[_Results]:
        """Return detections and losses of up to as many batches as this worker has replicas."""
        given = [{key: batch[key] for key in self._keys} for batch in batches]
        given += [given[0]] * (self._num_replicas - len(given))  # the results of copies are ignored
        batch: Any = given[0]
        if self._num_replicas > 1:
            batch = self._strategy.experimental_distribute_values_from_function(
                lambda context: given[context.replica_id_in_sync_group % self._num_replicas]
            )
        if self._measure is None:
            self._measure = self._build(batch)
        results = self._measure(batch)
        local_results = self._strategy.experimental_local_results
        return [tf.nest.map_structure(lambda value, i=i: local_results(value)[i], results) for i in range(len(batches))]

    def _build(self, batch: Any) -> Any:
        """Build the graph. It serves all shapes, except on a TPU, which needs one for each."""

        def measure(batch: Any) -> Any:
            return self._strategy.run(self._measure_batch, args=(batch,))

        if isinstance(self._strategy, tf.distribute.TPUStrategy):
            return tf.function(measure, autograph=False)
        signature: dict[str, Any] = {key: self._dataset.element_spec[key] for key in self._keys}
        if self._num_replicas > 1:
            kinds = {key: type(tf.type_spec_from_value(value)) for key, value in batch.items()}
            signature = {key: kinds[key](*[spec] * self._num_replicas) for key, spec in signature.items()}
        return tf.function(measure, input_signature=[signature], autograph=False)

    def _measure_batch(self, batch: dict[str, tf.Tensor]) -> _Results:
        outputs = self._detector.forward(batch, training=False)
        found = self._detector.detections(outputs, batch[truth.TRUE_HW])
        return found, self._detector.losses(outputs, as_training_batch(batch))

    def _measured(self, number: int, batch: _Batch, found: _Batch, losses: _Batch) -> MeasuredBatch:
        rows = {key: value.numpy() for key, value in batch.items() if key not in (truth.IMAGE, truth.MASKS)}
        detected = {key: value.numpy() for key, value in found.items()}
        ground_truth, detections = [], []
        for i in range(len(rows[truth.CLASSES])):
            image = {key: value[i] for key, value in rows.items()}
            has_masks = truth.MASK_PNGS in image and names.MASKS in detected
            ground_truth.append(_ground_truth(image, self._detector.label_map, has_masks))
            count = int(detected[names.NUM_DETECTIONS][i])
            kept = {key: value[i, :count] for key, value in detected.items() if key != names.NUM_DETECTIONS}
            detections.append(_detections(kept, ground_truth[-1].image_hw, has_masks))
        return MeasuredBatch(number, ground_truth, detections, {name: float(loss) for name, loss in losses.items()})

    def _keypoint_metrics(
        self, ground_truth: Sequence[ImageGroundTruth], detections: Sequence[ImageDetections]
    ) -> KeypointMetrics | None:
        points = [each.keypoints_yx_rel for images in (ground_truth, detections) for each in images]
        if self._keypoints is None or any(each is None for each in points):
            return None
        return compute_keypoint_metrics(ground_truth, detections, self._detector.label_map, self._keypoints)


def _of_equal_size(dataset: tf.data.Dataset, count: int) -> Iterator[list[_Batch]]:
    """Group batches by `count`; the last batch of a split may be smaller and is then on its own."""
    group: list[_Batch] = []
    for batch in dataset:
        if group and (len(group) == count or len(group[0][truth.IMAGE]) != len(batch[truth.IMAGE])):
            yield group
            group = []
        group.append(batch)
    if group:
        yield group


def _ground_truth(image: Mapping[str, np.ndarray], label_map: LabelMap, has_masks: bool) -> ImageGroundTruth:
    is_box = image[truth.CLASSES] >= 0  # -1 pads
    height, width = (int(side) for side in image[truth.IMAGE_HW])
    return ImageGroundTruth(
        image_id=0,
        image_hw=(height, width),
        boxes_yxyx_rel=image[truth.BOXES][is_box],
        class_ids=np.array(label_map.class_ids)[image[truth.CLASSES][is_box]],
        is_crowd=image[truth.CROWD][is_box],
        area_px=image[truth.AREA][is_box],
        mask_counts=encode_mask_pngs(image[truth.MASK_PNGS][is_box], (height, width)) if has_masks else None,
        keypoints_yx_rel=image[truth.KEYPOINTS][is_box] if truth.KEYPOINTS in image else None,
    )


def _detections(rows: Mapping[str, np.ndarray], image_hw: tuple[int, int], has_masks: bool) -> ImageDetections:
    return ImageDetections(
        image_id=0,
        boxes_yxyx_rel=rows[names.BOXES].copy(),  # a view would keep the whole batch
        scores=rows[names.SCORES].copy(),
        class_ids=rows[names.CLASSES].astype(int),
        mask_counts=encode_box_masks(rows[names.BOXES], rows[names.MASKS], image_hw) if has_masks else None,
        keypoints_yx_rel=rows[names.KEYPOINTS].copy() if names.KEYPOINTS in rows else None,
    )


def _numbered(images: Iterable[_Image]) -> list[_Image]:
    return [replace(image, image_id=number) for number, image in enumerate(images, start=1)]


def _mean_losses(batches: Sequence[MeasuredBatch]) -> dict[str, float]:
    """Return the means over the images, and their sum."""
    sums: dict[str, float] = {}
    for batch in batches:
        for name, loss in batch.losses.items():
            sums[name] = sums.get(name, 0.0) + len(batch.ground_truth) * loss
    num_images = sum(len(batch.ground_truth) for batch in batches)
    means = {name: total / num_images for name, total in sums.items()}
    return {LOSS: math.fsum(means.values()), **means} if means else {}


def as_training_batch(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Convert a batch of `build_eval_dataset` to a training batch: no crowds, boxes relative to the padded image."""
    is_box_BG = (batch[truth.CLASSES] >= 0) & ~batch[truth.CROWD]
    network_hw = tf.cast(tf.shape(batch[truth.IMAGE])[1:3], tf.float32)
    shares_yx_B2 = tf.cast(batch[truth.TRUE_HW], tf.float32) / network_hw
    converted = {truth.IMAGE: batch[truth.IMAGE], truth.TRUE_HW: batch[truth.TRUE_HW]}
    for name, column in truth.COLUMNS.items():
        if name not in batch or name in (truth.CROWD, truth.AREA):
            continue
        value = batch[name]
        if column.geometry == "boxes":
            value *= tf.tile(shares_yx_B2, [1, 2])[:, tf.newaxis]
        elif column.geometry == "points":
            value *= shares_yx_B2[:, tf.newaxis, tf.newaxis]
        if column.geometry == "none":
            value = tf.where(is_box_BG, value, tf.cast(column.padding, value.dtype))
        converted[name] = value
    return converted


@contextlib.contextmanager
def bad_records_as_input_errors(files: Sequence[str]) -> Iterator[None]:
    """Convert the error of an unusable record to an InputError that names the folder of its split."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        if not files or "IteratorGetNext" not in error.message:  # not from reading a record, so an internal error
            raise
        cause = " ".join(re.sub(r"\{\{[^}]*\}\}|\[\[.*", "", error.message, flags=re.DOTALL).split())
        raise InputError(f"{Path(files[0]).parent}: a record cannot be used: {cause}") from error
