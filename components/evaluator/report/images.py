"""Select example images for the report and draw their boxes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.components.evaluator.analysis.error_types import DetectionError, ErrorType
from detloom.components.evaluator.analysis.matches import IOU_50
from detloom.components.evaluator.comparison import ImageChange, ImageScore
from detloom.components.evaluator.evaluation import Evaluation, ImageKind, ReportImage
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.components.pages.formats import jpeg_data_uri
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.boxes.masks import Counts, decode_mask
from detloom.trainer_module.drawing.draw import confident_points, draw_objects
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

_IMAGE_SIDE_PX = 480  # two side by side fill the page
_JPEG_QUALITY = 80
_ERROR_TEXTS = {
    ErrorType.LOCALIZATION: "is poorly localized",
    ErrorType.CLASSIFICATION: "has the wrong class",
    ErrorType.BOTH: "has the wrong class and is poorly localized",
    ErrorType.DUPLICATE: "is a duplicate",
    ErrorType.BACKGROUND: "matches no labelled object",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Boxes:
    """The objects drawn on one copy of an image; `scores` is None for ground truth.

    Masks are run lengths over the image of `mask_hw`, keypoints NaN where they are not drawn; None if there are none.
    """

    label: str
    boxes_yxyx_rel: npt.NDArray[np.float64]
    class_ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64] | None
    mask_counts: Counts | None = None
    mask_hw: tuple[int, int] = (0, 0)
    keypoints_yx_rel: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ImagePlan:
    """An example image before it is read and drawn."""

    kind: ImageKind
    image_index: int
    text: str
    left: Boxes
    right: Boxes


def plan_images(evaluation: Evaluation, num_each: int, *, baseline: Sequence[ImageDetections] = ()) -> list[ImagePlan]:
    """Select at most `num_each` images of every kind, without duplicates within a kind.

    Args:
        baseline: the baseline's detections in the order of the split; empty without a baseline.
    """
    split, candidate, comparison = evaluation.split, evaluation.candidate, evaluation.comparison
    planner = _Planner(split, evaluation.detections, candidate.min_scores)
    errors = candidate.error_analysis.errors
    plans = [
        *planner.wrong_detections(_first_of_each_image(_wrong_by_score(errors), num_each)),
        *planner.missed(_largest_missed(candidate, split)[:num_each]),
    ]
    if evaluation.baseline is not None and baseline:
        before = _Planner(split, baseline, evaluation.baseline.min_scores)
        gains = [change for change in comparison.changes if change.gain > 0][:num_each]
        losses = [change for change in comparison.changes[::-1] if change.gain < 0][:num_each]
        plans += [_plan_change("better", change, before, planner) for change in gains]
        plans += [_plan_change("worse", change, before, planner) for change in losses]
    return [*plans, *planner.first(num_each)]


def _plan_change(kind: ImageKind, change: ImageChange, before: "_Planner", after: "_Planner") -> ImagePlan:
    def say(score: ImageScore) -> str:
        return f"{score.num_true} correct, {score.num_false} wrong, {score.num_missed} missed"

    return ImagePlan(
        kind=kind,
        image_index=change.image_index,
        text=f"baseline {say(change.baseline)}; candidate {say(change.candidate)}",
        left=before.found(change.image_index, "baseline"),
        right=after.found(change.image_index, "candidate"),
    )


def draw_image(plan: ImagePlan, image_rgb: npt.NDArray[np.uint8], name: str, label_map: LabelMap) -> ReportImage:
    """Draw both copies of the image."""
    small = Image.fromarray(image_rgb)
    small.thumbnail((_IMAGE_SIDE_PX, _IMAGE_SIDE_PX))
    small_rgb = np.asarray(small)
    left, right = (_draw(small_rgb, boxes, label_map) for boxes in (plan.left, plan.right))
    return ReportImage(
        kind=plan.kind,
        name=name,
        text=plan.text,
        left_uri=left,
        right_uri=right,
        left_label=plan.left.label,
        right_label=plan.right.label,
    )


class _Planner:
    """Plans the example images of one model's detections."""

    def __init__(self, split: Split, detections: Sequence[ImageDetections], min_scores: Sequence[float]) -> None:
        self._split, self._detections = split, detections
        self._min_score_by_id = dict(zip(split.label_map.class_ids, min_scores, strict=True))

    def truth(self, image_index: int, rows: Sequence[int] | slice = slice(None)) -> Boxes:
        image = self._split.ground_truth[image_index]
        return Boxes(
            label="ground truth",
            boxes_yxyx_rel=np.asarray(image.boxes_yxyx_rel, np.float64)[rows],
            class_ids=np.asarray(image.class_ids, np.int64)[rows],
            scores=None,
            **_shapes(image, rows, image.image_hw),
        )

    def found(self, image_index: int, label: str = "detections") -> Boxes:
        """Return the detections at or above the operating points of their classes."""
        image = self._detections[image_index]
        least = np.array([self._min_score_by_id[int(class_id)] for class_id in image.class_ids])
        return self._rows(image, np.flatnonzero(np.asarray(image.scores) >= least), label, image_index)

    def wrong_detections(self, errors: Sequence[DetectionError]) -> Iterator[ImagePlan]:
        for error in errors:
            assert error.detection_index is not None
            image = self._detections[error.image_index]
            name = self._split.label_map.name_of(int(image.class_ids[error.detection_index]))
            yield ImagePlan(
                kind="false",
                image_index=error.image_index,
                text=f"{name} with score {error.score:.2f} {_ERROR_TEXTS[error.error_type]}",
                left=self.truth(error.image_index),
                right=self._rows(image, np.array([error.detection_index]), "wrong detection", error.image_index),
            )

    def missed(self, objects: Sequence[tuple[int, int]]) -> Iterator[ImagePlan]:
        """Plan images of missed objects, given as (image, row in the image)."""
        for image_index, row in objects:
            truth = self._split.ground_truth[image_index]
            name = self._split.label_map.name_of(int(truth.class_ids[row]))
            missed = self.truth(image_index, [row])
            yield ImagePlan(
                kind="missed",
                image_index=image_index,
                text=f"{name} missed",
                left=replace(missed, label="missed object"),
                right=self.found(image_index),
            )

    def first(self, count: int) -> Iterator[ImagePlan]:
        for image_index in range(min(count, len(self._split.ground_truth))):
            truth, found = self.truth(image_index), self.found(image_index)
            text = f"objects: {len(truth.class_ids)}, detections: {len(found.class_ids)}"
            yield ImagePlan(kind="first", image_index=image_index, text=text, left=truth, right=found)

    def _rows(self, image: ImageDetections, rows: npt.NDArray[np.int64], label: str, image_index: int) -> Boxes:
        return Boxes(
            label=label,
            boxes_yxyx_rel=np.asarray(image.boxes_yxyx_rel, np.float64)[rows],
            class_ids=np.asarray(image.class_ids, np.int64)[rows],
            scores=np.asarray(image.scores, np.float64)[rows],
            **_shapes(image, rows, self._split.ground_truth[image_index].image_hw),
        )


def _shapes(image: ImageGroundTruth | ImageDetections, rows: Any, image_hw: tuple[int, int]) -> dict[str, Any]:
    """Return the masks and keypoints of rows as attributes of `Boxes`."""
    points = image.keypoints_yx_rel
    if isinstance(image, ImageDetections):
        points = confident_points(points, image.keypoint_scores)
    return {
        "mask_counts": None if image.mask_counts is None else image.mask_counts[rows],
        "mask_hw": image_hw,
        "keypoints_yx_rel": None if points is None else points[rows],
    }


def _wrong_by_score(errors: Sequence[DetectionError]) -> list[DetectionError]:
    wrong = [error for error in errors if error.score is not None and not error.is_on_crowd]
    return sorted(wrong, key=lambda error: -(error.score or 0))


def _largest_missed(candidate: Measurements, split: Split) -> list[tuple[int, int]]:
    """Return (image, row) of the largest object of each image that no detection at the operating points matches."""
    matches = candidate.matches
    is_used = matches.scores >= np.array([*candidate.min_scores, 0.0])[matches.found.class_index]
    is_missed = ~matches.is_crowd
    is_missed[matches.truth_of_found_TN[IOU_50, is_used & matches.is_true_TN[IOU_50]]] = False
    rows = np.flatnonzero(is_missed)
    image_index, row = matches.truth.image_index[rows], matches.truth.row[rows]
    shares = np.array(
        [_share(split.ground_truth[i], r) for i, r in zip(image_index.tolist(), row.tolist(), strict=True)]
    )
    largest: dict[int, int] = {}
    for position in np.argsort(-shares, kind="stable").tolist():
        largest.setdefault(int(image_index[position]), int(row[position]))
    return list(largest.items())


def _share(truth: ImageGroundTruth, row: int) -> float:
    """Return the area of a box as a share of the image."""
    ymin, xmin, ymax, xmax = np.asarray(truth.boxes_yxyx_rel, np.float64)[row]
    return float((ymax - ymin) * (xmax - xmin))


def _first_of_each_image(errors: Sequence[DetectionError], count: int) -> list[DetectionError]:
    first: Mapping[int, DetectionError] = {error.image_index: error for error in reversed(errors)}
    return [error for error in errors if first[error.image_index] is error][:count]


def _draw(image_rgb: npt.NDArray[np.uint8], boxes: Boxes, label_map: LabelMap) -> str:
    names = [label_map.name_of(int(class_id)) for class_id in boxes.class_ids]
    masks = boxes.mask_counts
    drawing = draw_objects(
        image_rgb,
        boxes.boxes_yxyx_rel,
        boxes.class_ids,
        names,
        boxes.scores,
        masks_NHW=None if masks is None else np.array([decode_mask(counts, boxes.mask_hw) for counts in masks]),
        keypoints_yx_rel_NP2=boxes.keypoints_yx_rel,
    )
    return jpeg_data_uri(drawing, _JPEG_QUALITY)
