"""Evaluate a detector in memory: COCO metrics and losses on a split."""

import contextlib
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
from detloom.schemas.contracts.metric_names import (
    CLASS_AP,
    KEYPOINT,
    KEYPOINT_METRIC_NAMES,
    LOSS,
    MASK,
    METRIC_NAMES,
)
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import encode_box_masks, encode_mask_pngs
from detloom.trainer_module.detectors.detector import Detector, Keypoints
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, compute_coco_metrics
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics, compute_keypoint_metrics
from detloom.trainer_module.runtime.progress import log_progress

_ROWS = 64  # ground truth is padded to a multiple of this, because XLA compiles the targets once per shape
_HOST_ONLY = (truth.MASK_PNGS,)  # entries of a batch that no device needs: text
_MAX_NAMED = 10  # classes in a message


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Result of one pass over a split.

    Attributes:
        losses: mean over the images, by name; `loss` is their sum. Weight penalties are not included, because they do
            not depend on the images. Empty if no losses were requested.
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
            raise InputError(
                f"metric {name!r}: got the class {class_name!r}, allowed: the label map's classes, {_list(values)}."
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
        """Return plain JSON values; `from_dict` restores an equal object."""
        masks = None if self.mask_metrics is None else self.mask_metrics.to_dict()
        return {**asdict(self), "metrics": self.metrics.to_dict(), "mask_metrics": masks}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        """Evaluations of earlier versions have neither masks nor keypoints."""
        masks, keypoints = values.get("mask_metrics"), values.get("keypoint_metrics")
        read = {
            "metrics": CocoMetrics.from_dict(values["metrics"]),
            "mask_metrics": None if masks is None else CocoMetrics.from_dict(masks),
            "keypoint_metrics": None if keypoints is None else KeypointMetrics(**keypoints),
        }
        return cls(**{**values, **read})


class Evaluator:
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
        with_losses: bool = True,
        keypoints: Keypoints | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            dataset: result of `build_eval_dataset`.
            files: files of the dataset, for messages.
            keypoints: of `measured_keypoints`; without them, keypoints are not measured.
        """
        self._detector, self._dataset, self._files = detector, dataset, files
        self._with_losses = with_losses
        self._keypoints = keypoints
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
        progress = log_progress("Evaluation", self._num_images, unit="images")
        boxes = _Boxes(self._detector.label_map, self._keypoints)
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
                progress.advance(num_images)
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
            mask_metrics=boxes.mask_metrics(),
            keypoint_metrics=boxes.keypoint_metrics(),
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

    def __init__(self, label_map: LabelMap, keypoints: Keypoints | None) -> None:
        self._keypoints = keypoints
        self._label_map, self._class_ids = label_map, np.array(label_map.class_ids)
        self._truth: list[ImageGroundTruth] = []
        self._found: list[ImageDetections] = []

    @property
    def num_images(self) -> int:
        return len(self._truth)

    def add(self, batch: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
        for i in range(len(batch[truth.CLASSES])):
            image_id = self.num_images + 1
            height, width = (int(side) for side in batch[truth.IMAGE_HW][i])
            has_masks = truth.MASK_PNGS in batch and names.MASKS in found
            self._truth.append(self._truth_of({key: value[i] for key, value in batch.items()}, image_id, has_masks))
            count = int(found[names.NUM_DETECTIONS][i])
            rows = {key: value[i, :count] for key, value in found.items() if key != names.NUM_DETECTIONS}
            masks = encode_box_masks(rows[names.BOXES], rows[names.MASKS], (height, width)) if has_masks else None
            self._found.append(
                ImageDetections(
                    image_id=image_id,
                    boxes_yxyx_rel=rows[names.BOXES].copy(),  # a view would keep the whole batch
                    scores=rows[names.SCORES].copy(),
                    class_ids=rows[names.CLASSES].astype(int),
                    mask_counts=masks,
                    keypoints_yx_rel=rows[names.KEYPOINTS].copy() if names.KEYPOINTS in rows else None,
                )
            )

    def _truth_of(self, image: Mapping[str, np.ndarray], image_id: int, has_masks: bool) -> ImageGroundTruth:
        is_box = image[truth.CLASSES] >= 0  # -1 pads
        height, width = (int(side) for side in image[truth.IMAGE_HW])
        pngs = image[truth.MASK_PNGS][is_box] if has_masks else ()
        return ImageGroundTruth(
            image_id=image_id,
            image_hw=(height, width),
            boxes_yxyx_rel=image[truth.BOXES][is_box],
            class_ids=self._class_ids[image[truth.CLASSES][is_box]],
            is_crowd=image[truth.CROWD][is_box],
            area_px=image[truth.AREA][is_box],
            mask_counts=encode_mask_pngs(pngs, (height, width)) if has_masks else None,
            keypoints_yx_rel=image[truth.KEYPOINTS][is_box] if truth.KEYPOINTS in image else None,
        )

    def coco_metrics(self) -> CocoMetrics:
        return compute_coco_metrics(self._truth, self._found, self._label_map)

    def mask_metrics(self) -> CocoMetrics | None:
        if any(image.mask_counts is None for image in self._truth):
            return None
        return compute_coco_metrics(self._truth, self._found, self._label_map, iou_type="segm")

    def keypoint_metrics(self) -> KeypointMetrics | None:
        columns = [each.keypoints_yx_rel for each in self._truth] + [each.keypoints_yx_rel for each in self._found]
        if self._keypoints is None or any(points is None for points in columns):
            return None
        return compute_keypoint_metrics(self._truth, self._found, self._label_map, self._keypoints)


def _list(values: Mapping[str, object]) -> str:
    more = f" and {len(values) - _MAX_NAMED} more" if len(values) > _MAX_NAMED else ""
    return ", ".join(list(values)[:_MAX_NAMED]) + more
