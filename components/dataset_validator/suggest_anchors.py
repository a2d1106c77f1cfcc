"""Anchors made to measure: typical box shapes by k-means, and settings of the anchor generator that suit them."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.anchor_grid import best_anchor_iou
from detloom.schemas.model_config import MultiscaleAnchorGenerator

NUM_SHAPES = 9  # YOLOv3 (arXiv:1804.02767, 2.3) takes nine
_SEED = 20161225  # of the choice of the first centres; any number
_NUM_STARTS = 4
_MAX_ROUNDS = 100
_MAX_SEARCHED = 1000  # boxes that each candidate of the search is measured on
_MAX_RATIOS = 5
_MAX_SCALES = 4
_SCALES = tuple(round(2 ** (i / 4), 2) for i in range(15))  # anchor_scale from 1 to 11.31, four an octave

Shapes = npt.NDArray[np.float64]  # [N, 2] height, width


@dataclass(frozen=True)
class Fit:
    """How well anchors fit some boxes: the share with a best IoU of at least what was asked, and the mean best IoU."""

    recall: float
    mean_iou: float

    @property
    def score(self) -> float:
        return self.recall + self.mean_iou


@dataclass(frozen=True)
class Suggestion:
    """Settings that fit a sample better, and how well they and the configured ones do."""

    generator: MultiscaleAnchorGenerator
    fit: Fit
    configured_fit: Fit


def cluster_shapes(shapes_N2: npt.NDArray[Any], num_clusters: int = NUM_SHAPES) -> tuple[Shapes, float]:
    """[K, 2] typical shapes in order of area, and the mean IoU of the boxes with the best of them.

    K-means with the distance 1 - IoU of boxes with one centre: YOLO9000 (arXiv:1612.08242), section 2, "Dimension
    Clusters". The first centres are drawn by k-means++ with a fixed seed. Fewer than `num_clusters` where there are
    fewer different shapes. N must not be 0.
    """
    shapes = np.asarray(shapes_N2, np.float64)
    num_clusters = min(num_clusters, len(np.unique(shapes, axis=0)))
    rng = np.random.default_rng(_SEED)
    best: tuple[Shapes, float] | None = None
    for _ in range(_NUM_STARTS):
        centres = _draw_centres(shapes, num_clusters, rng)
        assigned = np.full(len(shapes), -1)
        for _ in range(_MAX_ROUNDS):
            nearest = shape_iou(shapes, centres).argmax(axis=1)
            if np.array_equal(nearest, assigned):
                break
            assigned = nearest
            centres = np.array(
                [
                    shapes[assigned == k].mean(axis=0) if (assigned == k).any() else centres[k]
                    for k in range(len(centres))
                ]
            )
        mean_iou = float(shape_iou(shapes, centres).max(axis=1).mean())
        if best is None or mean_iou > best[1]:
            best = centres[np.argsort(centres.prod(axis=1), kind="stable")], mean_iou
    assert best is not None
    return best


def shape_iou(shapes_N2: Shapes, centres_K2: Shapes) -> npt.NDArray[np.float64]:
    """[N, K] IoU of boxes with one centre."""
    shared = np.minimum(shapes_N2[:, np.newaxis], centres_K2[np.newaxis]).prod(axis=2)
    return shared / (shapes_N2.prod(axis=1)[:, np.newaxis] + centres_K2.prod(axis=1)[np.newaxis] - shared)


def suggest_anchors(
    configured: MultiscaleAnchorGenerator,
    boxes_yxyx_px_N4: npt.NDArray[Any],
    input_hw_N2: npt.NDArray[Any],
    min_iou: float,
) -> Suggestion:
    """The settings with the best sum of recall and mean IoU; the configured ones themselves where none are better.

    Tried are aspect ratios that are typical of the boxes (one to five), as many scales as leave no more anchors at a
    place than configured, and sizes a fourth of an octave apart. Neither number of what is suggested is the worse.
    """
    boxes, hw = np.asarray(boxes_yxyx_px_N4, np.float64), np.asarray(input_hw_N2)
    searched, searched_hw = boxes[:_MAX_SEARCHED], hw[:_MAX_SEARCHED]
    num_anchors = len(configured.aspect_ratios) * configured.scales_per_octave
    best, best_fit = configured, measure_fit(configured, searched, searched_hw, min_iou)
    for ratios in _typical_ratios(searched, min(num_anchors, _MAX_RATIOS)):
        for scale in _SCALES:
            candidate = dataclasses.replace(
                configured,
                anchor_scale=scale,
                aspect_ratios=ratios,
                scales_per_octave=min(num_anchors // len(ratios), _MAX_SCALES),
            )
            fit = measure_fit(candidate, searched, searched_hw, min_iou)
            if fit.score > best_fit.score:
                best, best_fit = candidate, fit
    fit, configured_fit = (measure_fit(generator, boxes, hw, min_iou) for generator in (best, configured))
    if fit.recall < configured_fit.recall or fit.mean_iou < configured_fit.mean_iou:
        return Suggestion(configured, configured_fit, configured_fit)
    return Suggestion(best, fit, configured_fit)


def measure_fit(
    generator: MultiscaleAnchorGenerator,
    boxes_yxyx_px_N4: npt.NDArray[Any],
    input_hw_N2: npt.NDArray[Any],
    min_iou: float,
) -> Fit:
    """N must not be 0."""
    ious = best_anchor_iou(generator, boxes_yxyx_px_N4, input_hw_N2)
    return Fit(float((ious >= min_iou).mean()), float(ious.mean()))


def _typical_ratios(boxes_yxyx_px_N4: Shapes, max_ratios: int) -> list[tuple[float, ...]]:
    """For each number of ratios the medians of as many equal parts of the boxes, by width / height."""
    sizes = boxes_yxyx_px_N4[:, 2:] - boxes_yxyx_px_N4[:, :2]
    logs = np.log(sizes[:, 1] / sizes[:, 0])
    found = []
    for number in range(1, max_ratios + 1):
        middles = np.quantile(logs, (np.arange(number) + 0.5) / number)
        ratios = tuple(sorted({float(f"{ratio:.2g}") for ratio in np.exp(middles)}))
        if ratios not in found:
            found.append(ratios)
    return found


def _draw_centres(shapes: Shapes, num_clusters: int, rng: np.random.Generator) -> Shapes:
    """K-means++: each next centre with a probability that grows with its squared distance from those that stand."""
    centres = [shapes[rng.integers(len(shapes))]]
    while len(centres) < num_clusters:
        distances = np.maximum(1 - shape_iou(shapes, np.array(centres)).max(axis=1), 0) ** 2
        total = distances.sum()
        if total <= 0:
            break
        centres.append(shapes[rng.choice(len(shapes), p=distances / total)])
    return np.array(centres)
