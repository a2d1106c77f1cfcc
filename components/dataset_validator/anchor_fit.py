"""How well the configured anchors fit the boxes of a data set, gathered picture by picture, and what would fit better.

A network learns a box only from anchors that overlap it: matching asks for an IoU of 0.5 as a rule.
"""

from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.anchor_grid import best_anchor_iou
from detloom.components.dataset_validator.image_hash import hash_text
from detloom.components.dataset_validator.suggest_anchors import Suggestion, cluster_shapes, suggest_anchors
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import AnchorGenerator, MultiscaleAnchorGenerator

RECALL_IOU = 0.5
NUM_BINS = 20  # of the histogram, each 0.05 wide
SIZE_EDGES_PX = (8, 16, 32, 64, 128, 256, 512)  # square root of the area in the network's input
SAMPLE_SIZE = 2000  # boxes that a suggestion rests on: a recall of 0.8 is then known to within 0.02
MIN_GAIN = 0.02  # of recall and mean best IoU together, below which a suggestion is not worth a change
_MAX_WAITING = 4096  # boxes that are gathered and then measured together
_IOU_UNIT = 1 << 24  # IoUs are summed as integers, so that no order of adding changes the sum


def is_supported(generator: AnchorGenerator | None) -> TypeGuard[MultiscaleAnchorGenerator]:
    """Whether `anchor_grid.py` knows the best of this generator's anchors."""
    return isinstance(generator, MultiscaleAnchorGenerator)


@dataclass
class _Tally:
    """Of some boxes: how many, how many with a fitting anchor, and the sum of best IoUs in units of 1 / _IOU_UNIT."""

    num_boxes: int = 0
    num_recalled: int = 0
    iou_sum: int = 0

    def add(self, other: "_Tally") -> None:
        self.num_boxes += other.num_boxes
        self.num_recalled += other.num_recalled
        self.iou_sum += other.iou_sum

    def to_dict(self) -> dict[str, Any]:
        """Rates are None where there is no box."""
        number = self.num_boxes
        return {
            "num_boxes": number,
            "recall_at_50": self.num_recalled / number if number else None,
            "mean_best_iou": self.iou_sum / _IOU_UNIT / number if number else None,
        }


def _tally_by(keys_N: npt.NDArray[np.int64], ious_N: npt.NDArray[np.float64]) -> dict[int, _Tally]:
    values, of_N = np.unique(keys_N, return_inverse=True)
    counts = np.bincount(of_N)
    recalled = np.bincount(of_N[ious_N >= RECALL_IOU], minlength=len(values))
    sums = np.zeros(len(values), np.int64)
    np.add.at(sums, of_N, np.rint(ious_N * _IOU_UNIT).astype(np.int64))
    return {int(v): _Tally(int(c), int(r), int(s)) for v, c, r, s in zip(values, counts, recalled, sums, strict=True)}


@dataclass
class _Sample:
    """The boxes with the smallest hashes: the same ones whoever gathered them. Columns of `rows`: box, input size."""

    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    rows: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 6), np.float32))

    def add(self, hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.float32]) -> None:
        if len(self.hashes) == SAMPLE_SIZE:
            is_candidate = hashes <= self.hashes[-1]
            hashes, rows = hashes[is_candidate], rows[is_candidate]
        hashes, rows = np.concatenate([self.hashes, hashes]), np.concatenate([self.rows, rows])
        order = np.lexsort((*rows.T, hashes))[:SAMPLE_SIZE]
        self.hashes, self.rows = hashes[order], rows[order]


class AnchorFit:
    """Best IoUs of boxes with the anchors of one generator; `add` takes one picture, `merge` another part of the data.

    Its size does not depend on the number of boxes, and its result neither on their order nor on the parts.
    """

    def __init__(self, generator: MultiscaleAnchorGenerator) -> None:
        self.generator = generator
        self._histogram = np.zeros(NUM_BINS, np.int64)
        self._by_class_id: dict[int, _Tally] = {}
        self._by_size: dict[int, _Tally] = {}
        self._sample = _Sample()
        self._waiting: list[tuple[int, npt.NDArray[Any], npt.NDArray[Any], tuple[int, int]]] = []
        self._num_waiting = 0

    def add(
        self,
        record_key: str,
        boxes_yxyx_px_N4: npt.NDArray[Any],
        class_ids_N: npt.NDArray[Any],
        input_hw: tuple[int, int],
    ) -> None:
        """Add the boxes of one picture, in pixels of the network's input; each has an area."""
        if len(boxes_yxyx_px_N4):
            self._waiting.append((hash_text(record_key), boxes_yxyx_px_N4, class_ids_N, input_hw))
            self._num_waiting += len(boxes_yxyx_px_N4)
            if self._num_waiting >= _MAX_WAITING:
                self._measure_waiting()

    def merge(self, other: "AnchorFit") -> None:
        assert self.generator == other.generator
        self._measure_waiting()
        other._measure_waiting()
        self._histogram += other._histogram
        for mine, theirs in ((self._by_class_id, other._by_class_id), (self._by_size, other._by_size)):
            for key, tally in theirs.items():
                mine.setdefault(key, _Tally()).add(tally)
        self._sample.add(other._sample.hashes, other._sample.rows)

    def total(self) -> dict[str, Any]:
        """`num_boxes`, `recall_at_50`, `mean_best_iou`; the rates are None without boxes."""
        self._measure_waiting()
        total = _Tally()
        for tally in self._by_size.values():
            total.add(tally)
        return total.to_dict()

    def to_dict(self, label_map: LabelMap) -> dict[str, Any]:
        """Everything as JSON, suggestion included, which takes about a second."""
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
            **self._describe_better(),
        }

    def _describe_better(self) -> dict[str, Any]:
        boxes, hw = self._sample.rows[:, :4].astype(np.float64), self._sample.rows[:, 4:].astype(np.int64)
        if not len(boxes):
            return {"shapes": None, "suggestion": None}
        centres, mean_iou = cluster_shapes(boxes[:, 2:] - boxes[:, :2])
        suggestion = suggest_anchors(self.generator, boxes, hw, RECALL_IOU)
        return {
            "shapes": {
                "num_sampled": len(boxes),
                "shapes_hw_px": [[round(float(h), 1), round(float(w), 1)] for h, w in centres],
                "mean_best_iou": mean_iou,
            },
            "suggestion": _describe_suggestion(suggestion) if _gain(suggestion) >= MIN_GAIN else None,
        }

    def _measure_waiting(self) -> None:
        if not self._waiting:
            return
        key_hashes, boxes_of, ids_of, hw_of = zip(*self._waiting, strict=True)
        self._waiting, self._num_waiting = [], 0
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
        self._measure_waiting()
        return self.__dict__


def _mix(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each pair: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    state = seeds + (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _gain(suggestion: Suggestion) -> float:
    return suggestion.fit.score - suggestion.configured_fit.score


def _describe(generator: MultiscaleAnchorGenerator) -> dict[str, Any]:
    return {
        "anchor_scale": generator.anchor_scale,
        "aspect_ratios": list(generator.aspect_ratios),
        "scales_per_octave": generator.scales_per_octave,
        "min_level": generator.min_level,
        "max_level": generator.max_level,
    }


def _describe_suggestion(suggestion: Suggestion) -> dict[str, Any]:
    return {
        **_describe(suggestion.generator),
        "recall_at_50": suggestion.fit.recall,
        "mean_best_iou": suggestion.fit.mean_iou,
        "configured_recall_at_50": suggestion.configured_fit.recall,
        "configured_mean_best_iou": suggestion.configured_fit.mean_iou,
    }
