"""All measurements of one model on one split, computed from its detections."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detloom.components.evaluator.analysis.average_precision import (
    OperatingPoint,
    best_f1_point,
    measure_curve,
    measure_pooled_curve,
    point_of_precision,
)
from detloom.components.evaluator.analysis.confidence_calibration import Calibration, measure_calibration
from detloom.components.evaluator.analysis.confusion import Confusion, count_confusion
from detloom.components.evaluator.analysis.error_types import DetectionOutcomes, ErrorCosts, analyze_errors
from detloom.components.evaluator.analysis.voc import VocMetrics, compute_voc_metrics
from detloom.components.evaluator.slices import (
    Feature,
    ObjectRecall,
    SliceMetrics,
    measure_objects,
    measure_slices,
    split_images,
)
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT, MASK
from detloom.schemas.run_file.evaluator import EvaluatorSettings, SizeBin
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.evaluation.box_curves import precision_at_recalls
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import (
    NO_VALUE,
    CocoMetrics,
    check_values,
    compute_coco_metrics,
    summarize_matches,
)
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics, compute_keypoint_metrics
from detloom.trainer_module.evaluation.matches import (
    BY_CLASS,
    CLASS_AGNOSTIC,
    IOU_50,
    Columns,
    Matches,
    match_detections,
)

_IOU_75 = 5
_ABOVE_ALL_SCORES = math.inf
_ANY_CLASS = LabelMap(((1, "any class"),))


@dataclass(frozen=True, kw_only=True)
class Split:
    """The images that models are measured on.

    Attributes:
        features: for each image, values of its example's features that slices use.
        keypoints: the keypoints that are measured, if any.
    """

    ground_truth: Sequence[ImageGroundTruth]
    features: Sequence[Mapping[str, Feature]]
    label_map: LabelMap
    keypoints: Keypoints | None = None


@dataclass(frozen=True, kw_only=True)
class ClassCurve:
    """Precision of one class at 101 recalls (0, 0.01, ... 1) for IoU 0.50 and 0.75, and its operating points.

    Attributes:
        precision50, precision75: [101]; empty without objects.
        best_f1: operating point with the best F1; None without true positives.
        wanted: operating point with the wanted precision; None if no score reaches it.
    """

    class_id: int
    name: str
    precision50: tuple[float, ...]
    precision75: tuple[float, ...]
    best_f1: OperatingPoint | None
    wanted: OperatingPoint | None


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measurements of one model on one split.

    Attributes:
        class_agnostic: class-agnostic COCO metrics (all classes treated as one).
        best_f1: operating point of all classes together with the best F1; None without true positives.
        voc: mAP and AP by class at IoU 0.50 by the rules of PASCAL VOC and Open Images, by name of the rules.
        masks, keypoints: COCO metrics of masks and keypoints; None if model or data have none. All else is measured on
            boxes.
        matches, outcomes: intermediate results; not written to files.
    """

    coco: CocoMetrics
    class_agnostic: CocoMetrics
    voc: dict[str, VocMetrics]
    slices: tuple[SliceMetrics, ...]
    object_slices: tuple[ObjectRecall, ...]
    curves: tuple[ClassCurve, ...]
    best_f1: OperatingPoint | None
    errors: ErrorCosts
    confusion: Confusion
    calibration: Calibration
    matches: Matches = field(repr=False, compare=False)
    outcomes: DetectionOutcomes = field(repr=False, compare=False)
    masks: CocoMetrics | None = None
    keypoints: KeypointMetrics | None = None

    @property
    def min_scores(self) -> tuple[float, ...]:
        """Score threshold of each class with the best F1; infinite without true positives, so that nothing is used."""
        return self.confusion.min_scores

    def find_value(self, metric: str, slice_name: str = "") -> tuple[float | None, str]:
        """Return a metric by name (`AP`, `AP50/cat`, `mask_AP`) for all images or a slice, or None and the reason."""
        if metric.startswith((MASK, KEYPOINT)):
            return self._find_shape_value(metric, slice_name)
        return self._find(self.coco, metric, slice_name)

    def _find_shape_value(self, metric: str, slice_name: str) -> tuple[float | None, str]:
        noun, metrics = ("keypoints", self.keypoints) if metric.startswith(KEYPOINT) else ("masks", self.masks)
        if slice_name:
            return None, "slices are measured on boxes only"
        if metrics is None:
            return None, f"the model or the data have no {noun}"
        if isinstance(metrics, CocoMetrics):
            return self._find(metrics, metric.removeprefix(MASK), "")
        return _explained(metrics, metric.removeprefix(KEYPOINT))

    def _find(self, metrics: CocoMetrics, metric: str, slice_name: str) -> tuple[float | None, str]:
        if slice_name:
            found = [each.metrics for each in self.slices if each.name == slice_name]
            if not found:
                known = ", ".join(each.name for each in self.slices) or "none"
                return None, f"this split has no slice {slice_name!r}, only: {known}"
            metrics = found[0]
        name, slash, class_name = metric.partition("/")
        if not slash:
            return _explained(metrics, name)
        rows = [row for row in metrics.per_class if row.name == class_name]
        if not rows:
            return None, f"no class {class_name!r}"
        value = rows[0].value_of(name)
        size = " and size" if name[-1] in "sml" else ""
        return (value, "") if value != NO_VALUE else (None, f"no ground truth of this class{size}")

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; slices omit metrics by class, which would dominate the size."""
        plain = {
            name: _to_plain(getattr(self, name))
            for name in self.__dataclass_fields__
            if name not in ("matches", "outcomes")
        }
        for name in ("masks", "keypoints"):  # absent for detectors of boxes
            if plain[name] is None:
                del plain[name]
        for each in plain["slices"]:
            del each["metrics"]["per_class"]
        return plain


def _explained(metrics: CocoMetrics | KeypointMetrics, name: str) -> tuple[float | None, str]:
    """Return a metric, or None and the reason."""
    why_not = metrics.explain(name)
    return (metrics.value_of(name), "") if why_not is None else (None, why_not)


def measure(
    split: Split,
    detections: Sequence[ImageDetections],
    settings: EvaluatorSettings,
    columns: Mapping[str, Columns] | None = None,
) -> Measurements:
    """Measure detections of the images of `split`, in its order.

    Args:
        columns: result of `match_boxes` by BY_CLASS and CLASS_AGNOSTIC, if it is known already; the sizes are those of
            the settings.

    Raises:
        InputError: a slice feature that the examples lack, a class id that the label map lacks.
    """
    label_map = split.label_map
    truth = ImageTable.of(ImageGroundTruth, split.ground_truth)
    found = ImageTable.of(ImageDetections, detections)
    check_values("ground truth", truth, label_map)
    check_values("detections", found, label_map)
    columns = columns or {}
    # What needs most memory comes first: later results are kept.
    of_any = match_detections(truth, found, label_map, is_class_agnostic=True, columns=columns.get(CLASS_AGNOSTIC))
    class_agnostic = summarize_matches(of_any, _ANY_CLASS)
    del of_any
    errors, outcomes = analyze_errors(truth, found)
    voc = compute_voc_metrics(truth, found, label_map.class_ids)
    areas = areas_of(settings.sizes)
    matches = match_detections(truth, found, label_map, sizes=areas, columns=columns.get(BY_CLASS))
    sizes = [(each.name, *area) for each, area in zip(settings.sizes, areas, strict=True)]
    curves = tuple(_measure_class(matches, label_map, k, settings) for k in range(len(label_map.class_ids)))
    min_scores = tuple(curve.best_f1.min_score if curve.best_f1 else _ABOVE_ALL_SCORES for curve in curves)
    members = split_images(truth, split.features, settings.image_slices)
    return Measurements(
        coco=summarize_matches(matches, label_map, sizes),
        class_agnostic=class_agnostic,
        voc=voc,
        slices=measure_slices(matches, label_map, members, settings.min_slice_count),
        object_slices=measure_objects(matches, truth.image_hw_I2, settings.object_slices, settings.min_slice_count),
        curves=curves,
        best_f1=best_f1_point(measure_pooled_curve(matches, IOU_50)),
        errors=errors,
        confusion=count_confusion(matches, label_map.names, min_scores),
        calibration=measure_calibration(matches),
        matches=matches,
        outcomes=outcomes,
        masks=measure_masks(truth, found, label_map),
        keypoints=measure_keypoints(split, detections),
    )


def areas_of(sizes: Sequence[SizeBin]) -> list[tuple[float, float]]:
    """Return the smallest and the largest area of each size in square pixels."""
    return [(each.min_side_px**2, each.max_side_px**2) for each in sizes]


def measure_masks(
    truth: ImageTable[ImageGroundTruth], detections: ImageTable[ImageDetections], label_map: LabelMap
) -> CocoMetrics | None:
    """Return the COCO metrics of masks; None unless all images have masks."""
    if not len(truth) or truth.is_missing("mask_counts") or detections.is_missing("mask_counts"):
        return None
    return compute_coco_metrics(truth, detections, label_map, iou_type="segm")


def measure_keypoints(split: Split, detections: Sequence[ImageDetections]) -> KeypointMetrics | None:
    """Return the COCO metrics of keypoints; None unless all images have these keypoints, as many as their names."""
    if split.keypoints is None:
        return None
    columns = [image.keypoints_yx_rel for images in (split.ground_truth, detections) for image in images]
    if any(points is None or points.shape[1] != len(split.keypoints.names) for points in columns):
        return None  # also a baseline with other keypoints
    return compute_keypoint_metrics(split.ground_truth, detections, split.label_map, split.keypoints)


def _measure_class(matches: Matches, label_map: LabelMap, k: int, settings: EvaluatorSettings) -> ClassCurve:
    class_id, name = label_map.names_by_id[k]
    curve = measure_curve(matches, k, IOU_50)
    precision50, precision75 = (
        tuple(precision_at_recalls(matches, k, t).tolist()) if curve.num_truth else () for t in (IOU_50, _IOU_75)
    )
    return ClassCurve(
        class_id=class_id,
        name=name,
        precision50=precision50,
        precision75=precision75,
        best_f1=best_f1_point(curve),
        wanted=point_of_precision(curve, settings.wanted_precision),
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, CocoMetrics):
        return value.to_dict()
    if hasattr(value, "__dataclass_fields__"):
        return {name: _to_plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(getattr(key, "value", key)): _to_plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(each) for each in value]
    return None if value == math.inf else value  # JSON has no infinity; null is a score that no detection reaches
