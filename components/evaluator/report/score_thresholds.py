"""Precision, recall and F1 at any score threshold: counts for the page's slider, which need no detections."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.measurements import Measurements
from detloom.components.evaluator.report.page_parts import Json, change_of, columns_of, name_cell, number_cell
from detloom.components.pages.formats import format_count, format_signed
from detloom.schemas.contracts.arrays import Array, BoolArray, Float64Array, Int64Array
from detloom.trainer_module.evaluation.matches import IOU_50, Matches

# With 102 thresholds, 200 classes and 7 digits a count, two models take 0.7 MB; 80 classes of COCO take 0.1 MB.
MAX_CLASSES = 200
MIN_DRAWN_SCORE = 0.05  # detections below are not on the example images, unless the best F1 needs lower scores
_NUM_GRID_STEPS = 100
_START_WITHOUT_BEST = 0.5


@dataclass(frozen=True, eq=False)
class ScoreSteps:
    """The thresholds of one model's slider: 0, 0.01, ... 1 and the score of the best F1 over all classes.

    Scores outside of 0 to 1, which files may contain, widen the range.

    Attributes:
        thresholds: float64 [S], ascending.
        start: index of the best F1, or of 0.5 without true positives.
    """

    thresholds: Float64Array
    start: int

    @classmethod
    def of_model(cls, measured: Measurements) -> "ScoreSteps":
        best = measured.best_f1.min_score if measured.best_f1 else _START_WITHOUT_BEST
        scores = measured.matches.scores
        low, high = min(0.0, scores.min(initial=0.0)), max(1.0, scores.max(initial=0.0))
        grid = [low + (high - low) * (step / _NUM_GRID_STEPS) for step in range(_NUM_GRID_STEPS + 1)]
        thresholds = np.unique([*grid, best])
        return cls(thresholds, int(np.searchsorted(thresholds, best)))

    @property
    def start_score(self) -> float:
        return float(self.thresholds[self.start])

    def steps_of(self, scores: npt.ArrayLike) -> Int64Array:
        """Return the number of thresholds that each score reaches: at index `i`, those with more than `i` count."""
        steps: Int64Array = np.searchsorted(self.thresholds, np.asarray(scores, np.float64), side="right")
        return steps

    def labels(self) -> list[str]:
        texts = [f"{threshold:.2f}" for threshold in self.thresholds]
        texts[self.start] = f"{self.start_score:.3f}"
        return texts


@dataclass(frozen=True, eq=False, kw_only=True)
class StepCounts:
    """Counts at IoU 0.50 of all classes together (row 0) and of K classes.

    Attributes:
        num_truth: int [K + 1], objects other than crowds.
        num_true, num_false: int [K + 1, S], detections whose score reaches this threshold but not the next one.
    """

    num_truth: Int64Array
    num_true: Int64Array
    num_false: Int64Array

    def at(self, row: int, step: int) -> "Rates":
        num_true, num_false = int(self.num_true[row, step:].sum()), int(self.num_false[row, step:].sum())
        num_found, num_truth = num_true + num_false, int(self.num_truth[row])
        return Rates(
            num_true / num_found if num_found else None,
            num_true / num_truth if num_truth else None,
            2 * num_true / (num_found + num_truth) if num_found + num_truth else None,
        )

    def format(self) -> str:
        """Format as `objects|true,true,...|false,false,...;` for each row, without the digit 0 of a zero."""
        columns = zip(self.num_truth.tolist(), self.num_true.tolist(), self.num_false.tolist(), strict=True)
        return ";".join(f"{truth}|{_format_counts(true)}|{_format_counts(false)}" for truth, true, false in columns)


@dataclass(frozen=True)
class Rates:
    """Precision without detections, recall without objects and F1 without either are None."""

    precision: float | None
    recall: float | None
    F1: float | None


def count_steps(matches: Matches, steps: ScoreSteps, class_indices: Sequence[int]) -> StepCounts:
    """Count the matches of these classes by threshold. Detections on crowds are neither true nor false."""
    step_N = steps.steps_of(matches.scores) - 1
    shape = (matches.num_classes, len(steps.thresholds))

    def count(is_counted_N: BoolArray) -> Int64Array:
        counts = np.zeros(shape, np.int64)
        rows = is_counted_N & (step_N >= 0)
        np.add.at(counts, (matches.found.class_index[rows], step_N[rows]), 1)
        return _with_total(counts, class_indices)

    is_true, is_ignored = matches.is_true(IOU_50), matches.is_ignored(IOU_50)
    num_truth = np.bincount(matches.truth.class_index[~matches.is_crowd], minlength=matches.num_classes)
    return StepCounts(
        num_truth=_with_total(num_truth, class_indices),
        num_true=count(is_true),
        num_false=count(~is_true & ~is_ignored),
    )


def _with_total(counts: Array, class_indices: Sequence[int]) -> Int64Array:
    """Return the sum over all classes, then the counts of the chosen ones."""
    chosen: Int64Array = np.concatenate([counts.sum(axis=0, keepdims=True), counts[list(class_indices)]])
    return chosen


def _format_counts(counts: Sequence[int]) -> str:
    return ",".join(str(count) if count else "" for count in counts)


def threshold_view(evaluation: EvaluationResult) -> Json:
    """Build the sliders of the models and the table at their first thresholds; at most 200 classes."""
    names, models = ["Candidate"], [evaluation.candidate]
    if evaluation.baseline is not None:
        names, models = [*names, "Baseline"], [*models, evaluation.baseline]
    classes = evaluation.candidate.coco.per_class  # in the order of the label map
    chosen = sorted(range(len(classes)), key=lambda k: (-classes[k].num_boxes, k))[:MAX_CLASSES]
    if len(classes) <= MAX_CLASSES:
        chosen = list(range(len(classes)))
    steps = [ScoreSteps.of_model(model) for model in models]
    counts = [count_steps(model.matches, each, chosen) for model, each in zip(models, steps, strict=True)]
    rows = [
        _row(name, row, counts, steps) for row, name in enumerate(["All classes", *(classes[k].name for k in chosen)])
    ]
    titles = [f"{name}: {rate}" for name in names for rate in ("precision", "recall", "F1")]
    change = ["Change of F1"] if evaluation.baseline is not None else []
    return {
        "models": [
            {
                "name": name,
                "labels": each.labels(),
                "start": each.start,
                "has_best": model.best_f1 is not None,
                "counts": count.format(),
            }
            for name, model, each, count in zip(names, models, steps, counts, strict=True)
        ],
        "columns": columns_of("Class", "Objects", *titles, *change),
        "rows": rows if len(classes) > 1 else rows[:1],  # a single class would repeat the first row
        "num_more": len(classes) - len(chosen),
    }


def _row(name: str, row: int, counts: Sequence[StepCounts], steps: Sequence[ScoreSteps]) -> list[Json]:
    rates = [count.at(row, each.start) for count, each in zip(counts, steps, strict=True)]
    values = [number_cell(value) for each in rates for value in (each.precision, each.recall, each.F1)]
    change = [number_cell(change_of(rates[0].F1, rates[1].F1), format_signed)] if len(rates) > 1 else []
    return [name_cell(name), number_cell(int(counts[0].num_truth[row]), format_count), *values, *change]
