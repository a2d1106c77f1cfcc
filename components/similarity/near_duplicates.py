"""Find near-duplicate images and their splits by 64-bit hashes. Takes arrays and returns bounded lists.

Two hashes within a Hamming distance of d agree in at least one of any d + 1 bands of their bits, because d differing
bits cannot be in all of them (the pigeonhole principle; for fingerprints: Manku, Jain and Das Sarma, "Detecting
Near-Duplicates for Web Crawling", WWW 2007, section 3). So only hashes with an equal band are compared; of many
hashes, only those that agree in two of d + 2 bands. If many hashes share a band, the rest of their bits is divided into
bands again; if that would not reduce the work, all are compared.

Many hashes around one centre (black frames, drawings of one template) share most bands, and the number of pairs may be
quadratic. They are grouped without comparing pairs. As sets of the bits that differ from the centre, a and b have the
distance |a - S| + |b - S| with S, the bits that both have. So each set is listed under all of its subsets that lack at
most d bits, with the number of bits that it lacks, and two sets in one list are near if these numbers add up to at most
d. Within a list the set that lacks the fewest bits is near all that are near any, and the splits of all partners are
those of the members that lack few enough.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_BITS = 64
# Measured on the blood cell photographs of BCCD: for 100 of them, copies at half size, JPEG quality 50, as PNG, 20 %
# brighter or cropped by 2 % are within 5 bits in at least 97 % of cases each; among all 364, the only pair within
# 10 bits shows the same cells photographed twice (5 bits).
DEFAULT_MAX_DISTANCE = 5
LARGEST_DISTANCE = 10  # above, bands are so narrow that they save little compared with all pairs
MAX_GROUPS = 50  # groups that are listed; all are counted
MAX_MEMBERS = 20  # images listed per group
MAX_SPLITS = 63  # the splits of an image are the bits of one integer
_MAX_BUCKET = 256  # hashes of a bucket that are compared pairwise; larger buckets are divided by their other bits
_MAX_SHARE_OF_PAIRS = 0.5  # if bands leave more of all pairs to compare, all pairs are compared at once
_BLOCK_ROWS, _BLOCK_COLUMNS = 512, 2048  # hashes compared at a time: a block of 4 MB
_MAX_EDGES = 1 << 20  # pairs buffered before they are merged into groups: 16 MB
_MIN_FOR_TWO_BANDS = 20_000  # hashes from which buckets of one band would hold more than a dozen random ones
_MIN_CLUSTER = 512  # hashes around one centre that are grouped by subsets; fewer are compared pairwise
_MAX_SUBSETS = 256  # mean number of subsets per hash of a cluster; 219 with 8 bits from the centre and a distance of 5
_MAX_LISTED = 1 << 22  # subsets sorted at a time: 100 MB
_SAMPLE = 4096  # hashes that estimate how much work bands save

_Hashes = npt.NDArray[np.uint64]
_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DuplicateGroup:
    """Images connected by similarity; two of them may be connected only through a third.

    Attributes:
        size_by_split: number of images by split index.
        members: rows of the first images; one of every split comes before a second of any split.
    """

    size: int
    size_by_split: dict[int, int]
    members: tuple[int, ...]


@dataclass(frozen=True)
class DuplicateReport:
    """Duplicates among N images.

    Attributes:
        num_compared: images with a usable hash.
        num_flat: images not compared, because they have so little structure that they all look the same.
        num_duplicated: images with at least one duplicate.
        num_across_by_split: images with a direct duplicate in another split; with `train_index`, images of other splits
            with a direct duplicate in that split.
        num_within_by_split: images to remove so that each group keeps one image per split.
        groups: groups across splits first, then by size; at most `MAX_GROUPS` of `num_groups`.
    """

    num_compared: int = 0
    num_flat: int = 0
    num_duplicated: int = 0
    num_across_by_split: dict[int, int] = field(default_factory=dict)
    num_within_by_split: dict[int, int] = field(default_factory=dict)
    num_groups: int = 0
    groups: tuple[DuplicateGroup, ...] = ()


def find_equal(
    hashes_N: npt.NDArray[Any], split_indices_N: npt.NDArray[Any], *, train_index: int | None = None
) -> DuplicateReport:
    """Find images with equal hashes; with 64 bits of a content hash, these are identical files."""
    hashes = np.asarray(hashes_N, np.uint64)
    images = _Images.of_rows(hashes, np.asarray(split_indices_N), np.arange(len(hashes)))
    no_partners = np.zeros(len(images.unique_U), np.uint64)
    return _report(images, np.arange(len(images.unique_U)), no_partners, train_index)


def find_near_duplicates(
    hashes_N: npt.NDArray[Any],
    split_indices_N: npt.NDArray[Any],
    *,
    max_distance: int = DEFAULT_MAX_DISTANCE,
    train_index: int | None = None,
) -> DuplicateReport:
    """Find images whose hashes differ in at most `max_distance` bits, including identical ones.

    A hash with at most `max_distance` bits set, or at most that many not set, is skipped as flat: an empty page, a
    night sky or a smooth gradient resembles others without showing the same scene.

    Args:
        split_indices_N: 0 to `MAX_SPLITS` - 1. The caller sorts the images if the result must not depend on the order
            of reading.
        train_index: split that must not share images with others; None compares all splits with each other.
    """
    if not 0 <= max_distance <= LARGEST_DISTANCE:
        raise ValueError(f"max_distance: got {max_distance}, allowed: 0 to {LARGEST_DISTANCE}")
    hashes = np.asarray(hashes_N, np.uint64)
    rows_M = _rows_that_are_not_flat(hashes, max_distance)
    images = _Images.of_rows(hashes, np.asarray(split_indices_N), rows_M)
    search = _Search(images.unique_U, images.splits_of_U, max_distance)
    report = _report(images, search.components.labels(), search.partner_splits_U, train_index)
    return replace(report, num_flat=len(hashes) - len(rows_M))


def group_near_duplicates(
    hashes_N: npt.NDArray[np.uint64], *, max_distance: int = DEFAULT_MAX_DISTANCE
) -> npt.NDArray[np.int64]:
    """Return a number for each image that is equal for near-duplicates, also for those that others connect.

    A flat image (see `find_near_duplicates`) is alone.
    """
    groups_N = np.arange(len(hashes_N))
    rows_M = _rows_that_are_not_flat(hashes_N, max_distance)
    images = _Images.of_rows(hashes_N, np.zeros(len(hashes_N), np.int64), rows_M)
    search = _Search(images.unique_U, images.splits_of_U, max_distance)
    _, firsts, places_M = np.unique(
        search.components.labels()[images.unique_of_M], return_index=True, return_inverse=True
    )
    groups_N[rows_M] = rows_M[firsts[places_M]]
    return groups_N


def _rows_that_are_not_flat(hashes_N: _Hashes, max_distance: int) -> _Rows:
    num_set_N = count_bits(hashes_N)
    return np.flatnonzero((num_set_N > max_distance) & (num_set_N < NUM_BITS - max_distance))


def count_bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Count the bits set in each number (Warren, Hacker's Delight, 5-1; NumPy has `bitwise_count` only since 2.0)."""
    constant = [np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)]
    one, two, four, top = (np.uint64(shift) for shift in (1, 2, 4, 56))
    values = values - ((values >> one) & constant[0])
    values = (values & constant[1]) + ((values >> two) & constant[1])
    values = (values + (values >> four)) & constant[2]
    return ((values * np.uint64(0x0101010101010101)) >> top).astype(np.int64)


class _Search:
    """Find the groups of near hashes, and the splits of each hash's partners (all hashes within the distance).

    It is never much slower than comparing all pairs once, and holds at most `_MAX_EDGES` pairs, one block of pairs and
    `_MAX_LISTED` subsets.
    """

    def __init__(self, unique_U: _Hashes, splits_of_U: npt.NDArray[np.uint64], max_distance: int) -> None:
        self._unique_U, self._splits_of_U, self._max_distance = unique_U, splits_of_U, max_distance
        self._cluster_of_U = np.full(len(unique_U), -1, np.int32)  # pairs of one cluster have been found
        self._num_clusters = 0
        self.partner_splits_U = np.zeros(len(unique_U), np.uint64)
        self.components = _Components(len(unique_U))
        if max_distance > 0 and len(unique_U) > 1:
            self._search(np.arange(len(unique_U)), tuple(range(NUM_BITS)))

    def _search(self, rows: _Rows, free_bits: Sequence[int]) -> None:
        """Search pairs among `rows`, which agree in all bits except `free_bits`."""
        self._find_cluster(rows)
        others = self._outside_largest_cluster(rows)
        if len(others) <= min(_MAX_BUCKET, len(rows) - 1):
            self._compare_blocks(others, rows)
            return
        bands = _divide(free_bits, self._max_distance, len(rows))
        masks = [np.uint64(sum(1 << bit for bit in band)) for band in bands]
        sample = rows[:: -(-len(rows) // _SAMPLE)]
        num_left = sum(_count_pairs_together(self._unique_U[sample] & mask) for mask in masks)
        if not bands or num_left > _MAX_SHARE_OF_PAIRS * len(sample) ** 2:
            self._compare_all(rows)
            return
        for band, mask in zip(bands, masks, strict=True):
            keys = self._unique_U[rows] & mask
            order = np.argsort(keys)
            keys, sorted_rows = keys[order], rows[order]
            starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
            sizes = np.diff(np.r_[starts, len(keys)])
            is_large = sizes > _MAX_BUCKET
            rest = tuple(bit for bit in free_bits if bit not in band)
            for start, size in zip(starts[is_large], sizes[is_large], strict=True):
                self._search(sorted_rows[start : start + size], rest)
            clusters = self._cluster_of_U[sorted_rows]
            low, high = np.minimum.reduceat(clusters, starts), np.maximum.reduceat(clusters, starts)
            is_open = ~is_large & ((low < high) | (low < 0)) & (sizes > 1)
            self._compare_buckets(sorted_rows[np.repeat(is_open, sizes)], mask)

    def _find_cluster(self, rows: _Rows) -> None:
        """If most of `rows` without a cluster are near one centre, find all pairs of hashes near it."""
        free = rows[self._cluster_of_U[rows] < 0]
        if len(free) < _MIN_CLUSTER:
            return
        bits_64 = np.zeros(NUM_BITS, np.int64)
        for start in range(0, len(free), _SAMPLE):
            bits_64 += _unpack(self._unique_U[free[start : start + _SAMPLE]]).sum(axis=0, dtype=np.int64)
        centre = np.packbits(2 * bits_64 > len(free)).view(np.uint64)[0]
        num_near = len(self._near_centre(free, centre))
        if num_near < max(_MIN_CLUSTER, len(free) // 2):
            return
        members = self._near_centre(np.flatnonzero(self._cluster_of_U < 0), centre)
        self._cluster_of_U[members] = self._num_clusters
        self._num_clusters += 1
        sets = self._unique_U[members] ^ centre
        self._group_cluster(members, sets, count_bits(sets))

    def _near_centre(self, rows: _Rows, centre: np.uint64) -> _Rows:
        """Return the rows nearest to the centre, as many as have `_MAX_SUBSETS` subsets on average."""
        weights = count_bits(self._unique_U[rows] ^ centre)
        counts_W = np.bincount(weights)
        subsets_W = [_count_subsets(weight, self._max_distance) for weight in range(len(counts_W))]
        is_affordable_W = np.cumsum(counts_W * subsets_W) <= _MAX_SUBSETS * np.cumsum(counts_W)
        return rows[is_affordable_W[weights]]

    def _group_cluster(self, rows: _Rows, sets: _Hashes, weights: npt.NDArray[np.int64]) -> None:
        """Find all pairs of `rows` by the subsets of `sets`, with `weights` elements each; see the module."""
        for num_kept in range(int(weights.max()) + 1):
            is_listed = (weights >= num_kept) & (weights <= num_kept + self._max_distance)
            rows_L, sets_L, num_lacking_L = rows[is_listed], sets[is_listed], weights[is_listed] - num_kept
            num_subsets = sum(
                int(np.count_nonzero(num_lacking_L == lacking)) * math.comb(num_kept + lacking, lacking)
                for lacking in range(self._max_distance + 1)
            )
            num_parts = 1 << max(0, (num_subsets - 1) // _MAX_LISTED).bit_length()
            for part in range(num_parts):
                listed = [
                    (subsets, rows_L[num_lacking_L == lacking][places], np.full(len(places), lacking, np.int8))
                    for lacking in range(self._max_distance + 1)
                    for subsets, places in _list_subsets(sets_L[num_lacking_L == lacking], lacking, part, num_parts)
                ]
                if listed:
                    self._group_lists(*(np.concatenate(column) for column in zip(*listed, strict=True)))

    def _group_lists(self, subsets: _Hashes, rows: _Rows, num_lacking: npt.NDArray[np.int8]) -> None:
        """Find the pairs of rows under one subset; `num_lacking`, the bits that a row has in addition, ascends."""
        order = np.argsort(subsets, kind="stable")
        subsets, rows, num_lacking = subsets[order], rows[order], num_lacking[order]
        is_first = np.r_[True, subsets[1:] != subsets[:-1]]
        starts = np.flatnonzero(is_first)
        lists = np.cumsum(is_first) - 1
        is_near_first = num_lacking + num_lacking[starts][lists] <= self._max_distance
        self.components.connect(rows[is_near_first], rows[starts][lists][is_near_first])
        splits = self._splits_of_U[rows]
        for lacking in range(self._max_distance + 1):
            can_be_partner = num_lacking <= self._max_distance - lacking
            splits_of_list = np.bitwise_or.reduceat(np.where(can_be_partner, splits, np.uint64(0)), starts)
            is_asking = num_lacking == lacking
            np.bitwise_or.at(self.partner_splits_U, rows[is_asking], splits_of_list[lists[is_asking]])

    def _outside_largest_cluster(self, rows: _Rows) -> _Rows:
        clusters = self._cluster_of_U[rows]
        if not (clusters >= 0).any():
            return rows
        return rows[clusters != np.bincount(clusters[clusters >= 0]).argmax()]

    def _compare_buckets(self, rows: _Rows, mask: np.uint64) -> None:
        """Search pairs in `rows`, which are sorted by the bits of `mask`, within each bucket of equal bits.

        Compare each row with the next one, then with the one after it, and so on, until no two are in one bucket. The
        number of steps is the size of the largest bucket; all buckets are searched at once.
        """
        hashes = self._unique_U[rows]
        firsts = np.arange(len(rows))
        for distance_in_list in range(1, len(rows)):
            firsts = firsts[: np.searchsorted(firsts, len(rows) - distance_in_list)]
            differing = hashes[firsts] ^ hashes[firsts + distance_in_list]
            is_together = (differing & mask) == 0
            firsts, differing = firsts[is_together], differing[is_together]
            if not len(firsts):
                return
            found = firsts[count_bits(differing) <= self._max_distance]
            first, second = rows[found], rows[found + distance_in_list]
            np.bitwise_or.at(self.partner_splits_U, first, self._splits_of_U[second])
            np.bitwise_or.at(self.partner_splits_U, second, self._splits_of_U[first])
            self.components.connect(first, second)

    def _compare_all(self, rows: _Rows) -> None:
        """Compare all pairs of `rows` except those of one cluster, block by block."""
        rows = rows[np.argsort(self._cluster_of_U[rows], kind="stable")]
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = rows[start : start + _BLOCK_ROWS]
            first, last = self._cluster_of_U[block[[0, -1]]]
            end = np.searchsorted(self._cluster_of_U[rows], first, side="right") if first == last >= 0 else start
            self._compare_blocks(block, rows[max(start, end) :])

    def _compare_blocks(self, rows1: _Rows, rows2: _Rows) -> None:
        """Compare each of `rows1` with each of `rows2`, block by block.

        With bits as -1 and 1, the dot product of two hashes is 64 minus twice their distance, and a matrix product is
        many times faster than counting bits.
        """
        rows1, rows2 = (rows[np.argsort(self._splits_of_U[rows], kind="stable")] for rows in (rows1, rows2))
        least = NUM_BITS - 2 * self._max_distance
        for row_start in range(0, len(rows1), _BLOCK_ROWS):
            rows_R = rows1[row_start : row_start + _BLOCK_ROWS]
            signs_R64 = _signs(self._unique_U[rows_R])
            for column_start in range(0, len(rows2), _BLOCK_COLUMNS):
                rows_C = rows2[column_start : column_start + _BLOCK_COLUMNS]
                is_near_RC = signs_R64 @ _signs(self._unique_U[rows_C]).T >= least
                self.partner_splits_U[rows_R] |= self._splits_near(is_near_RC, rows_C)
                self.partner_splits_U[rows_C] |= self._splits_near(is_near_RC.T, rows_R)
                self.components.connect_block(rows_R, rows_C, is_near_RC)

    def _splits_near(self, is_near_RC: npt.NDArray[np.bool_], rows_C: _Rows) -> npt.NDArray[np.uint64]:
        """Return the splits of the columns near each row; `rows_C` are sorted by their splits."""
        splits_C = self._splits_of_U[rows_C]
        starts = np.flatnonzero(np.r_[True, splits_C[1:] != splits_C[:-1]])
        found_R = np.zeros(len(is_near_RC), np.uint64)
        for start, end in zip(starts, [*starts[1:], len(splits_C)], strict=True):
            found_R[is_near_RC[:, start:end].any(axis=1)] |= splits_C[start]
        return found_R


def _divide(free_bits: Sequence[int], max_distance: int, num_hashes: int) -> list[tuple[int, ...]]:
    """Return sets of bits of which hashes within the distance agree in at least one; none if there are too few bits."""
    num_equal = 1 if num_hashes < _MIN_FOR_TWO_BANDS else 2
    num_bands = max_distance + num_equal
    if len(free_bits) < num_bands:
        return []
    # Each band takes every num_bands-th bit, because neighbouring bits of an image hash are correlated.
    bands = [free_bits[i::num_bands] for i in range(num_bands)]
    return [tuple(itertools.chain(*chosen)) for chosen in itertools.combinations(bands, num_equal)]


def _count_subsets(weight: int, max_lacking: int) -> int:
    return sum(math.comb(weight, lacking) for lacking in range(min(weight, max_lacking) + 1))


def _list_subsets(
    sets_N: _Hashes, num_lacking: int, part: int, num_parts: int
) -> Iterator[tuple[_Hashes, npt.NDArray[np.int64]]]:
    """Yield all subsets that lack so many bits, and the positions of their sets, which have equally many bits.

    Of `num_parts` (a power of 2) parts of all subsets, only those of `part` are returned.
    """
    if not len(sets_N):
        return
    weight = int(count_bits(sets_N[:1])[0])
    elements_NW = np.zeros((len(sets_N), weight), np.uint64)
    left_N = sets_N
    for position in range(weight):
        elements_NW[:, position] = left_N & (~left_N + np.uint64(1))
        left_N = left_N ^ elements_NW[:, position]
    shift = np.uint64(NUM_BITS - (num_parts - 1).bit_length())
    for chosen in itertools.combinations(range(weight), num_lacking):
        subsets_N = sets_N
        for position in chosen:
            subsets_N = subsets_N ^ elements_NW[:, position]
        if num_parts == 1:
            yield subsets_N, np.arange(len(sets_N))
            continue
        places = np.flatnonzero((subsets_N * np.uint64(0x9E3779B97F4A7C15)) >> shift == np.uint64(part))
        yield subsets_N[places], places


def _count_pairs_together(keys: _Hashes) -> int:
    """Count the ordered pairs to compare if each key is a bucket."""
    _, sizes = np.unique(keys, return_counts=True)
    return int((sizes.astype(np.int64) ** 2).sum())


def _signs(hashes_N: _Hashes) -> npt.NDArray[np.float32]:
    """Return the bits of each hash as -1 or 1; their order depends on the machine, but is the same for all hashes."""
    return _unpack(hashes_N).astype(np.float32) * np.float32(2) - np.float32(1)


def _unpack(hashes_N: _Hashes) -> npt.NDArray[np.uint8]:
    """Return the bits of each hash [N, 64]; their order depends on the machine, but is the same for all hashes."""
    return np.unpackbits(hashes_N.view(np.uint8)).reshape(-1, NUM_BITS)


class _Components:
    """Connected components of a graph whose edges come in batches and are not all kept."""

    def __init__(self, num_nodes: int) -> None:
        self._labels = np.arange(num_nodes)
        self._pending: list[tuple[_Rows, _Rows]] = []
        self._num_pending = 0

    def connect(self, first: _Rows, second: _Rows) -> None:
        """Connect pairs, except those that are known to be in one group."""
        is_new = self._labels[first] != self._labels[second]
        self._pending.append((first[is_new], second[is_new]))
        self._num_pending += np.count_nonzero(is_new)
        if self._num_pending >= _MAX_EDGES:
            self._merge()

    def connect_block(self, rows_R: _Rows, rows_C: _Rows, is_near_RC: npt.NDArray[np.bool_]) -> None:
        """Connect the near pairs, except those that are in one group already."""
        is_new_RC = is_near_RC & (self._labels[rows_R][:, np.newaxis] != self._labels[rows_C][np.newaxis])
        places_R, places_C = np.nonzero(is_new_RC)
        if len(places_R):
            self.connect(rows_R[places_R], rows_C[places_C])

    def labels(self) -> _Rows:
        """Return the group number of each node."""
        self._merge()
        return self._labels

    def _merge(self) -> None:
        if self._pending:
            # late: every command imports this module, and scipy takes a third of a second
            from scipy.sparse import coo_matrix
            from scipy.sparse.csgraph import connected_components

            first, second = (self._labels[np.concatenate(part)] for part in zip(*self._pending, strict=True))
            shape = (len(self._labels),) * 2
            edges = coo_matrix((np.ones(len(first), np.int8), (first, second)), shape=shape)
            _, groups = connected_components(edges, directed=False)
            self._labels = groups.astype(np.int64)[self._labels]
            self._pending, self._num_pending = [], 0


@dataclass(frozen=True, eq=False)
class _Images:
    """M of the caller's images, and the U distinct hashes among them.

    Attributes:
        rows_M: rows in the caller's arrays.
        splits_of_U: splits of each distinct hash, as the bits of an integer.
    """

    rows_M: _Rows
    splits_M: _Rows
    unique_U: _Hashes
    unique_of_M: _Rows
    splits_of_U: npt.NDArray[np.uint64]

    @classmethod
    def of_rows(cls, hashes_N: _Hashes, split_indices_N: npt.NDArray[Any], rows_M: _Rows) -> "_Images":
        splits = split_indices_N.astype(np.int64)
        if len(splits) and not 0 <= splits.min() <= splits.max() < MAX_SPLITS:
            raise ValueError(f"split index: got {splits.min()} to {splits.max()}, allowed: 0 to {MAX_SPLITS - 1}")
        unique_U, unique_of_M = np.unique(hashes_N[rows_M], return_inverse=True)
        splits_of_U = np.zeros(len(unique_U), np.uint64)
        np.bitwise_or.at(splits_of_U, unique_of_M, _bits(splits[rows_M]))
        return cls(rows_M, splits[rows_M], unique_U, unique_of_M, splits_of_U)


def _bits(split_indices: _Rows) -> npt.NDArray[np.uint64]:
    return np.uint64(1) << split_indices.astype(np.uint64)


def _report(
    images: _Images, group_of_U: _Rows, partner_splits_U: npt.NDArray[np.uint64], train_index: int | None
) -> DuplicateReport:
    """Convert groups of hashes to groups of images."""
    splits_M = images.splits_M
    seen_M = (images.splits_of_U | partner_splits_U)[images.unique_of_M] & ~_bits(splits_M)
    is_across_M = seen_M != 0 if train_index is None else (seen_M & np.uint64(1 << train_index)) != 0
    _, group_of_M, sizes_G = np.unique(group_of_U[images.unique_of_M], return_inverse=True, return_counts=True)
    crosses_G = np.zeros(len(sizes_G), bool)
    crosses_G[group_of_M[is_across_M]] = True
    firsts_G = np.full(len(sizes_G), len(group_of_M))
    np.minimum.at(firsts_G, group_of_M, np.arange(len(group_of_M)))
    order = np.lexsort((firsts_G, -sizes_G, ~crosses_G))
    listed = order[sizes_G[order] > 1][:MAX_GROUPS]
    kept = np.unique(np.stack([splits_M, group_of_M]), axis=1)[0]  # one image of each group and split
    return DuplicateReport(
        num_compared=len(splits_M),
        num_duplicated=int(np.count_nonzero(sizes_G[group_of_M] > 1)),
        num_across_by_split=_count(splits_M[is_across_M]),
        num_within_by_split=_count(splits_M, minus=kept),
        num_groups=int(np.count_nonzero(sizes_G > 1)),
        groups=tuple(_describe_group(np.flatnonzero(group_of_M == group), images) for group in listed),
    )


def _count(splits: _Rows, minus: _Rows = np.zeros(0, np.int64)) -> dict[int, int]:  # noqa: B008 - never changed
    """Count each split, minus its count in `minus`; omit splits with a count of 0."""
    differences = np.bincount(splits, minlength=MAX_SPLITS) - np.bincount(minus, minlength=MAX_SPLITS)
    return {int(split): int(differences[split]) for split in np.flatnonzero(differences)}


def _describe_group(places: _Rows, images: _Images) -> DuplicateGroup:
    splits = images.splits_M[places]
    rank_in_split = np.zeros(len(places), np.int64)
    size_by_split = _count(splits)
    for split, size in size_by_split.items():
        rank_in_split[splits == split] = np.arange(size)
    order = np.lexsort((splits, rank_in_split))[:MAX_MEMBERS]
    members = tuple(int(row) for row in images.rows_M[places[order]])
    return DuplicateGroup(len(places), size_by_split, members)
