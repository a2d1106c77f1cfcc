"""Evaluate a detector in memory: COCO metrics and losses on a split."""

import contextlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import ground_truth as truth
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import CLASS_AP, LOSS, METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.evaluation.coco_metrics import (
    CocoMetrics,
    ImageDetections,
    ImageGroundTruth,
    compute_coco_metrics,
)

_LOG_EVERY_SECONDS = 20.0
_ROWS = 64  # ground truth is padded to a multiple of this, because XLA compiles the targets once per shape
_HOST_ONLY = (truth.MASK_PNGS,)  # entries of a batch that no device needs: text
_MAX_NAMED = 10  # classes in a message
_LOGGER = logging.getLogger("detloom")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Result of one pass over a split.

    Attributes:
        losses: mean over the images, by name; `loss` is their sum. Weight penalties are not included, because they do
            not depend on the images. Empty if no losses were requested.
        seconds: wall time.
    """

    metrics: CocoMetrics
    losses: dict[str, float]
    num_images: int
    seconds: float

    def value_of(self, name: str) -> float:
        """Return a COCO metric, the AP of a class as `AP/<class name>`, or a loss.

        Raises:
            InputError: for a class that the label map lacks, or a loss that was not computed.
        """
        if name in METRIC_NAMES:
            return self.metrics.value_of(name)
        class_name = name.removeprefix(CLASS_AP)
        if class_name != name:
            values = {row.name: row.AP for row in self.metrics.per_class}
            if class_name not in values:
                raise InputError(
                    f"metric {name!r}: got the class {class_name!r}, allowed: the label map's classes, {_list(values)}."
                )
            return values[class_name]
        if name not in self.losses:
            known = ", ".join([*METRIC_NAMES, f"{CLASS_AP}<class name>", *self.losses])
            raise InputError(f"metric: got {name!r}, allowed in this evaluation: {known}.")
        return self.losses[name]

    def explain(self, name: str) -> str | None:
        """Explain why the number is -1; None if it was measured."""
        if name in METRIC_NAMES:
            return self.metrics.explain(name)
        if name.startswith(CLASS_AP) and self.value_of(name) < 0:
            return "no ground truth of this class"
        return None

    def numbers(self) -> dict[str, float]:
        """Return every number by the name that `value_of` accepts."""
        coco = {name: self.metrics.value_of(name) for name in METRIC_NAMES}
        return coco | {f"{CLASS_AP}{row.name}": row.AP for row in self.metrics.per_class} | self.losses

    def sentence(self) -> str:
        """Return a summary of the most important numbers."""
        loss = f", loss {self.losses[LOSS]:.3f}" if self.losses else ""
        reason = self.explain("AP")
        note = f" (-1: {reason})" if reason else ""
        metrics = f"AP {self.metrics.AP:.3f}, AP50 {self.metrics.AP50:.3f}{note}"
        return f"{metrics}{loss} on {self.num_images} images in {self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` restores an equal object."""
        return {**asdict(self), "metrics": self.metrics.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        return cls(**{**values, "metrics": CocoMetrics.from_dict(values["metrics"])})


class Evaluator:
    """Evaluates a detector with its current weights at each call, on one split; the graph is built once.

    Each batch passes the network once, for detections and losses. The boxes of the split are kept in memory, the images
    are not.
    """

    def __init__(
        self, detector: Detector, dataset: tf.data.Dataset, files: Sequence[str] = (), *, with_losses: bool = True
    ) -> None:
        """Nothing is read yet.

        Args:
            dataset: result of `build_eval_dataset`.
            files: files of the dataset, for messages.
        """
        self._detector, self._dataset, self._files = detector, dataset, files
        self._with_losses = with_losses
        self._num_images: int | None = None  # unknown before the first pass
        self._signature = {key: spec for key, spec in dataset.element_spec.items() if key not in _HOST_ONLY}
        self._measure = tf.function(self._measure_batch, input_signature=[self._signature], autograph=False)

    def __call__(self, between_batches: Callable[[], None] | None = None) -> Evaluation:
        """Evaluate the whole split.

        Args:
            between_batches: called after each batch; an exception from it ends the evaluation.

        Raises:
            InputError: if a record cannot be used, or the split has no image.
        """
        started = time.monotonic()
        progress = _Progress(self._num_images)
        boxes = _Boxes(self._detector.label_map)
        sums: dict[str, float] = {}
        with bad_records_as_input_errors(self._files):
            for batch in self._dataset:
                found, losses = self._measure({key: batch[key] for key in self._signature})
                boxes.add(
                    {key: value.numpy() for key, value in batch.items() if key not in (truth.IMAGE, truth.MASKS)},
                    {key: value.numpy() for key, value in found.items()},
                )
                num_images = int(batch["image"].shape[0])
                for name, loss in losses.items():
                    sums[name] = sums.get(name, 0.0) + num_images * float(loss)
                progress.report(boxes.num_images)
                if between_batches is not None:
                    between_batches()
        if not boxes.num_images:
            where = Path(self._files[0]).parent if self._files else "the eval split"
            raise InputError(f"{where}: got no image, required: at least one; check eval_input.")
        self._num_images = boxes.num_images
        losses = {name: total / boxes.num_images for name, total in sums.items()}
        if losses:
            losses = {LOSS: math.fsum(losses.values()), **losses}
        return Evaluation(
            metrics=boxes.coco_metrics(),
            losses=losses,
            num_images=boxes.num_images,
            seconds=time.monotonic() - started,
        )

    def detect_batch(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the detections (`schemas/contracts/detections.py`) in a batch of the dataset, with the same graph."""
        found: dict[str, tf.Tensor] = self._measure({key: batch[key] for key in self._signature})[0]
        return found

    def _measure_batch(self, batch: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        outputs = self._detector.forward(batch, training=False)
        found = self._detector.detections(outputs, batch[truth.TRUE_HW])
        if not self._with_losses:
            return found, {}
        return found, self._detector.losses(outputs, as_training_batch(batch))


def as_training_batch(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Convert a batch of `build_eval_dataset` to a training batch: no crowds, boxes relative to the padded image."""
    is_box_BG = (batch[truth.CLASSES] >= 0) & ~batch[truth.CROWD]
    network_hw = tf.cast(tf.shape(batch[truth.IMAGE])[1:3], tf.float32)
    shares_yx_B2 = tf.cast(batch[truth.TRUE_HW], tf.float32) / network_hw
    num_rows = tf.shape(is_box_BG)[1]
    num_missing = tf.maximum(_ROWS - num_rows, -num_rows % _ROWS)
    converted = {truth.IMAGE: batch[truth.IMAGE], truth.TRUE_HW: batch[truth.TRUE_HW]}
    for name, column in truth.COLUMNS.items():
        if name not in batch or name in (truth.CROWD, truth.AREA):
            continue
        value = batch[name]
        if column.geometry == "boxes":
            value *= tf.tile(shares_yx_B2, [1, 2])[:, tf.newaxis]
        elif column.geometry == "points":
            value *= shares_yx_B2[:, tf.newaxis, tf.newaxis]
        padding = tf.cast(column.padding, value.dtype)
        if column.geometry == "none":
            value = tf.where(is_box_BG, value, padding)
        paddings = [[0, 0], [0, num_missing], *[[0, 0]] * (len(value.shape) - 2)]
        converted[name] = tf.pad(value, paddings, constant_values=padding)
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


class _Boxes:
    """Ground truth and detections of the images so far."""

    def __init__(self, label_map: LabelMap) -> None:
        self._label_map, self._class_ids = label_map, np.array(label_map.class_ids)
        self._truth: list[ImageGroundTruth] = []
        self._found: list[ImageDetections] = []

    @property
    def num_images(self) -> int:
        return len(self._truth)

    def add(self, batch: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
        for i, class_indices in enumerate(batch["class_indices"]):
            image_id, is_box = self.num_images + 1, class_indices >= 0  # -1 pads
            height, width = (int(side) for side in batch["image_hw"][i])
            self._truth.append(
                ImageGroundTruth(
                    image_id=image_id,
                    image_hw=(height, width),
                    boxes_yxyx_rel=batch["boxes_yxyx_rel"][i][is_box],
                    class_ids=self._class_ids[class_indices[is_box]],
                    is_crowd=batch["is_crowd"][i][is_box],
                    area_px=batch["area_px"][i][is_box],
                )
            )
            count = int(found[names.NUM_DETECTIONS][i])
            self._found.append(
                ImageDetections(
                    image_id=image_id,
                    boxes_yxyx_rel=found[names.BOXES][i, :count].copy(),  # a view would keep the whole batch
                    scores=found[names.SCORES][i, :count].copy(),
                    class_ids=found[names.CLASSES][i, :count].astype(int),
                )
            )

    def coco_metrics(self) -> CocoMetrics:
        return compute_coco_metrics(self._truth, self._found, self._label_map)


class _Progress:
    """Logs progress periodically, because the training loop may already show a progress bar."""

    def __init__(self, total: int | None) -> None:
        self._total, self._started = total, time.monotonic()
        self._logged = self._started

    def report(self, done: int) -> None:
        now = time.monotonic()
        if now - self._logged < _LOG_EVERY_SECONDS:
            return
        self._logged = now
        rate = done / (now - self._started)
        of_total = f"/{self._total}  ETA {(self._total - done) / rate:.0f} s" if self._total else ""
        _LOGGER.info("Evaluating: image %d%s  %.1f images/s", done, of_total, rate)


def _list(values: Mapping[str, object]) -> str:
    more = f" and {len(values) - _MAX_NAMED} more" if len(values) > _MAX_NAMED else ""
    return ", ".join(list(values)[:_MAX_NAMED]) + more
