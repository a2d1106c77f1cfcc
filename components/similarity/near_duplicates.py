"""Find near-duplicate images and their splits by 64-bit hashes. Takes arrays and returns bounded lists.

Two hashes within a Hamming distance of d agree in at least two of any d + 2 bands of their bits, because d differing
bits are in at most d bands (the pigeonhole principle; for fingerprints: Manku, Jain and Das Sarma, "Detecting
Near-Duplicates for Web Crawling", WWW 2007, section 3). So only hashes that agree in two bands, a bucket, are compared.

The number of pairs in a bucket is quadratic. In a large one (black frames, drawings of one template) each hash is only
compared with its neighbours in the order of the other bits. Nearly all pairs are found or connected by others all the
same, but the counts are lower bounds then.
"""

import itertools
import logging
from dataclasses import dataclass, field

import numpy as np

from detloom.schemas.contracts.arrays import Array, Int64Array, Uint64Array

_LOGGER = logging.getLogger("detloom")

NUM_BITS = 64
MAX_GROUPS = 50  # groups that are listed; all are counted
MAX_MEMBERS = 20  # images listed per group
MAX_SPLITS = 63  # the splits of an image are the bits of one integer
MAX_BUCKET = 512  # hashes of a bucket that are compared pairwise
_NUM_NEIGHBOURS = 32  # in a larger bucket, the number of hashes that each one is compared with
_MAX_EDGES = 1 << 20  # pairs buffered before they are merged into groups: 16 MB


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
        is_complete: all pairs in question were compared. Otherwise more than `MAX_BUCKET` hashes are much alike,
            `num_across_by_split` and `num_within_by_split` are lower bounds, and a group may be listed as several.
        num_compared: images with a usable hash.
        num_flat: images not compared, because they have so little structure that they all look the same.
        num_across_by_split: images with a direct duplicate in another split; with `train_index`, images of other splits
            with a direct duplicate in that split.
        num_within_by_split: images to remove so that each group keeps one image per split.
        groups: groups across splits first, then by size; at most `MAX_GROUPS` of `num_groups`.
    """

    num_compared: int = 0
    num_flat: int = 0
    num_across_by_split: dict[int, int] = field(default_factory=dict)
    num_within_by_split: dict[int, int] = field(default_factory=dict)
    num_groups: int = 0
    groups: tuple[DuplicateGroup, ...] = ()
    is_complete: bool = True


def find_equal(hashes_N: Array, split_indices_N: Array, *, train_index: int | None = None) -> DuplicateReport:
    """Find images with equal hashes; with 64 bits of a content hash, these are identical files."""
    search = _Search(np.asarray(hashes_N, np.uint64), split_indices_N, np.arange(len(hashes_N)), max_distance=0)
    return _report(search, train_index)


def find_near_duplicates(
    hashes_N: Array,
    split_indices_N: Array,
    *,
    max_distance: int,
    train_index: int | None = None,
) -> DuplicateReport:
    """Find images whose hashes differ in at most `max_distance` bits, including identical ones.

    A hash with at most `max_distance` bits set, or at most that many not set, is skipped as flat: an empty page, a
    night sky or a smooth gradient resembles others without showing the same scene.

    Args:
        split_indices_N: 0 to `MAX_SPLITS` - 1. The caller sorts the images if the result must not depend on the order
            of reading.
        max_distance: 0 to 10; above, bands are so narrow that they save little compared with all pairs.
        train_index: split that must not share images with others; None compares all splits with each other.
    """
    return _report(_search_near(np.asarray(hashes_N, np.uint64), split_indices_N, max_distance), train_index)


def group_near_duplicates(hashes_N: Uint64Array, *, max_distance: int) -> Int64Array:
    """Return a number for each image that is equal for near-duplicates, also for those that others connect.

    A flat image (see `find_near_duplicates`) is alone. A warning is logged if more than `MAX_BUCKET` images are so much
    alike that a group may have several numbers.
    """
    groups_N = np.arange(len(hashes_N))
    search = _search_near(hashes_N, np.zeros(len(hashes_N)), max_distance)
    if not search.is_complete:
        _LOGGER.warning(
            "More than %d images look much alike. Not all pairs were compared, so near-duplicates of them may be in "
            "different groups and splits; split them by a group of your own (group_by).",
            MAX_BUCKET,
        )
    groups_M = search.groups()[search.unique_of_M]
    _, firsts, places_M = np.unique(groups_M, return_index=True, return_inverse=True)
    groups_N[search.rows_M] = search.rows_M[firsts[places_M]]
    return groups_N


def _search_near(hashes_N: Uint64Array, split_indices_N: Array, max_distance: int) -> "_Search":
    num_set_N = count_bits(hashes_N)
    is_flat_N = (num_set_N <= max_distance) | (num_set_N >= NUM_BITS - max_distance)
    return _Search(hashes_N, split_indices_N, np.flatnonzero(~is_flat_N), max_distance)


def count_bits(values: Uint64Array) -> Int64Array:
    """Count the bits set in each number (Warren, Hacker's Delight, 5-1; NumPy has `bitwise_count` only since 2.0)."""
    constant = [np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)]
    one, two, four, top = (np.uint64(shift) for shift in (1, 2, 4, 56))
    values = values - ((values >> one) & constant[0])
    values = (values & constant[1]) + ((values >> two) & constant[1])
    values = (values + (values >> four)) & constant[2]
    return ((values * np.uint64(0x0101010101010101)) >> top).astype(np.int64)


class _Search:
    """Find the groups of near hashes among M of the caller's images.

    Attributes:
        rows_M, splits_M, bits_M: rows in the caller's arrays, and their splits, also as bits. `num_flat` are left out.
        unique_of_M: position of each image's hash among the U distinct ones.
        splits_of_U, partner_splits_U: splits of each distinct hash and of its partners (all hashes within the
            distance), as the bits of an integer.
        is_complete: see `DuplicateReport`.
    """

    def __init__(self, hashes_N: Uint64Array, split_indices_N: Array, rows_M: Int64Array, max_distance: int) -> None:
        splits = np.asarray(split_indices_N).astype(np.int64)
        self.rows_M, self.splits_M, self.num_flat = rows_M, splits[rows_M], len(hashes_N) - len(rows_M)
        self._max_distance, self.is_complete = max_distance, True
        self._unique_U, self.unique_of_M = np.unique(hashes_N[rows_M], return_inverse=True)
        self.splits_of_U, self.partner_splits_U = np.zeros((2, len(self._unique_U)), np.uint64)
        self.bits_M = np.uint64(1) << self.splits_M.astype(np.uint64)
        np.bitwise_or.at(self.splits_of_U, self.unique_of_M, self.bits_M)
        self._groups_U = np.arange(len(self._unique_U))
        self._edges: list[tuple[Int64Array, Int64Array]] = []  # pairs of hashes whose groups are to be merged
        self._num_edges = 0
        if max_distance == 0 or len(self._unique_U) < 2:
            return
        num_bands = max_distance + 2
        # Each band takes every num_bands-th bit, because neighbouring bits of an image hash are correlated.
        bands = [sum(1 << bit for bit in range(first, NUM_BITS, num_bands)) for first in range(num_bands)]
        for number, (band, other) in enumerate(itertools.combinations(bands, 2)):
            self._compare_buckets(np.uint64(band | other), np.uint64(number % (NUM_BITS // 2)))

    def _compare_buckets(self, mask: np.uint64, num_last: np.uint64) -> None:
        """Compare the hashes within each bucket, those with the same bits of `mask`.

        Compare each hash with the next one, then with the one after it, and so on, in all buckets at once.

        Args:
            num_last: highest bits that do not matter for the order in a bucket, so that neighbours differ by mask.
        """
        keys_U = self._unique_U & mask
        rows = np.lexsort((self._unique_U << num_last, keys_U))
        hashes = self._unique_U[rows]
        _, bucket_of_row, sizes = np.unique(keys_U[rows], return_inverse=True, return_counts=True)
        is_large = sizes > MAX_BUCKET
        self.is_complete &= not is_large.any()
        num_partners = np.where(is_large, _NUM_NEIGHBOURS, sizes - 1)[bucket_of_row]
        firsts = np.arange(len(rows))
        for step in range(1, int(num_partners.max()) + 1):
            firsts = firsts[(firsts + step < len(rows)) & (num_partners[firsts] >= step)]
            firsts = firsts[bucket_of_row[firsts] == bucket_of_row[firsts + step]]
            distances = count_bits(hashes[firsts] ^ hashes[firsts + step])
            near = firsts[distances <= self._max_distance]
            self._connect(rows[near], rows[near + step])

    def _connect(self, first: Int64Array, second: Int64Array) -> None:
        np.bitwise_or.at(self.partner_splits_U, first, self.splits_of_U[second])
        np.bitwise_or.at(self.partner_splits_U, second, self.splits_of_U[first])
        is_new = self._groups_U[first] != self._groups_U[second]
        self._edges.append((first[is_new], second[is_new]))
        self._num_edges += np.count_nonzero(is_new)
        if self._num_edges >= _MAX_EDGES:
            self.groups()

    def groups(self) -> Int64Array:
        """Merge the groups of connected hashes, and return the number of each hash's group [U]."""
        if self._edges:
            # late: every command imports this module, and scipy takes a third of a second
            from scipy.sparse import coo_matrix
            from scipy.sparse.csgraph import connected_components

            first, second = (self._groups_U[np.concatenate(part)] for part in zip(*self._edges, strict=True))
            edges = coo_matrix((np.ones(len(first), np.int8), (first, second)), shape=(len(self._groups_U),) * 2)
            _, groups = connected_components(edges, directed=False)
            self._groups_U = groups.astype(np.int64)[self._groups_U]
            self._edges, self._num_edges = [], 0
        return self._groups_U


def _report(search: _Search, train_index: int | None) -> DuplicateReport:
    """Convert groups of hashes to groups of images."""
    splits_M = search.splits_M
    seen_M = (search.splits_of_U | search.partner_splits_U)[search.unique_of_M] & ~search.bits_M
    is_across_M = seen_M != 0 if train_index is None else (seen_M & np.uint64(1 << train_index)) != 0
    _, firsts_G, group_of_M, sizes_G = np.unique(
        search.groups()[search.unique_of_M], return_index=True, return_inverse=True, return_counts=True
    )
    crosses_G = np.isin(np.arange(len(sizes_G)), group_of_M[is_across_M])
    order = np.lexsort((firsts_G, -sizes_G, ~crosses_G))
    listed = order[sizes_G[order] > 1][:MAX_GROUPS]
    # The first image of each group in each split is kept.
    is_surplus_M = np.ones(len(splits_M), bool)
    is_surplus_M[np.unique(np.stack([splits_M, group_of_M]), axis=1, return_index=True)[1]] = False
    return DuplicateReport(
        num_compared=len(splits_M),
        num_flat=search.num_flat,
        num_across_by_split=_count(splits_M[is_across_M]),
        num_within_by_split=_count(splits_M[is_surplus_M]),
        num_groups=int(np.count_nonzero(sizes_G > 1)),
        groups=tuple(_describe_group(np.flatnonzero(group_of_M == group), search) for group in listed),
        is_complete=search.is_complete,
    )


def _count(splits: Int64Array) -> dict[int, int]:
    """Count each split that occurs."""
    return dict(zip(*(column.tolist() for column in np.unique(splits, return_counts=True)), strict=True))


def _describe_group(places: Int64Array, search: _Search) -> DuplicateGroup:
    splits = search.splits_M[places]
    rank_in_split = np.zeros(len(places), np.int64)
    for split in np.unique(splits):
        rank_in_split[splits == split] = np.arange(np.count_nonzero(splits == split))
    shown = places[np.lexsort((splits, rank_in_split))[:MAX_MEMBERS]]
    return DuplicateGroup(len(places), _count(splits), tuple(search.rows_M[shown].tolist()))
