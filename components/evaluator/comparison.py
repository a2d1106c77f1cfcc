"""Candidate against baseline on the same images: by how much, how surely, and on which images."""

from collections.abc import Sequence
from dataclasses import dataclass

from detloom.components.evaluator.analysis.bootstrap import Interval, Resampled, resample
from detloom.components.evaluator.analysis.image_scores import ImageChange, find_changes, score_images
from detloom.components.evaluator.measurements import Measurements
from detloom.schemas.gates_config import BaselineGate
from detloom.schemas.label_map import LabelMap


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """AP with intervals, and the difference.

    Attributes:
        baseline, difference: None without a baseline.
        changes: images on which the two differ, from the greatest gain of the candidate to the greatest loss.
    """

    candidate: Resampled
    baseline: Resampled | None = None
    difference: Resampled | None = None
    changes: Sequence[ImageChange] = ()

    @property
    def ap_change(self) -> Interval | None:
        return self.difference.AP if self.difference else None


def compare(
    candidate: Measurements, baseline: Measurements | None, label_map: LabelMap, gate: BaselineGate
) -> Comparison:
    """Draw the images again and again, for both models alike."""
    models = [each.matches for each in (candidate, baseline) if each is not None]
    results = resample(models, label_map, num_resamples=gate.num_resamples, confidence=gate.confidence)
    if baseline is None:
        return Comparison(candidate=results[0])
    scores = [score_images(each.matches, each.min_scores) for each in (candidate, baseline)]
    return Comparison(
        candidate=results[0], baseline=results[1], difference=results[2], changes=tuple(find_changes(*scores))
    )
