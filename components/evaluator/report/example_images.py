"""Select example images for the report, and the objects that are drawn over them."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from PIL import Image

from detloom.components.evaluator.analysis.error_types import ErrorType, WrongDetection
from detloom.components.evaluator.baseline_comparison import ImageChange, ImageScore
from detloom.components.evaluator.evaluation_result import EvaluationResult, ImageKind, ReportImage, ReportObject
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.components.evaluator.report.score_thresholds import MIN_DRAWN_SCORE, ScoreSteps
from detloom.components.pages.formats import jpeg_data_uri
from detloom.schemas.contracts.arrays import Array, Float64Array, Int64Array, Uint8Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.boxes.masks import decode_mask
from detloom.trainer_module.drawing.draw import color_of_class, confident_points, drawn_name
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.evaluation.matches import IOU_50

_IMAGE_SIDE_PX = 720
_JPEG_QUALITY = 80
MAX_DETECTIONS = 100  # per image and model, those with the highest scores
MAX_TRUTH = 300  # more boxes would hide the image
_MASK_OPACITY = 115  # of 255
_ERROR_TEXTS = {
    ErrorType.LOCALIZATION: "is poorly localized",
    ErrorType.CLASSIFICATION: "has the wrong class",
    ErrorType.BOTH: "has the wrong class and is poorly localized",
    ErrorType.DUPLICATE: "is a duplicate",
    ErrorType.BACKGROUND: "matches no labelled object",
}
_Layer = Literal["truth", "candidate", "baseline"]
_Outcome = Literal["plain", "crowd", "true", "false", "ignored"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedObject:
    """An object before its image is read; attributes as in `ReportObject`.

    `mask_counts` are run lengths over the original image, `points_yx_rel` [P, 2] are NaN for points that are not drawn;
    None if the object has none.
    """

    layer: _Layer
    outcome: _Outcome
    box_yxyx_rel: Float64Array
    class_id: int
    score: float | None
    steps: tuple[int, ...]
    is_subject: bool = False
    mask_counts: bytes | None = None
    points_yx_rel: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ImagePlan:
    """An example image before it is read and drawn."""

    kind: ImageKind
    image_index: int
    text: str
    image_hw: tuple[int, int]
    objects: tuple[PlannedObject, ...]


def plan_images(evaluation: EvaluationResult, num_each: int) -> list[ImagePlan]:
    """Select at most `num_each` images of every kind, without duplicates within a kind."""
    candidate, comparison = evaluation.candidate, evaluation.comparison
    models = [_Model("candidate", candidate, evaluation.detections)]
    if evaluation.baseline is not None:
        models.append(_Model("baseline", evaluation.baseline, evaluation.baseline_detections))
    planner = _Planner(evaluation.split, models)
    plans = [
        *planner.wrong_detections(candidate.outcomes.highest_wrong(num_each)),
        *planner.missed(_largest_missed(candidate, evaluation.split, num_each)),
    ]
    if len(models) > 1:
        gains = [change for change in comparison.changes if change.gain > 0][:num_each]
        losses = [change for change in comparison.changes[::-1] if change.gain < 0][:num_each]
        plans += [planner.change("better", change) for change in gains]
        plans += [planner.change("worse", change) for change in losses]
    return [*plans, *planner.first(num_each, candidate.min_scores)]


class _Model:
    """Detections of one model with their matches, by image."""

    def __init__(self, layer: _Layer, measured: Measurements, detections: Sequence[ImageDetections]) -> None:
        self._layer, self._matches, self._detections = layer, measured.matches, detections
        self._steps = ScoreSteps.of_model(measured)
        image_index = self._matches.found.image_index
        self._order = np.argsort(image_index, kind="stable")
        self._starts = np.searchsorted(image_index[self._order], np.arange(self._matches.num_images + 1))

    def _rows(self, image_index: int) -> Int64Array:
        rows: Int64Array = self._order[self._starts[image_index] : self._starts[image_index + 1]]
        return rows

    def detections(self, image_index: int) -> ImageDetections:
        return self._detections[image_index]

    def objects(self, image_index: int, subject: int | None) -> list[PlannedObject]:
        """Return the detections to draw, the highest score last; `subject` is a position in the image's arrays."""
        matches, image = self._matches, self._detections[image_index]
        rows = self._rows(image_index)
        is_drawn = matches.scores[rows] >= min(MIN_DRAWN_SCORE, self._steps.start_score)
        rows = rows[is_drawn | (matches.found.row[rows] == (-1 if subject is None else subject))]
        rows = rows[np.argsort(-matches.scores[rows], kind="stable")][:MAX_DETECTIONS][::-1]
        steps = self._steps.steps_of(matches.scores[rows])
        outcomes: list[_Outcome] = [
            "true" if is_true else "ignored" if is_ignored else "false"
            for is_true, is_ignored in zip(matches.is_true(IOU_50, rows), matches.is_ignored(IOU_50, rows), strict=True)
        ]
        points = confident_points(image.keypoints_yx_rel, image.keypoint_scores)
        return [
            PlannedObject(
                layer=self._layer,
                outcome=outcome,
                box_yxyx_rel=np.asarray(image.boxes_yxyx_rel[row], np.float64),
                class_id=int(image.class_ids[row]),
                score=float(image.scores[row]),
                steps=(step,),
                is_subject=row == subject,
                # Masks are large: only of detections at the slider's first threshold.
                mask_counts=None if image.mask_counts is None or step <= self._steps.start else image.mask_counts[row],
                points_yx_rel=None if points is None else points[row],
            )
            for row, outcome, step in zip(matches.found.row[rows].tolist(), outcomes, steps.tolist(), strict=True)
        ]

    def steps_by_truth(self, image_index: int) -> dict[int, int]:
        """Return the step of the detection that is matched to each object, by the object's position in the image."""
        matches, rows = self._matches, self._rows(image_index)
        rows = rows[matches.is_true(IOU_50, rows)]
        truth_rows = matches.truth.row[matches.truth_of_found[rows]]
        return dict(zip(truth_rows.tolist(), self._steps.steps_of(matches.scores[rows]).tolist(), strict=True))


class _Planner:
    """Plans the example images of one split."""

    def __init__(self, split: Split, models: Sequence[_Model]) -> None:
        self._split, self._models = split, models

    def _plan(
        self, kind: ImageKind, image_index: int, text: str, *, wrong: int | None = None, missed: int | None = None
    ) -> ImagePlan:
        """Args: wrong, missed: the subject, as a position among the candidate's detections or the objects."""
        found = [model.objects(image_index, wrong if not number else None) for number, model in enumerate(self._models)]
        objects = [*self._truth(image_index, missed), *(each for part in reversed(found) for each in part)]
        hw = self._split.ground_truth[image_index].image_hw
        return ImagePlan(kind=kind, image_index=image_index, text=text, image_hw=hw, objects=tuple(objects))

    def _truth(self, image_index: int, subject: int | None) -> list[PlannedObject]:
        image = self._split.ground_truth[image_index]
        steps = [model.steps_by_truth(image_index) for model in self._models]
        rows = range(min(len(image.class_ids), MAX_TRUTH))
        return [
            PlannedObject(
                layer="truth",
                outcome="crowd" if image.is_crowd[row] else "plain",
                box_yxyx_rel=np.asarray(image.boxes_yxyx_rel[row], np.float64),
                class_id=int(image.class_ids[row]),
                score=None,
                steps=tuple(by_truth.get(row, 0) for by_truth in steps),
                is_subject=row == subject,
                mask_counts=None if image.mask_counts is None else image.mask_counts[row],
                points_yx_rel=None if image.keypoints_yx_rel is None else image.keypoints_yx_rel[row],
            )
            for row in rows
        ]

    def wrong_detections(self, errors: Sequence[WrongDetection]) -> Iterator[ImagePlan]:
        for error in errors:
            class_ids = self._models[0].detections(error.image_index).class_ids
            name = self._split.label_map.name_of(int(class_ids[error.detection_index]))
            text = f"{name} with score {error.score:.2f} {_ERROR_TEXTS[error.error_type]}"
            yield self._plan("false", error.image_index, text, wrong=error.detection_index)

    def missed(self, objects: Sequence[tuple[int, int]]) -> Iterator[ImagePlan]:
        """Plan images of missed objects, given as (image, row in the image)."""
        for image_index, row in objects:
            name = self._split.label_map.name_of(int(self._split.ground_truth[image_index].class_ids[row]))
            yield self._plan("missed", image_index, f"{name} missed", missed=row)

    def change(self, kind: ImageKind, change: ImageChange) -> ImagePlan:
        def counts_text(score: ImageScore) -> str:
            return f"{score.num_true} correct, {score.num_false} wrong, {score.num_missed} missed"

        text = f"baseline {counts_text(change.baseline)}; candidate {counts_text(change.candidate)}"
        return self._plan(kind, change.image_index, text)

    def first(self, count: int, min_scores: Sequence[float]) -> Iterator[ImagePlan]:
        least_by_id = dict(zip(self._split.label_map.class_ids, min_scores, strict=True))
        for image_index in range(min(count, len(self._split.ground_truth))):
            found = self._models[0].detections(image_index)
            pairs = zip(found.class_ids.tolist(), found.scores.tolist(), strict=True)
            num_found = sum(score >= least_by_id[class_id] for class_id, score in pairs)
            num_objects = len(self._split.ground_truth[image_index].class_ids)
            yield self._plan("first", image_index, f"objects: {num_objects}, detections: {num_found}")


def draw_image(plan: ImagePlan, image_rgb: Uint8Array, name: str, label_map: LabelMap) -> ReportImage:
    """Encode a small copy of the image, and place the objects on it."""
    small = Image.fromarray(image_rgb)
    small.thumbnail((_IMAGE_SIDE_PX, _IMAGE_SIDE_PX))
    objects = [_place(each, small.size, plan.image_hw, label_map) for each in plan.objects]
    return ReportImage(
        kind=plan.kind,
        name=name,
        text=plan.text,
        uri=jpeg_data_uri(small, _JPEG_QUALITY),
        size_wh=small.size,
        objects=tuple(each for each in objects if each is not None),
    )


def _place(
    planned: PlannedObject, size_wh: tuple[int, int], image_hw: tuple[int, int], label_map: LabelMap
) -> ReportObject | None:
    """Convert to pixels of the small image; None for a box that is inverted or not finite."""
    width, height = size_wh
    if not np.isfinite(planned.box_yxyx_rel).all():
        return None
    top, left, bottom, right = np.clip(planned.box_yxyx_rel, 0, 1) * (height, width, height, width)
    if bottom < top or right < left:
        return None
    name = drawn_name(label_map.name_of(planned.class_id))
    placed = ReportObject(
        layer=planned.layer,
        outcome=planned.outcome,
        box_xywh_px=(float(left), float(top), float(right - left), float(bottom - top)),
        label=name if planned.score is None else f"{name} {planned.score:.2f}",
        steps=planned.steps,
        is_subject=planned.is_subject,
        points_xy_px=_points_px(planned.points_yx_rel, size_wh),
    )
    if planned.mask_counts is None:
        return placed
    mask = Image.fromarray(decode_mask(planned.mask_counts, image_hw)).resize(size_wh, Image.Resampling.NEAREST)
    return replace(placed, mask_uri=_mask_uri(mask.crop(placed.mask_area_px), planned.class_id))


def _mask_uri(mask: Image.Image, class_id: int) -> str:
    """Return a transparent PNG in the color of the class."""
    palette = Image.fromarray(np.asarray(mask), "P")
    palette.putpalette([0, 0, 0, *color_of_class(class_id)])
    file = io.BytesIO()
    palette.save(file, "PNG", transparency=bytes([0, _MASK_OPACITY]), bits=1, optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _points_px(points_yx_rel: Array | None, size_wh: tuple[int, int]) -> tuple[tuple[float, float], ...]:
    if points_yx_rel is None:
        return ()
    points = np.asarray(points_yx_rel, np.float64)
    inside = points[np.isfinite(points).all(axis=-1) & ((points >= 0) & (points <= 1)).all(axis=-1)]
    return tuple((float(x * size_wh[0]), float(y * size_wh[1])) for y, x in inside)


def _largest_missed(candidate: Measurements, split: Split, count: int) -> list[tuple[int, int]]:
    """Return (image, row) of the largest missed objects, one of each image.

    They are missed at the operating point of their class and at the first score of the page's slider.
    """
    matches = candidate.matches
    min_scores = np.minimum([*candidate.min_scores, 0.0], ScoreSteps.of_model(candidate).start_score)
    is_used = matches.scores >= min_scores[matches.found.class_index]
    is_missed = ~matches.is_crowd
    is_missed[matches.truth_of_found[is_used & matches.is_true(IOU_50)]] = False
    rows = np.flatnonzero(is_missed)
    image_index, row = matches.truth.image_index[rows], matches.truth.row[rows]
    truth = ImageTable.of(ImageGroundTruth, split.ground_truth)
    ymin, xmin, ymax, xmax = truth.columns["boxes_yxyx_rel"][truth.offsets_I1[image_index] + row].astype(np.float64).T
    order = np.argsort(-(ymax - ymin) * (xmax - xmin), kind="stable")
    _, first = np.unique(image_index[order], return_index=True)
    largest = order[np.sort(first)[:count]]
    return list(zip(image_index[largest].tolist(), row[largest].tolist(), strict=True))
