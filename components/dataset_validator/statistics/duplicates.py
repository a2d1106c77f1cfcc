"""Find duplicate images in a table with one row per image: its hashes and where it is stored.

A row takes about 70 bytes; this is the only part of the statistics that grows with the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.statistics.image_sample import RecordPlace
from detloom.components.similarity.near_duplicates import (
    DuplicateReport,
    find_equal,
    find_near_duplicates,
)
from detloom.schemas.run_file.data_checks import DataChecks

_MAX_KEY_BYTES = 120  # longer record keys are cut; they are only displayed


@dataclass(frozen=True)
class ShardRows:
    """Images of one TFRecord file, in file order.

    Attributes:
        numbers_N, offsets_N: index in the file, and byte offset in its uncompressed content.
        content_hashes_N: first 64 bits of the image's SHA-256; one false match is expected among six billion images.
        perceptual_hashes_N: 0 if there is none.
        has_perceptual_hash_N: True if there is a perceptual hash.
    """

    split: str
    path: str
    keys_N: npt.NDArray[np.bytes_]
    numbers_N: npt.NDArray[np.uint32]
    offsets_N: npt.NDArray[np.uint64]
    content_hashes_N: npt.NDArray[np.uint64]
    perceptual_hashes_N: npt.NDArray[np.uint64]
    has_perceptual_hash_N: npt.NDArray[np.bool_]


class RowBuilder:
    """Collect the rows of one shard."""

    def __init__(self, split: str, path: str) -> None:
        self._split, self._path = split, path
        self._rows: list[tuple[bytes, int, int, int, int, bool]] = []

    def add(self, place: RecordPlace, content_hash: int, perceptual_hash: int | None) -> None:
        key = place.record_key.encode("utf-8", "replace")[:_MAX_KEY_BYTES]
        has_hash = perceptual_hash is not None
        self._rows.append((key, place.number, place.offset, content_hash, perceptual_hash or 0, has_hash))

    def build(self) -> ShardRows:
        keys, numbers, offsets, content_hashes, perceptual_hashes, has_hash = (
            zip(*self._rows, strict=True) if self._rows else [()] * 6
        )
        return ShardRows(
            split=self._split,
            path=self._path,
            keys_N=np.array(keys, np.bytes_),
            numbers_N=np.array(numbers, np.uint32),
            offsets_N=np.array(offsets, np.uint64),
            content_hashes_N=np.array(content_hashes, np.uint64),
            perceptual_hashes_N=np.array(perceptual_hashes, np.uint64),
            has_perceptual_hash_N=np.array(has_hash, np.bool_),
        )


@dataclass
class ImageHashTable:
    """All images of all splits; the parts are in any order."""

    parts: list[ShardRows] = field(default_factory=list)

    def merge(self, other: "ImageHashTable") -> None:
        self.parts.extend(other.parts)

    def sorted_rows(self, splits: Sequence[str]) -> "ImageRows":
        """Sort the rows by split, record key and place, so that the order does not depend on the workers."""
        parts = sorted(self.parts, key=lambda part: (splits.index(part.split), part.path))
        sizes = [len(part.numbers_N) for part in parts]
        keys_N, numbers_N = _join([part.keys_N for part in parts]), _join([part.numbers_N for part in parts])
        parts_N = np.repeat(np.arange(len(parts)), sizes)
        splits_N = np.repeat(np.array([splits.index(part.split) for part in parts], np.int64), sizes)
        order = np.lexsort((numbers_N, parts_N, keys_N, splits_N)) if len(parts) else np.zeros(0, np.int64)
        columns = ("offsets_N", "content_hashes_N", "perceptual_hashes_N", "has_perceptual_hash_N")
        offsets_N, contents_N, perceptual_hashes_N, has_perceptual_hash_N = (
            _join([getattr(part, column) for part in parts])[order] for column in columns
        )
        return ImageRows(
            splits=tuple(splits),
            paths=tuple(part.path for part in parts),
            split_indices_N=splits_N[order],
            path_indices_N=parts_N[order],
            keys_N=keys_N[order],
            numbers_N=numbers_N[order],
            offsets_N=offsets_N,
            content_hashes_N=contents_N.astype(np.uint64),
            perceptual_hashes_N=perceptual_hashes_N.astype(np.uint64),
            has_perceptual_hash_N=has_perceptual_hash_N.astype(np.bool_),
        )


@dataclass(frozen=True)
class ImageRows:
    """The sorted table; row numbers start at 0."""

    splits: tuple[str, ...]
    paths: tuple[str, ...]
    split_indices_N: npt.NDArray[np.int64]
    path_indices_N: npt.NDArray[np.int64]
    keys_N: npt.NDArray[np.bytes_]
    numbers_N: npt.NDArray[np.uint32]
    offsets_N: npt.NDArray[np.uint64]
    content_hashes_N: npt.NDArray[np.uint64]
    perceptual_hashes_N: npt.NDArray[np.uint64]
    has_perceptual_hash_N: npt.NDArray[np.bool_]

    def place(self, row: int) -> RecordPlace:
        return RecordPlace(
            split=self.splits[self.split_indices_N[row]],
            record_key=bytes(self.keys_N[row]).decode("utf-8", "replace"),
            path=self.paths[self.path_indices_N[row]],
            number=int(self.numbers_N[row]),
            offset=int(self.offsets_N[row]),
        )


def _join(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return np.concatenate(arrays) if arrays else np.zeros(0)


@dataclass(frozen=True)
class Duplicates:
    """Identical and near-duplicate images.

    Attributes:
        exact, near: None if that search was off.
        max_distance: maximum number of bits in which the perceptual hashes of near-duplicates differ.
    """

    rows: ImageRows
    exact: DuplicateReport | None
    near: DuplicateReport | None
    max_distance: int

    def places(self, max_groups: int, max_members: int) -> list[RecordPlace]:
        """Return where the first members of the first groups are stored, to show them on the page."""
        groups = [group for found in (self.exact, self.near) if found for group in found.groups[:max_groups]]
        return [self.rows.place(row) for group in groups for row in group.members[:max_members]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "exact": self._describe(self.exact, 0) if self.exact else None,
            "near": self._describe(self.near, self.max_distance) if self.near else None,
        }

    def _describe(self, found: DuplicateReport, max_distance: int) -> dict[str, Any]:
        def by_split(counts: dict[int, int]) -> dict[str, int]:
            return {self.rows.splits[index]: count for index, count in sorted(counts.items())}

        def members(group_rows: Sequence[int]) -> list[dict[str, str]]:
            places = [self.rows.place(row) for row in group_rows]
            return [{"split": place.split, "record_key": place.record_key} for place in places]

        return {
            "max_distance": max_distance,
            "num_compared": found.num_compared,
            "is_complete": found.is_complete,
            "num_flat": found.num_flat,
            "num_across": sum(found.num_across_by_split.values()),
            "across_by_split": by_split(found.num_across_by_split),
            "num_within": sum(found.num_within_by_split.values()),
            "within_by_split": by_split(found.num_within_by_split),
            "num_groups": found.num_groups,
            "groups": [
                {"size": group.size, "size_by_split": by_split(group.size_by_split), "members": members(group.members)}
                for group in found.groups
            ],
        }


def find_duplicates(table: ImageHashTable, splits: Sequence[str], train_split: str, checks: DataChecks) -> Duplicates:
    """Compare all images; counts "across" splits are images of other splits with a duplicate in `train_split`."""
    rows = table.sorted_rows(splits)
    train_index = splits.index(train_split) if train_split in splits else None
    exact = near = None
    wants_exact = (checks.exact_duplicates.severity, checks.exact_duplicates_within_split.severity) != ("off", "off")
    if wants_exact:
        exact = find_equal(rows.content_hashes_N, rows.split_indices_N, train_index=train_index)
    max_distance = checks.near_duplicates.max_distance
    if checks.near_duplicates.severity != "off":
        rows_D = np.flatnonzero(rows.has_perceptual_hash_N)
        found = find_near_duplicates(
            rows.perceptual_hashes_N[rows_D],
            rows.split_indices_N[rows_D],
            max_distance=max_distance,
            train_index=train_index,
        )
        groups = [replace(group, members=tuple(rows_D[list(group.members)].tolist())) for group in found.groups]
        near = replace(found, groups=tuple(groups))
    return Duplicates(rows, exact, near, max_distance)
