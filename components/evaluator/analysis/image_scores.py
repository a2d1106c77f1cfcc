"""How well a model did on each image, to find those that are worth looking at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detloom.components.evaluator.analysis.matches import IOU_50, Matches


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """Counts in one image at IoU 0.50, of detections from the operating points of their classes on."""

    num_true: int
    num_false: int
    num_missed: int

    @property
    def F1(self) -> float:
        """1 where there is nothing to find and nothing was found."""
        total = 2 * self.num_true + self.num_false + self.num_missed
        return 2 * self.num_true / total if total else 1.0


@dataclass(frozen=True, kw_only=True)
class ImageChange:
    """One image, and how two models did on it."""

    image_index: int
    candidate: ImageScore
    baseline: ImageScore

    @property
    def gain(self) -> float:
        """By how much the candidate's F1 is higher."""
        return self.candidate.F1 - self.baseline.F1


def score_images(matches: Matches, min_scores: Sequence[float]) -> list[ImageScore]:
    """One for each image; `min_scores` of each class decides which detections count."""
    num_images = matches.num_images
    is_used = matches.scores >= np.array([*min_scores, 0.0])[matches.found.class_index]
    is_true = is_used & matches.is_true_TN[IOU_50]
    is_false = is_used & ~matches.is_true_TN[IOU_50] & ~matches.is_ignored_TN[IOU_50]
    true_I = np.bincount(matches.found.image_index[is_true], minlength=num_images)
    false_I = np.bincount(matches.found.image_index[is_false], minlength=num_images)
    truth_I = np.bincount(matches.truth.image_index[~matches.is_crowd], minlength=num_images)
    return [
        ImageScore(num_true=int(true), num_false=int(false), num_missed=int(truth - true))
        for true, false, truth in zip(true_I, false_I, truth_I, strict=True)
    ]


def find_changes(candidate: Sequence[ImageScore], baseline: Sequence[ImageScore]) -> list[ImageChange]:
    """Images on which the two differ, the greatest gain first and the greatest loss last."""
    changes = [
        ImageChange(image_index=i, candidate=first, baseline=second)
        for i, (first, second) in enumerate(zip(candidate, baseline, strict=True))
        if first != second
    ]
    return sorted(changes, key=lambda change: (-change.gain, change.image_index))
