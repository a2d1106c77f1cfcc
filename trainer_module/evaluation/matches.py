"""Match detections to objects by the COCO API's rules, for a whole split, with some 40 bytes for each detection.

The rules equal `COCOeval.evaluateImg` in pycocotools: within an image and class, detections in the order of descending
scores each take the free object with the highest IoU; objects that do not count (crowds, and those outside of a range
of sizes) are taken last, a crowd any number of times, and detections on them are ignored. The results of images do not
depend on each other: `match_boxes` can run on several machines.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts.arrays import Array, BoolArray, Float64Array, Int32Array, Int64Array, Uint8Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T: 0.50, 0.55, ... 0.95, computed as in pycocotools
IOU_50 = 0  # index of 0.50
MAX_DETECTIONS = 100  # per image and class
ALL_SIZES = 0  # index among the ranges of sizes A
# Object sizes by area in square pixels, both ends inclusive, as in pycocotools.
SIZES = ((0.0, 1e5**2), (0.0, 32.0**2), (32.0**2, 96.0**2), (96.0**2, 1e5**2))
_MAX_CELLS = 1_000_000  # IoU values, or pairs of an object and a threshold, in memory at a time: 8 MB
BLOCK_IMAGES = 2048  # images whose boxes are converted at a time
_SURPLUS = 255  # rank of detections after the first 100
_BITS_T = (1 << np.arange(len(IOU_THRESHOLDS))).astype(np.uint16)
_ALL_BITS = np.uint16(_BITS_T.sum())

Columns = dict[str, Array]
BY_CLASS, CLASS_AGNOSTIC = "by_class/", "class_agnostic/"  # prefixes of columns that are stored together
TRUE, IGNORED, RANK, OBJECT, FOUND = "true_NA", "ignored_NA", "rank_N", "object_N", "found_G"


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
    """Boxes of all images.

    Attributes:
        image_index: int32 [N], position in the list of images.
        class_index: int32 [N], position in the label map.
        row: int32 [N], position in the arrays of the image.
    """

    image_index: Int32Array
    class_index: Int32Array
    row: Int32Array

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Array) -> "Rows":
        return Rows(image_index=self.image_index[rows], class_index=self.class_index[rows], row=self.row[rows])


@dataclass(frozen=True, eq=False, kw_only=True)
class Matches:
    """Detections `N` and objects `G` of a split, with their matches at each range of sizes `A` and IoU threshold `T`.

    Attributes:
        found: at most 100 detections per image and class, sorted by class and descending score; tied scores in the
            order of the images.
        scores: float [N].
        rank: uint8 [N], number of detections of the image and class before it.
        truth: objects, sorted by class and image.
        truth_boxes_xywh_px: float64 [G, 4].
        truth_areas_px: float64 [G].
        is_crowd: bool [G].
        is_outside_GA: crowds and objects outside of the range of sizes.
        truth_of_found: int32 [N]; row in `truth` at IoU 0.50, or -1 for a detection without a match.
        true_AN, ignored_AN: uint16; bit t is set for a true positive at threshold t, and for a detection that is
            neither a true nor a false positive.
        found_G: uint16; bit t is set for an object with a match at threshold t.
    """

    num_images: int
    num_classes: int
    found: Rows
    scores: Array
    rank: Uint8Array
    truth: Rows
    truth_boxes_xywh_px: Float64Array
    truth_areas_px: Float64Array
    is_crowd: BoolArray
    is_outside_GA: BoolArray
    truth_of_found: Int32Array
    true_AN: npt.NDArray[np.uint16]
    ignored_AN: npt.NDArray[np.uint16]
    found_G: npt.NDArray[np.uint16]
    _images: ImageTable[ImageDetections]
    _image_hw_I2: Int32Array

    def is_true(self, threshold: int, rows: Any = slice(None)) -> BoolArray:
        """Return which detections are true positives."""
        return (self.true_AN[ALL_SIZES, rows] & _BITS_T[threshold]) != 0

    def is_ignored(self, threshold: int, rows: Any = slice(None)) -> BoolArray:
        """Return which detections are neither true nor false positives, such as those on a crowd."""
        return (self.ignored_AN[ALL_SIZES, rows] & _BITS_T[threshold]) != 0

    def is_found(self, threshold: int, rows: Any = slice(None)) -> BoolArray:
        """Return which objects have a matched detection of any score."""
        return (self.found_G[rows] & _BITS_T[threshold]) != 0

    def found_of_class(self, class_index: int) -> slice:
        """Return the rows of the detections of a class."""
        return _range_of(self.found.class_index, class_index)

    def truth_of_class(self, class_index: int) -> slice:
        """Return the rows of the objects of a class."""
        return _range_of(self.truth.class_index, class_index)

    def found_boxes_xywh_px(self, rows: Int64Array) -> Float64Array:
        """Return the boxes of these detections, float64 [n, 4]."""
        return self._images.boxes_xywh_px(self.found.image_index[rows], self.found.row[rows], self._image_hw_I2)


def pairwise_iou(boxes1_xywh_px: Array, boxes2_xywh_px: Array, is_crowd2: BoolArray | None = None) -> Float64Array:
    """Return IoU [..., N, M] of boxes [..., N, 4] with boxes [..., M, 4]; 0 if they do not intersect.

    For crowds in `is_crowd2` [..., M] it is the intersection over the area of the first box (`bbIou` in pycocotools'
    maskApi.c).
    """
    first = np.asarray(boxes1_xywh_px, np.float64)[..., :, np.newaxis, :]
    second = np.asarray(boxes2_xywh_px, np.float64)[..., np.newaxis, :, :]
    start = np.maximum(first[..., :2], second[..., :2])
    sides = np.minimum(first[..., :2] + first[..., 2:], second[..., :2] + second[..., 2:]) - start
    shared = sides[..., 0] * sides[..., 1]
    area1, area2 = first[..., 2] * first[..., 3], second[..., 2] * second[..., 3]
    union = area1 + area2 - shared
    if is_crowd2 is not None:
        union = np.where(np.asarray(is_crowd2)[..., np.newaxis, :], area1, union)
    meet = (sides > 0).all(axis=-1)
    return np.divide(shared, union, out=np.zeros_like(shared), where=meet)


def match_detections(
    ground_truth: Sequence[ImageGroundTruth],
    detections: Sequence[ImageDetections],
    label_map: LabelMap,
    *,
    sizes: Sequence[tuple[float, float]] = (),
    is_class_agnostic: bool = False,
    columns: Columns | None = None,
) -> Matches:
    """Match all detections of a split.

    Args:
        ground_truth, detections: the same images in the same order.
        sizes: ranges of areas in addition to `SIZES`.
        is_class_agnostic: treat all classes as one.
        columns: result of `match_boxes` for these images, which is emptied; None computes it.

    Raises:
        ValueError: the images differ.
    """
    truth, found = ImageTable.of(ImageGroundTruth, ground_truth), ImageTable.of(ImageDetections, detections)
    if not np.array_equal(truth.image_ids_I, found.image_ids_I):
        raise ValueError("ground_truth and detections: got different images or orders, allowed: the same.")
    ids = None if is_class_agnostic else label_map.class_ids
    if columns is None:
        columns = match_boxes(truth, found, ids, sizes)
    return _sort(truth, found, ids, [*SIZES, *sizes], columns)


def match_boxes(
    truth: ImageTable[ImageGroundTruth],
    found: ImageTable[ImageDetections],
    class_ids: Sequence[int] | None,
    sizes: Sequence[tuple[float, float]] = (),
) -> Columns:
    """Match the boxes of each image; the results do not depend on the other images.

    Args:
        class_ids: of the label map; None treats all classes as one.
        sizes: ranges of areas in addition to `SIZES`.

    Returns:
        Columns of the detections in the order of the tables: TRUE, IGNORED (see `Matches`), RANK (255 for those that do
        not count) and OBJECT (the matched object's row in its image at IoU 0.50, or -1). Of the objects: FOUND.
    """
    sizes_A2 = np.array([*SIZES, *sizes])
    num_found, num_truth = int(found.offsets_I1[-1]), int(truth.offsets_I1[-1])
    columns: Columns = {
        TRUE: np.zeros((num_found, len(sizes_A2)), np.uint16),
        IGNORED: np.zeros((num_found, len(sizes_A2)), np.uint16),
        RANK: np.zeros(num_found, np.uint8),
        OBJECT: np.full(num_found, -1, np.int32),
        FOUND: np.zeros(num_truth, np.uint16),
    }
    for start in range(0, len(truth), BLOCK_IMAGES):
        stop = min(start + BLOCK_IMAGES, len(truth))
        block = _Block(truth, found, class_ids, sizes_A2, start, stop)
        rows = {True: truth.rows(start, stop), False: found.rows(start, stop)}
        block.match({name: column[rows[name == FOUND]] for name, column in columns.items()})
    return columns


class _Block:
    """Consecutive images, whose boxes are matched together."""

    def __init__(
        self,
        truth: ImageTable[ImageGroundTruth],
        found: ImageTable[ImageDetections],
        class_ids: Sequence[int] | None,
        sizes_A2: Float64Array,
        start: int,
        stop: int,
    ) -> None:
        hw = truth.image_hw_I2
        self.truth_boxes, self.found_boxes = truth.xywh_px(start, stop, hw), found.xywh_px(start, stop, hw)
        self.is_crowd = truth.columns["is_crowd"][truth.rows(start, stop)].astype(bool)
        self.is_outside_GA = _is_outside(areas_px(truth, start, stop, self.truth_boxes), sizes_A2)
        self.is_outside_GA |= self.is_crowd[:, np.newaxis]
        self.found_outside_NA = _is_outside(self.found_boxes[:, 2] * self.found_boxes[:, 3], sizes_A2)
        self._truth_keys = class_keys(truth, start, stop, class_ids)
        self._found_keys = class_keys(found, start, stop, class_ids)
        self._scores = found.columns["scores"][found.rows(start, stop)]
        self._first_truth_row = (truth.offsets_I1[start:stop] - truth.offsets_I1[start])[truth.image_index(start, stop)]

    def match(self, columns: Mapping[str, Array]) -> None:
        """Write the results into `columns`; see `match_boxes`."""
        truth_order = np.argsort(self._truth_keys, kind="stable")
        found_order = np.lexsort((-self._scores.astype(np.float64), self._found_keys))
        ranks = ranks_of(self._found_keys[found_order])
        columns[RANK][found_order] = np.minimum(ranks, _SURPLUS)
        columns[RANK][found_order[ranks >= MAX_DETECTIONS]] = _SURPLUS
        found_order = found_order[ranks < MAX_DETECTIONS]
        found_keys, truth_keys = self._found_keys[found_order], self._truth_keys[truth_order]
        least_width = len(IOU_THRESHOLDS) * self.is_outside_GA.shape[1]
        for rows_BN, rows_BG in padded_groups(found_keys, truth_keys, found_order, truth_order, least_width):
            self._match_chunk(rows_BN, rows_BG, columns)
        # A detection without a match, outside of the range of sizes, does not count.
        is_open = self.found_outside_NA & (columns[RANK] != _SURPLUS)[:, np.newaxis]
        columns[IGNORED][is_open] = _ALL_BITS & ~columns[TRUE][is_open]

    def _match_chunk(self, found_rows_BN: Int64Array, truth_rows_BG: Int64Array, columns: Mapping[str, Array]) -> None:
        """Match `B` groups of one image and class each: the best detections of all groups first, then the second."""
        crowd_BG = self.is_crowd[truth_rows_BG]
        iou_BNG = pairwise_iou(self.found_boxes[found_rows_BN], self.truth_boxes[truth_rows_BG], crowd_BG)
        iou_BNG *= (truth_rows_BG >= 0)[:, None, :]
        iou_BNG *= (found_rows_BN >= 0)[:, :, None]
        min_iou_T1 = np.minimum(IOU_THRESHOLDS, 1 - 1e-10)[:, np.newaxis]
        counts_BAG = ~self.is_outside_GA[truth_rows_BG].transpose(0, 2, 1)
        num_groups, num_sizes, num_objects = counts_BAG.shape
        is_free_BATG = np.ones((num_groups, num_sizes, len(IOU_THRESHOLDS), num_objects), bool)
        can_match_BN = iou_BNG.max(axis=2) >= min_iou_T1[0]
        for rank in range(found_rows_BN.shape[1]):
            groups = np.flatnonzero(can_match_BN[:, rank])
            if not len(groups):
                continue
            iou_bG, counts_bA1G = iou_BNG[groups, rank], counts_BAG[groups][:, :, np.newaxis]
            is_open_bATG = is_free_BATG[groups] & (iou_bG[:, None, :] >= min_iou_T1)[:, np.newaxis]
            usual_bAT = _last_greatest(iou_bG, is_open_bATG & counts_bA1G)
            other_bAT = _last_greatest(iou_bG, is_open_bATG & ~counts_bA1G)
            is_true_bAT = usual_bAT >= 0
            chosen_bAT = np.where(is_true_bAT, usual_bAT, other_bAT)
            b, a, t = np.nonzero(chosen_bAT >= 0)
            taken = chosen_bAT[b, a, t]
            is_free_BATG[groups[b], a, t, taken] = crowd_BG[groups[b], taken]
            rows = found_rows_BN[groups, rank]
            columns[TRUE][rows] = (is_true_bAT * _BITS_T).sum(axis=2, dtype=np.uint16)
            columns[IGNORED][rows] = (((chosen_bAT >= 0) & ~is_true_bAT) * _BITS_T).sum(axis=2, dtype=np.uint16)
            usual = a == ALL_SIZES
            objects = truth_rows_BG[groups[b[usual]], taken[usual]]
            np.bitwise_or.at(columns[FOUND], objects, _BITS_T[t[usual]])
            at_50 = t[usual] == IOU_50
            columns[OBJECT][rows[b[usual][at_50]]] = objects[at_50] - self._first_truth_row[objects[at_50]]


def areas_px(truth: ImageTable[ImageGroundTruth], start: int, stop: int, boxes_xywh_px: Float64Array) -> Float64Array:
    """Return the areas that decide on the size: those of the data, or else those of the boxes."""
    areas = boxes_xywh_px[:, 2] * boxes_xywh_px[:, 3]
    is_given = truth.has("area_px", start, stop)
    if is_given.any():
        areas[is_given] = truth.columns["area_px"][truth.rows(start, stop)][is_given]
    return areas


def _is_outside(areas: Float64Array, sizes_A2: Float64Array) -> BoolArray:
    """Return [N, A]."""
    outside: BoolArray = (areas[:, np.newaxis] < sizes_A2[:, 0]) | (areas[:, np.newaxis] > sizes_A2[:, 1])
    return outside


def _class_index(table: ImageTable[Any], rows: slice, class_ids: Sequence[int] | None) -> Int32Array:
    ids = table.columns["class_ids"][rows]
    return (np.zeros(len(ids)) if class_ids is None else np.searchsorted(np.array(class_ids), ids)).astype(np.int32)


def class_keys(table: ImageTable[Any], start: int, stop: int, class_ids: Sequence[int] | None) -> Int64Array:
    """Return one number per class and image for each row of these images, ascending with the class."""
    classes = _class_index(table, table.rows(start, stop), class_ids).astype(np.int64)
    return classes << 32 | table.image_index(start, stop)


def ranks_of(keys: Int64Array) -> Int64Array:
    """Return the position of each row among the rows with the same key; `keys` are sorted."""
    return np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")


def padded_groups(
    found_keys: npt.NDArray[np.integer[Any]],
    truth_keys: npt.NDArray[np.integer[Any]],
    found_rows: Int64Array,
    truth_rows: Int64Array,
    least_width: int = 1,
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield the detections [B, N] and the objects [B, G] of groups with equal keys, as rows padded with -1.

    Groups without detections or without objects are left out. The number of groups at a time bounds the memory.

    Args:
        found_keys, truth_keys: ascending; `found_rows` and `truth_rows` have the row of each key.
        least_width: values per object that the caller computes, if they are more than the detections of a group.
    """
    keys = np.intersect1d(found_keys, truth_keys)
    first_found, first_truth = np.searchsorted(found_keys, keys), np.searchsorted(truth_keys, keys)
    num_found = np.searchsorted(found_keys, keys, side="right") - first_found
    num_truth = np.searchsorted(truth_keys, keys, side="right") - first_truth
    order = np.lexsort((num_found, num_truth))

    def count_cells(groups: Int64Array) -> int:
        return len(groups) * max(int(num_found[groups].max()), least_width) * int(num_truth[groups].max())

    start = 0
    while start < len(order):
        # Groups in `order` have an increasing number of objects, which keeps the padding within a chunk small.
        stop = start + 1
        while stop < len(order) and count_cells(order[start : 2 * stop - start]) <= _MAX_CELLS:
            stop = min(2 * stop - start, len(order))
        chunk = order[start:stop]
        yield (
            _padded_rows(first_found[chunk], num_found[chunk], found_rows),
            _padded_rows(first_truth[chunk], num_truth[chunk], truth_rows),
        )
        start = stop


def _padded_rows(first: Array, counts: Array, order: Int64Array) -> Int64Array:
    """Return the rows of each group, padded with -1: [groups, greatest count]."""
    positions = np.arange(counts.max())
    is_row = positions < counts[:, None]
    rows: Int64Array = np.where(is_row, order[np.where(is_row, first[:, None] + positions, 0)], -1)
    return rows


def _last_greatest(iou_bG: Float64Array, is_allowed_bATG: BoolArray) -> Int64Array:
    """Return the position [b, A, T] of the highest allowed IoU (of ties the last, as in pycocotools), or -1."""
    if iou_bG.shape[1] == 1:
        return np.where(is_allowed_bATG[..., 0], 0, -1)
    reversed_bATG = np.where(is_allowed_bATG, iou_bG[:, None, None, :], -1.0)[..., ::-1]
    position = iou_bG.shape[1] - 1 - reversed_bATG.argmax(axis=3)
    return np.where(is_allowed_bATG.any(axis=3), position, -1)


def _sort(
    truth: ImageTable[ImageGroundTruth],
    found: ImageTable[ImageDetections],
    class_ids: Sequence[int] | None,
    sizes: Sequence[tuple[float, float]],
    columns: Columns,
) -> Matches:
    """Sort the columns of `match_boxes`: detections by class and descending score, objects by class and image.

    The columns are removed one by one, to save memory.
    """
    rows = _rows_of(truth, class_ids)
    truth_order = np.argsort(rows.class_index, kind="stable")
    truth_rows, boxes = rows.take(truth_order), truth.xywh_px(0, len(truth), truth.image_hw_I2)
    areas = areas_px(truth, 0, len(truth), boxes)[truth_order]
    is_crowd = truth.columns["is_crowd"][truth_order].astype(bool)
    place_of_truth = np.empty(len(truth_order), np.int32)
    place_of_truth[truth_order] = np.arange(len(truth_order), dtype=np.int32)
    rows = _rows_of(found, class_ids)
    order = np.flatnonzero(columns[RANK] != _SURPLUS)
    scores = found.columns["scores"]
    order = order[np.lexsort((-scores[order], rows.class_index[order]))]  # stable: ties keep the order of the images
    found_rows, objects = rows.take(order), columns.pop(OBJECT)[order]
    del rows
    is_matched = objects >= 0
    objects[is_matched] = place_of_truth[truth.offsets_I1[found_rows.image_index[is_matched]] + objects[is_matched]]
    return Matches(
        num_images=len(truth),
        num_classes=1 if class_ids is None else len(class_ids),
        found=found_rows,
        scores=scores[order],
        rank=columns.pop(RANK)[order],
        truth=truth_rows,
        truth_boxes_xywh_px=boxes[truth_order],
        truth_areas_px=areas,
        is_crowd=is_crowd,
        is_outside_GA=_is_outside(areas, np.array(sizes)) | is_crowd[:, np.newaxis],
        truth_of_found=objects,
        true_AN=_transposed(columns.pop(TRUE), order),
        ignored_AN=_transposed(columns.pop(IGNORED), order),
        found_G=columns[FOUND][truth_order],
        _images=found,
        _image_hw_I2=truth.image_hw_I2,
    )


def _rows_of(table: ImageTable[Any], class_ids: Sequence[int] | None) -> Rows:
    image_index = table.image_index(0, len(table))
    first = table.offsets_I1[:-1].astype(np.int32)
    row = np.arange(len(image_index), dtype=np.int32) - np.repeat(first, np.diff(table.offsets_I1))
    return Rows(image_index=image_index, class_index=_class_index(table, slice(None), class_ids), row=row)


def _transposed(column_NA: npt.NDArray[np.uint16], order: Int64Array) -> npt.NDArray[np.uint16]:
    result = np.empty((column_NA.shape[1], len(order)), np.uint16)
    for size, values in enumerate(result):
        np.take(column_NA[:, size], order, out=values)
    return result


def _range_of(sorted_values: Int32Array, value: int) -> slice:
    start, stop = np.searchsorted(sorted_values, [value, value + 1])
    return slice(int(start), int(stop))
