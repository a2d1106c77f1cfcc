"""Statistics of one split in one pass, mergeable: no TFX, no Beam."""

import bisect
import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

# Upper edges in pixels of the histogram of box sizes (square root of the area); COCO's small / medium / large are cut
# at 32 and 96.
BOX_SIZE_EDGES_PX = (8, 16, 32, 64, 96, 128, 256, 512)
# Boxes per image: 0, 1, 2-4, 5-9, ...
BOX_COUNT_EDGES = (0, 1, 4, 9, 19, 49, 99)
MAX_OFFENDERS = 10  # record keys kept for each problem: the first in order, whatever the workers


@dataclass
class Offenders:
    """How often a problem occurred, and the first record keys that have it."""

    count: int = 0
    record_keys: list[str] = field(default_factory=list)

    def add(self, count: int, record_keys: Iterable[str]) -> None:
        self.count += count
        self.record_keys = heapq.nsmallest(MAX_OFFENDERS, {*self.record_keys, *record_keys})


@dataclass
class SplitStatistics:
    """Counts of one split; `update` takes one example, `merge` another part of the same split.

    Attributes:
        boxes_by_class_id: number of boxes.
        images_by_class_id: number of images with at least one such box.
        box_problems: by kind of problem, a sentence's noun.
    """

    num_examples: int = 0
    num_without_boxes: int = 0
    num_boxes: int = 0
    num_crowd: int = 0
    num_difficult: int = 0
    boxes_by_class_id: Counter[int] = field(default_factory=Counter)
    images_by_class_id: Counter[int] = field(default_factory=Counter)
    box_sizes: Counter[int] = field(default_factory=Counter)
    box_counts: Counter[int] = field(default_factory=Counter)
    unreadable: Offenders = field(default_factory=Offenders)
    box_problems: dict[str, Offenders] = field(default_factory=dict)
    class_id_offenders: dict[int, Offenders] = field(default_factory=dict)

    def add_unreadable(self, record_key: str) -> None:
        """Count a record that cannot be used at all; it is not in `num_examples`."""
        self.unreadable.add(1, [record_key])

    def update(
        self,
        record_key: str,
        image_hw: tuple[int, int],
        boxes_yxyx_rel_N4: np.ndarray,
        class_ids_N: np.ndarray,
        known_ids: frozenset[int],
        *,
        num_crowd: int = 0,
        num_difficult: int = 0,
    ) -> None:
        """Add one image. Sizes are counted for sound boxes only."""
        num_boxes = len(boxes_yxyx_rel_N4)
        self.num_examples += 1
        self.num_without_boxes += num_boxes == 0
        self.num_boxes += num_boxes
        self.num_crowd += num_crowd
        self.num_difficult += num_difficult
        self.box_counts[bisect.bisect_left(BOX_COUNT_EDGES, num_boxes)] += 1
        class_ids = [int(class_id) for class_id in class_ids_N]
        self.boxes_by_class_id.update(class_ids)
        self.images_by_class_id.update(set(class_ids))
        for class_id in set(class_ids) - known_ids:
            self.class_id_offenders.setdefault(class_id, Offenders()).add(class_ids.count(class_id), [record_key])
        for box in np.asarray(boxes_yxyx_rel_N4, np.float64):
            problem = find_box_problem(box)
            if problem:
                self.box_problems.setdefault(problem, Offenders()).add(1, [record_key])
            else:
                size_px = math.sqrt((box[2] - box[0]) * image_hw[0] * (box[3] - box[1]) * image_hw[1])
                self.box_sizes[bisect.bisect_right(BOX_SIZE_EDGES_PX, size_px)] += 1

    def merge(self, other: "SplitStatistics") -> None:
        for name in ("num_examples", "num_without_boxes", "num_boxes", "num_crowd", "num_difficult"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("boxes_by_class_id", "images_by_class_id", "box_sizes", "box_counts"):
            getattr(self, name).update(getattr(other, name))
        self.unreadable.add(other.unreadable.count, other.unreadable.record_keys)
        for problem, offenders in other.box_problems.items():
            self.box_problems.setdefault(problem, Offenders()).add(offenders.count, offenders.record_keys)
        for class_id, offenders in other.class_id_offenders.items():
            self.class_id_offenders.setdefault(class_id, Offenders()).add(offenders.count, offenders.record_keys)


def find_box_problem(box_yxyx_rel: np.ndarray) -> str | None:
    """What is wrong with one box, or None."""
    ymin, xmin, ymax, xmax = (float(value) for value in box_yxyx_rel)
    if not all(math.isfinite(value) for value in (ymin, xmin, ymax, xmax)):
        return "not finite"
    if ymin > ymax or xmin > xmax:
        return "inverted"
    if ymin == ymax or xmin == xmax:
        return "without area"
    if min(ymin, xmin) < 0.0 or max(ymax, xmax) > 1.0:
        return "outside 0 to 1"
    return None


def bin_names(edges: tuple[int, ...], *, is_count: bool) -> list[str]:
    """Names of the histogram's bins; counts have inclusive upper edges, sizes exclusive ones."""
    lows = (0, *(edge + 1 if is_count else edge for edge in edges))
    names = []
    for low, edge in zip(lows, edges, strict=False):
        names.append(str(low) if is_count and low == edge else f"{low}-{edge}")
    return [*names, f"{lows[len(edges)]}+"]
