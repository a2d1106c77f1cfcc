"""COCO's keypoint metrics, equal to pycocotools to the last digit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from detloom.schemas.contracts.keypoint_sigmas import sigmas_of
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Eval
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.evaluation.coco_metrics import NO_VALUE, mean_of_measured
from detloom.trainer_module.evaluation.mask_and_keypoint_curves import compute_coco_curves

# Positions in the COCO API's keypoint curves: IoU 0.50, 0.75; all, medium, large objects; 20 detections per image.
_IOU_50, _IOU_75 = 0, 5
_ALL, _MEDIUM, _LARGE = 0, 1, 2
_MAX_20 = 0


@dataclass(frozen=True, kw_only=True)
class KeypointMetrics:
    """The ten COCO keypoint metrics, 0 to 1, or -1 without ground truth.

    As for boxes, but with object keypoint similarity instead of IoU, without small objects, and with 20 detections per
    image and class.
    """

    AP: float
    AP50: float
    AP75: float
    APm: float
    APl: float
    AR: float
    AR50: float
    AR75: float
    ARm: float
    ARl: float

    def value_of(self, name: str) -> float:
        """Return a metric by its name in KEYPOINT_METRIC_NAMES."""
        assert name in KEYPOINT_METRIC_NAMES, name
        return float(getattr(self, name))

    def explain(self, name: str) -> str | None:
        """Explain why the metric is -1; None if it was measured."""
        if self.value_of(name) != NO_VALUE:
            return None
        size = " of this size" if name[-1] in "ml" else ""
        return f"no ground truth{size} with labelled keypoints"

    def to_dict(self) -> dict[str, float]:
        """Return plain JSON values."""
        return asdict(self)


def measured_keypoints(keypoints: Keypoints | None, settings: Eval) -> Keypoints | None:
    """Return the keypoints of a detector family with the tolerances of `eval.keypoint_sigmas`, or their defaults."""
    if keypoints is None:
        return None
    given = {each.name: each.sigma for each in settings.keypoint_sigmas}
    return keypoints._replace(sigmas=sigmas_of(keypoints.names, given))


def compute_keypoint_metrics(
    ground_truth: Sequence[ImageGroundTruth],
    detections: Sequence[ImageDetections],
    label_map: LabelMap,
    keypoints: Keypoints,
) -> KeypointMetrics:
    """Compute the metrics of the class that has keypoints; boxes of other classes do not count.

    Objects without labelled keypoints are ignored, as are detections on them. The area of a detection is that of its
    box, as in the Object Detection API.

    Raises:
        InputError: a keypoint of a detection is not a finite number.
    """
    class_id = label_map.class_ids[label_map.names.index(keypoints.class_name)]
    only = LabelMap(((class_id, keypoints.class_name),))
    truth = [_of_class(image, class_id) for image in sorted(ground_truth, key=lambda image: image.image_id)]
    found = [_of_class(image, class_id) for image in sorted(detections, key=lambda image: image.image_id)]
    for image in found:
        if image.keypoints_yx_rel is not None and not np.isfinite(image.keypoints_yx_rel).all():
            raise InputError(f"detections of image {image.image_id}: a keypoint is not a finite number.")
    dataset = format_coco_ground_truth(truth, only)
    nothing = {"keypoints": [0.0] * (3 * len(keypoints.names)), "num_keypoints": 0}
    dataset["annotations"] = [{**nothing, **row} for row in dataset["annotations"]]
    results = format_coco_results(found, {image.image_id: image.image_hw for image in truth})
    return summarize_keypoints(dataset, results, keypoints.sigmas)


def _of_class(image: Any, class_id: int) -> Any:
    """Return ground truth or detections of one class."""
    is_kept = np.asarray(image.class_ids) == class_id
    columns = {
        name: value[is_kept]
        for name, value in vars(image).items()
        if isinstance(value, np.ndarray) and name not in ("mask_counts",)
    }
    return replace(image, **{**columns, "mask_counts": None})


def summarize_keypoints(
    truth_dataset: Mapping[str, Any],
    found_annotations: Sequence[Mapping[str, Any]],
    sigmas: Sequence[float] | None,
) -> KeypointMetrics:
    """Compute the metrics of datasets in COCO's format without checks; see `compute_coco_curves`."""
    precision_TRKAM, recall_TKAM = compute_coco_curves(
        truth_dataset, found_annotations, iou_type="keypoints", sigmas=sigmas
    )
    precision_TRKA, recall_TKA = precision_TRKAM[..., _MAX_20], recall_TKAM[..., _MAX_20]
    return KeypointMetrics(
        AP=mean_of_measured(precision_TRKA[..., _ALL]),
        AP50=mean_of_measured(precision_TRKA[_IOU_50, ..., _ALL]),
        AP75=mean_of_measured(precision_TRKA[_IOU_75, ..., _ALL]),
        APm=mean_of_measured(precision_TRKA[..., _MEDIUM]),
        APl=mean_of_measured(precision_TRKA[..., _LARGE]),
        AR=mean_of_measured(recall_TKA[..., _ALL]),
        AR50=mean_of_measured(recall_TKA[_IOU_50, ..., _ALL]),
        AR75=mean_of_measured(recall_TKA[_IOU_75, ..., _ALL]),
        ARm=mean_of_measured(recall_TKA[..., _MEDIUM]),
        ARl=mean_of_measured(recall_TKA[..., _LARGE]),
    )
