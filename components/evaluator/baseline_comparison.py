"""Compare candidate and baseline on the same images: differences, intervals, changed images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from detloom.components.evaluator.analysis.bootstrap import Interval, Resampled, resample
from detloom.components.evaluator.analysis.constant_detector import constant_detections
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.gates import BaselineGate
from detloom.trainer_module.evaluation.coco_images import ImageDetections
from detloom.trainer_module.evaluation.matches import IOU_50, Matches, match_detections

_MAX_CONSTANT = 5_000_000  # detections of the constant detector: 0.5 GB; 5,000 images with 80 classes have 4 million


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """Counts in one image at IoU 0.50, at the operating points of the classes."""

    num_true: int
    num_false: int
    num_missed: int

    @property
    def F1(self) -> float:
        """F1; 1 if the image has no objects and no detections."""
        total = 2 * self.num_true + self.num_false + self.num_missed
        return 2 * self.num_true / total if total else 1.0


@dataclass(frozen=True, kw_only=True)
class ImageChange:
    """Scores of two models on one image."""

    image_index: int
    candidate: ImageScore
    baseline: ImageScore

    @property
    def gain(self) -> float:
        """F1 of the candidate minus F1 of the baseline."""
        return self.candidate.F1 - self.baseline.F1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """AP of both models and their difference, with intervals.

    Attributes:
        compared: the candidate on the classes that are compared: those that both models have.
        baseline, difference: on these classes; None without a baseline.
        changes: images on which the models differ, from the candidate's greatest gain to its greatest loss.
    """

    candidate: Resampled
    compared: Resampled | None = None
    baseline: Resampled | None = None
    difference: Resampled | None = None
    changes: Sequence[ImageChange] = ()

    @property
    def ap_change(self) -> Interval | None:
        return self.difference.AP if self.difference else None


@dataclass(frozen=True, kw_only=True)
class SharedClasses:
    """The classes of a candidate that its baseline has, too, and the candidate's measurements on them alone."""

    label_map: LabelMap
    candidate: Measurements


def compare(
    candidate: Measurements,
    baseline: Measurements | None,
    label_map: LabelMap,
    gate: BaselineGate,
    shared: SharedClasses | None = None,
) -> Comparison:
    """Resample the images for both models, and compare the models on each image; see `assess` for `shared`."""
    if shared is not None and baseline is not None:
        result = compare(shared.candidate, baseline, shared.label_map, gate)
        return replace(result, candidate=compare(candidate, None, label_map, gate).candidate, changes=())
    models = [each.matches for each in (candidate, baseline) if each is not None]
    results = resample(models, label_map, num_resamples=gate.num_resamples, confidence=gate.confidence)
    if baseline is None:
        return Comparison(candidate=results[0])
    scores = [score_images(each.matches, each.min_scores) for each in (candidate, baseline)]
    return Comparison(
        candidate=results[0],
        compared=results[0],
        baseline=results[1],
        difference=results[2],
        changes=tuple(find_changes(*scores)),
    )


def compare_with_constant(
    candidate: Measurements, detections: Sequence[ImageDetections], split: Split, gate: BaselineGate
) -> Interval:
    """Return AP50 of the candidate minus that of the best detector that ignores the image, with its interval.

    In a large split, evenly spaced images are compared, on which the constant detector has `_MAX_CONSTANT` detections.

    Args:
        detections: the candidate's.
    """
    truth, label_map, matches = split.ground_truth, split.label_map, candidate.matches
    constant = constant_detections(truth, label_map)
    step = -(-len(truth) * len(constant.scores) // _MAX_CONSTANT)
    if step > 1:
        truth = truth[::step]
        matches = match_detections(truth, detections[::step], label_map)
    of_constant = match_detections(truth, [replace(constant, image_id=each.image_id) for each in truth], label_map)
    models, confidence = (matches, of_constant), gate.confidence
    return resample(models, split.label_map, num_resamples=gate.num_resamples, confidence=confidence)[-1].AP50


def score_images(matches: Matches, min_scores: Sequence[float]) -> list[ImageScore]:
    """Score each image, using detections with at least the score in `min_scores` of their class."""
    num_images = matches.num_images
    is_used = matches.scores >= np.array([*min_scores, 0.0])[matches.found.class_index]
    is_true = is_used & matches.is_true(IOU_50)
    is_false = is_used & ~matches.is_true(IOU_50) & ~matches.is_ignored(IOU_50)
    true_I = np.bincount(matches.found.image_index[is_true], minlength=num_images)
    false_I = np.bincount(matches.found.image_index[is_false], minlength=num_images)
    truth_I = np.bincount(matches.truth.image_index[~matches.is_crowd], minlength=num_images)
    return [
        ImageScore(num_true=int(true), num_false=int(false), num_missed=int(truth - true))
        for true, false, truth in zip(true_I, false_I, truth_I, strict=True)
    ]


def find_changes(candidate: Sequence[ImageScore], baseline: Sequence[ImageScore]) -> list[ImageChange]:
    """Return the images whose scores differ, from the greatest gain to the greatest loss."""
    changes = [
        ImageChange(image_index=i, candidate=first, baseline=second)
        for i, (first, second) in enumerate(zip(candidate, baseline, strict=True))
        if first != second
    ]
    return sorted(changes, key=lambda change: (-change.gain, change.image_index))
