"""Collect the statistics of one split in one pass; mergeable and of bounded size. No TFX, no Beam."""

import functools
import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.statistics.box_overlap import count_repeated_boxes
from detloom.components.dataset_validator.statistics.model_input import ModelInput, boxes_in_input, resize_geometry
from detloom.schemas.contracts.arrays import BoolArray, Float64Array, Int64Array
from detloom.schemas.run_file.data_checks import HugeBoxCheck, OverlapCheck, TinyBoxCheck

# Bin edges of box sizes in pixels (square root of the area); 32 and 96 separate COCO's small, medium and large.
BOX_SIZE_EDGES_PX = (8, 16, 32, 64, 96, 128, 256, 512)
BOX_SIDE_EDGES_PX = (2, 4, 8, 16, 32, 64, 128, 256)
BOX_AREA_EDGES = tuple(2.0**exponent for exponent in range(-14, 0))  # share of the image
ASPECT_EDGES = (0.125, 0.25, 0.5, 0.8, 1.25, 2, 4, 8)  # width / height; the bin around 1 is nearly square
IMAGE_SIZE_EDGES_PX = (128, 256, 512, 1024, 2048, 4096, 8192)
BOX_COUNT_EDGES = (0, 1, 4, 9, 19, 49, 99)  # boxes per image: 0, 1, 2-4, 5-9, ...
POSITION_CELLS = 8  # rows and columns of the grid of box centres
MAX_OFFENDERS = 10  # record keys kept per problem: the first in sort order, independent of the workers
MAX_UNKNOWN_IDS = 1000  # class ids missing from the label map that are counted individually
OTHER_ID = -(2**63)  # counts all further unknown class ids together


class Histogram:
    """Counts of values between edges.

    Attributes:
        edges: ascending; one more bin is below the first edge and one above the last.
        counts_Q: counts by bin, one more than edges.
        is_count: if True, values are integers and an edge is the largest value of its bin; otherwise an edge belongs to
            the bin above it.
    """

    def __init__(self, edges: Sequence[float], *, is_count: bool = False) -> None:
        self.edges = np.array(edges, np.float64)
        self.is_count = is_count
        self.counts_Q = np.zeros(len(edges) + 1, np.int64)

    def add(self, values_N: npt.NDArray[np.number[Any]]) -> None:
        bins = self.edges.searchsorted(values_N, side="left" if self.is_count else "right")
        self.counts_Q += np.bincount(bins, minlength=len(self.counts_Q))

    def add_one(self, value: float) -> None:
        self.counts_Q[self.edges.searchsorted(value, side="left" if self.is_count else "right")] += 1

    def merge(self, other: "Histogram") -> None:
        self.counts_Q += other.counts_Q

    def bin_names(self) -> list[str]:
        names = []
        edges = [int(edge) if self.is_count else edge for edge in self.edges]
        for index, edge in enumerate(edges):
            low = edges[index - 1] + (1 if self.is_count else 0) if index else 0
            names.append(
                _bin_edge_text(low)
                if self.is_count and low == edge
                else f"{_bin_edge_text(low)}-{_bin_edge_text(edge)}"
            )
        return [*names, f"{_bin_edge_text(edges[-1] + (1 if self.is_count else 0))}+"]

    def to_dict(self, unit: str) -> dict[str, Any]:
        return {"bins": self.bin_names(), "counts": self.counts_Q.tolist(), "unit": unit}


def _bin_edge_text(value: float) -> str:
    if 0 < value < 1 and (1 / value).is_integer():
        return f"1/{round(1 / value)}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


@dataclass(frozen=True)
class BoxLimits:
    """Limits for tiny, huge and overlapping boxes; the fields are those of the checks.

    Attributes:
        min_side_px, max_area: apply after resizing, so only if `model_input` is given.
        min_iou: None does not search for overlapping boxes.
    """

    model_input: ModelInput | None = None
    min_side_px: float = TinyBoxCheck.min_side_px
    max_area: float = HugeBoxCheck.max_area
    min_iou: float | None = OverlapCheck.min_iou


@dataclass(frozen=True)
class ImageLabels:
    """Labels of one example, with boxes relative to the image."""

    record_key: str
    image_hw: tuple[int, int]
    boxes_yxyx_rel_N4: Float64Array
    class_ids_N: Int64Array
    is_crowd_N: BoolArray
    num_difficult: int = 0

    @functools.cached_property
    def is_valid_N(self) -> BoolArray:
        """True for boxes that are finite, not inverted, have an area and are inside 0 to 1."""
        ymin, xmin, ymax, xmax = self.boxes_yxyx_rel_N4.T
        return (ymin >= 0) & (xmin >= 0) & (ymin < ymax) & (xmin < xmax) & (ymax <= 1) & (xmax <= 1)

    @functools.cached_property
    def is_object_N(self) -> BoolArray:
        """True for valid boxes that are not crowds."""
        return self.is_valid_N & ~self.is_crowd_N


@dataclass
class Offenders:
    """Number of occurrences of a problem, and the first record keys that have it."""

    count: int = 0
    record_keys: list[str] = field(default_factory=list)

    def add(self, count: int, record_keys: Iterable[str]) -> None:
        self.count += count
        self.record_keys = heapq.nsmallest(MAX_OFFENDERS, {*self.record_keys, *record_keys})


@dataclass(eq=False)
class SplitStatistics:
    """Counts of one split; `update` adds one example, `merge` adds another part of the same split.

    Size histograms contain valid boxes only; objects are valid boxes that are not crowds.

    Attributes:
        boxes_by_class_id: number of boxes.
        images_by_class_id: number of images with at least one box of the class.
        box_problems: invalid boxes by problem; the key is readable text.
        findings: affected boxes or images by check name.
        positions: box centres in a coarse grid over the image, row by row from the top.
        num_undecodable: images that were not decoded, including those with too many pixels.
        num_expected_shards, num_missing_shards: derived from the numbers in the file names.
        min_hw, max_hw: smallest and largest height and width, each side separately; (0, 0) without images.
    """

    num_examples: int = 0
    num_without_boxes: int = 0
    num_boxes: int = 0
    num_sound_boxes: int = 0
    num_objects: int = 0
    num_crowd: int = 0
    num_difficult: int = 0
    num_undecodable: int = 0
    num_expected_shards: int = 0
    num_missing_shards: int = 0
    num_damaged_shards: int = 0
    boxes_by_class_id: Counter[int] = field(default_factory=Counter)
    images_by_class_id: Counter[int] = field(default_factory=Counter)
    unreadable: Offenders = field(default_factory=Offenders)
    box_problems: dict[str, Offenders] = field(default_factory=dict)
    class_id_offenders: dict[int, Offenders] = field(default_factory=dict)
    findings: dict[str, Offenders] = field(default_factory=dict)
    boxes_per_image: Histogram = field(default_factory=lambda: Histogram(BOX_COUNT_EDGES, is_count=True))
    box_sizes_px: Histogram = field(default_factory=lambda: Histogram(BOX_SIZE_EDGES_PX))
    box_sizes_input_px: Histogram = field(default_factory=lambda: Histogram(BOX_SIZE_EDGES_PX))
    box_sides_input_px: Histogram = field(default_factory=lambda: Histogram(BOX_SIDE_EDGES_PX))
    box_areas_rel: Histogram = field(default_factory=lambda: Histogram(BOX_AREA_EDGES))
    box_aspect_ratios: Histogram = field(default_factory=lambda: Histogram(ASPECT_EDGES))
    image_sizes_px: Histogram = field(default_factory=lambda: Histogram(IMAGE_SIZE_EDGES_PX))
    image_aspect_ratios: Histogram = field(default_factory=lambda: Histogram(ASPECT_EDGES))
    positions: Histogram = field(
        default_factory=lambda: Histogram(range(POSITION_CELLS**2 - 1), is_count=True)  # one bin per cell
    )
    min_hw: tuple[int, int] = (0, 0)
    max_hw: tuple[int, int] = (0, 0)

    def offenders(self, check: str) -> Offenders:
        """Return the boxes or images that the check affects."""
        return self.findings.get(check, Offenders())

    def add_unreadable(self, record_key: str) -> None:
        """Count a record that cannot be used; `num_examples` does not include it."""
        self.unreadable.add(1, [record_key])

    def add_undecodable(self, record_key: str, *, is_too_large: bool) -> None:
        """Count an image that was not decoded; one that is merely too large is not reported as a finding."""
        self.num_undecodable += 1
        if not is_too_large:
            self.findings.setdefault("undecodable_images", Offenders()).add(1, [record_key])

    def update(
        self, labels: ImageLabels, known_ids: frozenset[int], limits: BoxLimits = BoxLimits()
    ) -> tuple[str, ...]:
        """Add one image and return the names of the checks that it affects."""
        num_boxes = len(labels.class_ids_N)
        self._count_image(labels, num_boxes)
        if not num_boxes:
            return ()
        problems = [*self._count_classes(labels, known_ids)]
        boxes_N4 = labels.boxes_yxyx_rel_N4
        if not labels.is_valid_N.all():
            problems.append("boxes")
            for name, count in Counter(map(find_box_problem, boxes_N4[~labels.is_valid_N].tolist())).items():
                self.box_problems.setdefault(name, Offenders()).add(count, [labels.record_key])
            boxes_N4 = boxes_N4[labels.is_valid_N]
        self.num_sound_boxes += len(boxes_N4)
        self._count_boxes(boxes_N4, labels.image_hw)
        return *problems, *self._count_objects(labels, limits)

    def _count_image(self, labels: ImageLabels, num_boxes: int) -> None:
        height, width = labels.image_hw
        if self.num_examples:
            self.min_hw = min(self.min_hw[0], height), min(self.min_hw[1], width)
        else:
            self.min_hw = height, width
        self.max_hw = max(self.max_hw[0], height), max(self.max_hw[1], width)
        self.num_examples += 1
        self.num_without_boxes += num_boxes == 0
        self.num_boxes += num_boxes
        self.num_crowd += int(labels.is_crowd_N.sum())
        self.num_difficult += labels.num_difficult
        self.boxes_per_image.add_one(num_boxes)
        self.image_sizes_px.add_one(max(height, width))
        self.image_aspect_ratios.add_one(width / height)

    def _count_classes(self, labels: ImageLabels, known_ids: frozenset[int]) -> Iterable[str]:
        counts = Counter(labels.class_ids_N.tolist())
        self.boxes_by_class_id.update(counts)
        self.images_by_class_id.update(counts.keys())
        unknown = counts.keys() - known_ids
        for class_id in unknown:
            offenders = self.class_id_offenders.setdefault(class_id, Offenders())
            offenders.add(counts[class_id], [labels.record_key])
        self._limit_unknown_ids()
        if unknown:
            yield "class_ids"

    def _limit_unknown_ids(self) -> None:
        """Keep the lowest unknown ids and count the rest as OTHER_ID, so that the order of merging does not matter."""
        surplus = len(self.class_id_offenders) - MAX_UNKNOWN_IDS
        if surplus > 0:
            individual = {class_id for class_id in self.class_id_offenders if class_id != OTHER_ID}
            for class_id in heapq.nlargest(surplus, individual):
                offenders = self.class_id_offenders.pop(class_id)
                self.class_id_offenders.setdefault(OTHER_ID, Offenders()).add(offenders.count, offenders.record_keys)
                for counter in (self.boxes_by_class_id, self.images_by_class_id):
                    counter[OTHER_ID] += counter.pop(class_id)

    def _count_boxes(self, boxes_yxyx_rel_N4: Float64Array, image_hw: tuple[int, int]) -> None:
        ymin, xmin, ymax, xmax = boxes_yxyx_rel_N4.T
        height, width = ymax - ymin, xmax - xmin
        area = height * width
        self.box_areas_rel.add(area)
        self.box_sizes_px.add(np.sqrt(area * (image_hw[0] * image_hw[1])))
        self.box_aspect_ratios.add(width * image_hw[1] / (height * image_hw[0]))
        last = POSITION_CELLS - 1
        rows = np.minimum((ymin + ymax) * (POSITION_CELLS / 2), last).astype(np.int64)
        columns = np.minimum((xmin + xmax) * (POSITION_CELLS / 2), last).astype(np.int64)
        self.positions.add(rows * POSITION_CELLS + columns)

    def _count_objects(self, labels: ImageLabels, limits: BoxLimits) -> Iterable[str]:
        boxes_N4, num_objects = labels.boxes_yxyx_rel_N4[labels.is_object_N], int(labels.is_object_N.sum())
        self.num_objects += num_objects
        found: dict[str, int] = {}
        if limits.min_iou is not None and num_objects > 1:
            class_ids_N = labels.class_ids_N[labels.is_object_N]
            found["overlapping_boxes"] = count_repeated_boxes(boxes_N4, class_ids_N, min_iou=limits.min_iou)
        if limits.model_input is not None:
            resized_hw, input_hw = resize_geometry(limits.model_input.image_resizer, labels.image_hw)
            boxes_px_N4 = boxes_in_input(boxes_N4, resized_hw)
            heights, widths = boxes_px_N4[:, 2] - boxes_px_N4[:, 0], boxes_px_N4[:, 3] - boxes_px_N4[:, 1]
            shorter, area = np.minimum(heights, widths), heights * widths
            self.box_sides_input_px.add(shorter)
            self.box_sizes_input_px.add(np.sqrt(area))
            found["tiny_boxes"] = int((shorter < limits.min_side_px).sum())
            found["huge_boxes"] = int((area > limits.max_area * input_hw[0] * input_hw[1]).sum())
            found["crowded_images"] = int(num_objects > limits.model_input.max_boxes)
        for check, count in found.items():
            if count:
                self.findings.setdefault(check, Offenders()).add(count, [labels.record_key])
                yield check

    def merge(self, other: "SplitStatistics") -> None:
        if other.num_examples:
            mins = (self.min_hw, other.min_hw) if self.num_examples else (other.min_hw,)
            self.min_hw = min(height for height, _ in mins), min(width for _, width in mins)
            self.max_hw = max(self.max_hw[0], other.max_hw[0]), max(self.max_hw[1], other.max_hw[1])
        for attribute in fields(self):
            mine, theirs = getattr(self, attribute.name), getattr(other, attribute.name)
            if isinstance(mine, int):
                setattr(self, attribute.name, mine + theirs)
            elif isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, Histogram):
                mine.merge(theirs)
            elif isinstance(mine, Offenders):
                mine.add(theirs.count, theirs.record_keys)
            elif isinstance(mine, dict):
                for problem, offenders in theirs.items():
                    mine.setdefault(problem, Offenders()).add(offenders.count, offenders.record_keys)
        self._limit_unknown_ids()


def find_box_problem(box_yxyx_rel: Sequence[float]) -> str:
    """Return the problem of an invalid box, as readable text."""
    ymin, xmin, ymax, xmax = box_yxyx_rel
    if not all(map(math.isfinite, box_yxyx_rel)):
        return "not finite"
    if ymin > ymax or xmin > xmax:
        return "inverted"
    if ymin == ymax or xmin == xmax:
        return "without area"
    return "outside 0 to 1"
