"""Measure how well the configured anchors fit the boxes of a data set, image by image, and suggest better ones.

A network learns a box only from anchors that overlap it; matching usually requires an IoU of 0.5.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from detloom.components.dataset_validator.statistics.model_input import best_anchor_iou
from detloom.components.similarity.image_hash import hash_text
from detloom.schemas.contracts.arrays import Array, Float32Array, Float64Array, Int64Array, Uint64Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import AnchorGenerator, MultiscaleAnchorGenerator

RECALL_IOU = 0.5
NUM_BINS = 20  # bins of the histogram, each 0.05 wide
SIZE_EDGES_PX = (8, 16, 32, 64, 128, 256, 512)  # square root of the area in the network's input
SAMPLE_SIZE = 2000  # boxes used for a suggestion: a recall of 0.8 is then accurate to within 0.02
MIN_GAIN = 0.02  # minimum gain of recall plus mean best IoU for a suggestion to be made
_MAX_PENDING = 4096  # boxes that are buffered and then measured together
_IOU_UNIT = 1 << 24  # IoUs are summed as integers, so that the sum does not depend on the order
_MAX_SEARCHED = 1000  # boxes used to evaluate each candidate of the search
_MAX_RATIOS = 5
_MAX_SCALES = 4
_SCALES = tuple(round(2 ** (i / 4), 2) for i in range(15))  # anchor_scale from 1 to 11.31, four per octave


def is_supported(generator: AnchorGenerator | None) -> TypeGuard[MultiscaleAnchorGenerator]:
    """Return True if `best_anchor_iou` supports this generator."""
    return isinstance(generator, MultiscaleAnchorGenerator)


@dataclass
class _Tally:
    """Number of boxes, number of boxes with a matching anchor, and the sum of best IoUs in units of 1 / _IOU_UNIT."""

    num_boxes: int = 0
    num_recalled: int = 0
    iou_sum: int = 0

    def add(self, other: "_Tally") -> None:
        self.num_boxes += other.num_boxes
        self.num_recalled += other.num_recalled
        self.iou_sum += other.iou_sum

    def to_dict(self) -> dict[str, Any]:
        """Return counts and rates; the rates are None without boxes."""
        number = self.num_boxes
        return {
            "num_boxes": number,
            "recall_at_50": self.num_recalled / number if number else None,
            "mean_best_iou": self.iou_sum / _IOU_UNIT / number if number else None,
        }


def _tally_by(keys_N: Int64Array, ious_N: Float64Array) -> dict[int, _Tally]:
    values, of_N = np.unique(keys_N, return_inverse=True)
    counts = np.bincount(of_N)
    recalled = np.bincount(of_N[ious_N >= RECALL_IOU], minlength=len(values))
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, of_N, np.rint(ious_N * _IOU_UNIT).astype(np.int64))
    return {int(v): _Tally(int(c), int(r), int(s)) for v, c, r, s in zip(values, counts, recalled, sums, strict=True)}


@dataclass
class _Sample:
    """The boxes with the smallest hashes, which do not depend on the workers. Columns of `rows`: box, input size."""

    hashes: Uint64Array = field(default_factory=lambda: np.zeros(0, np.uint64))
    rows: Float32Array = field(default_factory=lambda: np.zeros((0, 6), np.float32))

    def add(self, hashes: Uint64Array, rows: Float32Array) -> None:
        if len(self.hashes) == SAMPLE_SIZE:
            is_candidate = hashes <= self.hashes[-1]
            hashes, rows = hashes[is_candidate], rows[is_candidate]
        hashes, rows = np.concatenate([self.hashes, hashes]), np.concatenate([self.rows, rows])
        order = np.lexsort((*rows.T, hashes))[:SAMPLE_SIZE]
        self.hashes, self.rows = hashes[order], rows[order]


class AnchorFit:
    """Best IoUs of boxes with the anchors of one generator; `add` takes one image, `merge` another part of the data.

    Its size does not depend on the number of boxes, and its result does not depend on their order or partition.
    """

    def __init__(self, generator: MultiscaleAnchorGenerator) -> None:
        self.generator = generator
        self._histogram = np.zeros(NUM_BINS, np.int64)
        self._by_class_id: dict[int, _Tally] = {}
        self._by_size: dict[int, _Tally] = {}
        self._sample = _Sample()
        self._pending: list[tuple[int, Array, Array, tuple[int, int]]] = []
        self._num_pending = 0

    def add(self, record_key: str, boxes_yxyx_px_N4: Array, class_ids_N: Array, input_hw: tuple[int, int]) -> None:
        """Add the boxes of one image, in pixels of the network's input; each box has an area."""
        if len(boxes_yxyx_px_N4):
            self._pending.append((hash_text(record_key), boxes_yxyx_px_N4, class_ids_N, input_hw))
            self._num_pending += len(boxes_yxyx_px_N4)
            if self._num_pending >= _MAX_PENDING:
                self._measure_pending()

    def merge(self, other: "AnchorFit") -> None:
        assert self.generator == other.generator
        self._measure_pending()
        other._measure_pending()
        self._histogram += other._histogram
        for mine, theirs in ((self._by_class_id, other._by_class_id), (self._by_size, other._by_size)):
            for key, tally in theirs.items():
                mine.setdefault(key, _Tally()).add(tally)
        self._sample.add(other._sample.hashes, other._sample.rows)

    def to_plain(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return JSON values and arrays for `of_plain`."""
        self._measure_pending()
        tallies = {
            name: [[key, *dataclasses.astuple(tally)] for key, tally in by_key.items()]
            for name, by_key in (("by_class_id", self._by_class_id), ("by_size", self._by_size))
        }
        return tallies, {"histogram": self._histogram, "hashes": self._sample.hashes, "boxes": self._sample.rows}

    @classmethod
    def of_plain(
        cls, generator: AnchorGenerator | None, plain: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> "AnchorFit":
        if not is_supported(generator):
            raise ValueError("a comparison with anchors that was not requested")
        fit = cls(generator)
        for by_key, rows in ((fit._by_class_id, plain["by_class_id"]), (fit._by_size, plain["by_size"])):
            by_key.update({int(key): _Tally(*map(int, counts)) for key, *counts in rows})
        fit._histogram += arrays["histogram"]
        fit._sample = _Sample(arrays["hashes"], arrays["boxes"])
        return fit

    def total(self) -> dict[str, Any]:
        """Return `num_boxes`, `recall_at_50` and `mean_best_iou`; the rates are None without boxes."""
        self._measure_pending()
        total = _Tally()
        for tally in self._by_size.values():
            total.add(tally)
        return total.to_dict()

    def to_dict(self, label_map: LabelMap) -> dict[str, Any]:
        """Return all results as JSON values, including the suggestion, which takes about a second."""
        total = self.total()
        lows = (0, *SIZE_EDGES_PX)
        names = [f"{low}-{high}" for low, high in zip(lows, SIZE_EDGES_PX, strict=False)] + [f"{lows[-1]}+"]
        return {
            **total,
            "histogram": {
                "bins": [f"{i / NUM_BINS:.2f}-{(i + 1) / NUM_BINS:.2f}" for i in range(NUM_BINS)],
                "counts": self._histogram.tolist(),
                "unit": "IoU with the best anchor",
            },
            "by_class": [
                {"name": label_map.name_of(class_id), **self._by_class_id[class_id].to_dict()}
                for class_id in sorted(self._by_class_id)
            ],
            "by_size": [{"size_px": names[i], **tally.to_dict()} for i, tally in sorted(self._by_size.items())],
            "configured": _describe(self.generator),
            "suggestion": self._describe_better(),
        }

    def _describe_better(self) -> dict[str, Any] | None:
        boxes, hw = self._sample.rows[:, :4].astype(np.float64), self._sample.rows[:, 4:].astype(np.int64)
        if not len(boxes):
            return None
        suggestion = suggest_anchors(self.generator, boxes, hw, RECALL_IOU)
        if suggestion.fit.score - suggestion.configured_fit.score < MIN_GAIN:
            return None
        return {
            **_describe(suggestion.generator),
            "recall_at_50": suggestion.fit.recall,
            "mean_best_iou": suggestion.fit.mean_iou,
            "configured_recall_at_50": suggestion.configured_fit.recall,
            "configured_mean_best_iou": suggestion.configured_fit.mean_iou,
        }

    def _measure_pending(self) -> None:
        if not self._pending:
            return
        key_hashes, boxes_of, ids_of, hw_of = zip(*self._pending, strict=True)
        self._pending, self._num_pending = [], 0
        lengths = np.array([len(boxes) for boxes in boxes_of])
        boxes = np.concatenate(boxes_of).astype(np.float64)
        input_hw = np.repeat(np.array(hw_of, np.int64), lengths, axis=0)
        ious = np.clip(best_anchor_iou(self.generator, boxes, input_hw), 0, 1)
        self._histogram += np.bincount(np.minimum((ious * NUM_BINS).astype(np.int64), NUM_BINS - 1), minlength=NUM_BINS)
        sizes_px = np.sqrt((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))
        size_bins = np.searchsorted(SIZE_EDGES_PX, sizes_px, side="right")
        for tallies, keys in ((self._by_size, size_bins), (self._by_class_id, np.concatenate(ids_of).astype(np.int64))):
            for key, tally in _tally_by(keys, ious).items():
                tallies.setdefault(key, _Tally()).add(tally)
        positions = np.arange(len(boxes)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        hashes = _mix(np.repeat(np.array(key_hashes, np.uint64), lengths), positions.astype(np.uint64))
        self._sample.add(hashes, np.concatenate([boxes, input_hw], axis=1).astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        self._measure_pending()
        return self.__dict__


def _mix(seeds: Uint64Array, positions: Uint64Array) -> Uint64Array:
    """A hash of each pair: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state = seeds + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _describe(generator: MultiscaleAnchorGenerator) -> dict[str, Any]:
    return {
        "anchor_scale": generator.anchor_scale,
        "aspect_ratios": list(generator.aspect_ratios),
        "scales_per_octave": generator.scales_per_octave,
        "min_level": generator.min_level,
        "max_level": generator.max_level,
    }


@dataclass(frozen=True)
class Fit:
    """Fit of anchors to boxes: the share of boxes whose best IoU reaches a minimum, and the mean best IoU."""

    recall: float
    mean_iou: float

    @property
    def score(self) -> float:
        return self.recall + self.mean_iou


@dataclass(frozen=True)
class Suggestion:
    """Suggested settings, their fit on a sample of boxes, and the fit of the configured settings."""

    generator: MultiscaleAnchorGenerator
    fit: Fit
    configured_fit: Fit


def suggest_anchors(
    configured: MultiscaleAnchorGenerator,
    boxes_yxyx_px_N4: Array,
    input_hw_N2: Array,
    min_iou: float,
) -> Suggestion:
    """Return the settings with the best sum of recall and mean IoU, or the configured ones if none are better.

    The search covers one to five typical aspect ratios of the boxes, as many scales as keep the number of anchors per
    location at or below the configured one, and sizes in steps of a quarter octave. A suggestion is not worse in recall
    or in mean IoU.
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
    boxes_yxyx_px_N4: Array,
    input_hw_N2: Array,
    min_iou: float,
) -> Fit:
    """Measure the fit of a generator's anchors; N must not be 0."""
    ious = best_anchor_iou(generator, boxes_yxyx_px_N4, input_hw_N2)
    return Fit(float((ious >= min_iou).mean()), float(ious.mean()))


def _typical_ratios(boxes_yxyx_px_N4: Float64Array, max_ratios: int) -> list[tuple[float, ...]]:
    """Return one tuple per number of ratios: the medians of that many equal parts of the boxes, by width / height."""
    sizes = boxes_yxyx_px_N4[:, 2:] - boxes_yxyx_px_N4[:, :2]
    logs = np.log(sizes[:, 1] / sizes[:, 0])
    found = []
    for number in range(1, max_ratios + 1):
        middles = np.quantile(logs, (np.arange(number) + 0.5) / number)
        ratios = tuple(sorted({float(f"{ratio:.2g}") for ratio in np.exp(middles)}))
        if ratios not in found:
            found.append(ratios)
    return found
