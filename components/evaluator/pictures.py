"""Which images are worth a look, and their pictures with boxes."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from detloom.components.evaluator.analysis.error_types import DetectionError, ErrorType
from detloom.components.evaluator.analysis.image_scores import ImageChange, ImageScore
from detloom.components.evaluator.analysis.matches import IOU_50
from detloom.components.evaluator.evaluation import Evaluation, Picture, PictureKind
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.coco_metrics import ImageDetections, ImageGroundTruth
from detloom.trainer_module.draw import draw_detections

_PICTURE_SIDE_PX = 480  # two beside each other fill a usual page
_JPEG_QUALITY = 80
_ERROR_TEXTS = {
    ErrorType.LOCALIZATION: "lies badly",
    ErrorType.CLASSIFICATION: "is of another class",
    ErrorType.BOTH: "is of another class and lies badly",
    ErrorType.DUPLICATE: "was found already",
    ErrorType.BACKGROUND: "is nothing that is labelled",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Boxes:
    """What is drawn on one copy of an image: `scores` None for ground truth."""

    label: str
    boxes_yxyx_rel: npt.NDArray[np.float64]
    class_ids: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float64] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class PicturePlan:
    """A picture before its image is read."""

    kind: PictureKind
    image_index: int
    text: str
    left: Boxes
    right: Boxes


def plan_pictures(
    evaluation: Evaluation, num_each: int, *, baseline: Sequence[ImageDetections] = ()
) -> list[PicturePlan]:
    """At most `num_each` of every kind; every image once a kind.

    Args:
        baseline: its detections of the images of the split, in its order; empty without one.
    """
    split, candidate, comparison = evaluation.split, evaluation.candidate, evaluation.comparison
    planner = _Planner(split, evaluation.detections, candidate.min_scores)
    errors = candidate.error_analysis.errors
    plans = [
        *planner.mistakes(_one_an_image(_surest_mistakes(errors), num_each)),
        *planner.missed(_largest_missed(candidate, split)[:num_each]),
    ]
    if evaluation.baseline is not None and baseline:
        before = _Planner(split, baseline, evaluation.baseline.min_scores)
        gains = [change for change in comparison.changes if change.gain > 0][:num_each]
        losses = [change for change in comparison.changes[::-1] if change.gain < 0][:num_each]
        plans += [_plan_change("better", change, before, planner) for change in gains]
        plans += [_plan_change("worse", change, before, planner) for change in losses]
    return [*plans, *planner.first(num_each)]


def _plan_change(kind: PictureKind, change: ImageChange, before: "_Planner", after: "_Planner") -> PicturePlan:
    def say(score: ImageScore) -> str:
        return f"{score.num_true} right, {score.num_false} wrong, {score.num_missed} missed"

    return PicturePlan(
        kind=kind,
        image_index=change.image_index,
        text=f"baseline {say(change.baseline)}; candidate {say(change.candidate)}",
        left=before.found(change.image_index, "baseline"),
        right=after.found(change.image_index, "candidate"),
    )


def draw_picture(plan: PicturePlan, image_rgb: npt.NDArray[np.uint8], name: str, label_map: LabelMap) -> Picture:
    """Both copies of the image."""
    small = Image.fromarray(image_rgb)
    small.thumbnail((_PICTURE_SIDE_PX, _PICTURE_SIDE_PX))
    small_rgb = np.asarray(small)
    left, right = (_draw(small_rgb, boxes, label_map) for boxes in (plan.left, plan.right))
    return Picture(
        kind=plan.kind,
        name=name,
        text=plan.text,
        left_uri=left,
        right_uri=right,
        left_label=plan.left.label,
        right_label=plan.right.label,
    )


class _Planner:
    """Plans for one model's detections."""

    def __init__(self, split: Split, detections: Sequence[ImageDetections], min_scores: Sequence[float]) -> None:
        self._split, self._detections = split, detections
        self._min_score_by_id = dict(zip(split.label_map.class_ids, min_scores, strict=True))

    def truth(self, image_index: int, rows: Sequence[int] | slice = slice(None)) -> Boxes:
        image = self._split.ground_truth[image_index]
        return Boxes(
            label="labelled",
            boxes_yxyx_rel=np.asarray(image.boxes_yxyx_rel, np.float64)[rows],
            class_ids=np.asarray(image.class_ids, np.int64)[rows],
            scores=None,
        )

    def found(self, image_index: int, label: str = "found") -> Boxes:
        """From the operating points on."""
        image = self._detections[image_index]
        least = np.array([self._min_score_by_id[int(class_id)] for class_id in image.class_ids])
        return self._rows(image, np.flatnonzero(np.asarray(image.scores) >= least), label)

    def mistakes(self, errors: Sequence[DetectionError]) -> Iterator[PicturePlan]:
        for error in errors:
            assert error.detection_index is not None
            image = self._detections[error.image_index]
            name = self._split.label_map.name_of(int(image.class_ids[error.detection_index]))
            yield PicturePlan(
                kind="false",
                image_index=error.image_index,
                text=f"{name} with score {error.score:.2f} {_ERROR_TEXTS[error.error_type]}",
                left=self.truth(error.image_index),
                right=self._rows(image, np.array([error.detection_index]), "mistake"),
            )

    def missed(self, objects: Sequence[tuple[int, int]]) -> Iterator[PicturePlan]:
        """Of objects as (image, row in it)."""
        for image_index, row in objects:
            truth = self._split.ground_truth[image_index]
            name = self._split.label_map.name_of(int(truth.class_ids[row]))
            missed = self.truth(image_index, [row])
            yield PicturePlan(
                kind="missed",
                image_index=image_index,
                text=f"{name} missed",
                left=Boxes(
                    label="missed", boxes_yxyx_rel=missed.boxes_yxyx_rel, class_ids=missed.class_ids, scores=None
                ),
                right=self.found(image_index),
            )

    def first(self, count: int) -> Iterator[PicturePlan]:
        for image_index in range(min(count, len(self._split.ground_truth))):
            truth, found = self.truth(image_index), self.found(image_index)
            text = f"{len(truth.class_ids)} labelled, {len(found.class_ids)} found"
            yield PicturePlan(kind="first", image_index=image_index, text=text, left=truth, right=found)

    def _rows(self, image: ImageDetections, rows: npt.NDArray[np.int64], label: str) -> Boxes:
        return Boxes(
            label=label,
            boxes_yxyx_rel=np.asarray(image.boxes_yxyx_rel, np.float64)[rows],
            class_ids=np.asarray(image.class_ids, np.int64)[rows],
            scores=np.asarray(image.scores, np.float64)[rows],
        )


def _surest_mistakes(errors: Sequence[DetectionError]) -> list[DetectionError]:
    wrong = [error for error in errors if error.score is not None and not error.is_on_crowd]
    return sorted(wrong, key=lambda error: -(error.score or 0))


def _largest_missed(candidate: Measurements, split: Split) -> list[tuple[int, int]]:
    """(image, row) of objects that no detection from the operating points on found, the largest of each image."""
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
    """Of the image's area."""
    ymin, xmin, ymax, xmax = np.asarray(truth.boxes_yxyx_rel, np.float64)[row]
    return float((ymax - ymin) * (xmax - xmin))


def _one_an_image(errors: Sequence[DetectionError], count: int) -> list[DetectionError]:
    first: Mapping[int, DetectionError] = {error.image_index: error for error in reversed(errors)}
    return [error for error in errors if first[error.image_index] is error][:count]


def _draw(image_rgb: npt.NDArray[np.uint8], boxes: Boxes, label_map: LabelMap) -> str:
    names = [label_map.name_of(int(class_id)) for class_id in boxes.class_ids]
    picture = draw_detections(image_rgb, boxes.boxes_yxyx_rel, boxes.class_ids, names, boxes.scores)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
