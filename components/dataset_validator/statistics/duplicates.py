"""Find duplicate images in a table with one row per image: its hashes and where it is stored.

A row takes about 70 bytes; this is the only part of the statistics that grows with the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.dataset_validator.statistics.image_sample import RecordPlace
from detloom.components.similarity.near_duplicates import (
    DuplicateReport,
    find_equal,
    find_near_duplicates,
)
from detloom.schemas.contracts.arrays import Int64Array
from detloom.schemas.run_file.data_checks import DataChecks

_MAX_KEY_BYTES = 120  # longer record keys are cut; they are only displayed


def _row_type(key_bytes: int) -> np.dtype[np.void]:
    """Return the type of the table's rows; see `ShardRows`."""
    return np.dtype(
        [
            ("key", f"S{key_bytes}"),
            ("number", np.uint32),
            ("offset", np.uint64),
            ("content_hash", np.uint64),
            ("perceptual_hash", np.uint64),
            ("has_perceptual_hash", np.bool_),
        ]
    )


@dataclass(frozen=True)
class ShardRows:
    """Images of one TFRecord file, in file order.

    Attributes:
        rows_N: the record key; the number of the record in the file, and its byte offset in the uncompressed content;
            the first 64 bits of the image's SHA-256 (one false match is expected among six billion images); the
            perceptual hash, if the image has one.
    """

    split: str
    path: str
    rows_N: npt.NDArray[np.void]


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
        key_bytes = max((len(key) for key, *_ in self._rows), default=0)
        return ShardRows(self._split, self._path, np.array(self._rows, _row_type(max(key_bytes, 1))))


@dataclass(frozen=True)
class ImageRows:
    """Images of all splits, sorted by split, record key and place; row numbers start at 0."""

    splits: tuple[str, ...]
    paths: tuple[str, ...]
    split_indices_N: Int64Array
    path_indices_N: Int64Array
    rows_N: npt.NDArray[np.void]

    @classmethod
    def of_shards(cls, shards: Sequence[ShardRows], splits: Sequence[str]) -> "ImageRows":
        """Join the rows of all shards; the order of the shards does not matter."""
        shards = sorted(shards, key=lambda shard: (splits.index(shard.split), shard.path))
        sizes = np.array([len(shard.rows_N) for shard in shards], np.int64)
        path_indices_N = np.repeat(np.arange(len(shards)), sizes)
        split_indices_N = np.repeat(np.array([splits.index(shard.split) for shard in shards], np.int64), sizes)
        rows_N = np.concatenate([np.zeros(0, _row_type(1)), *(shard.rows_N for shard in shards)])
        order = np.lexsort((rows_N["number"], path_indices_N, rows_N["key"], split_indices_N))
        paths = tuple(shard.path for shard in shards)
        return cls(tuple(splits), paths, split_indices_N[order], path_indices_N[order], rows_N[order])

    def place(self, row: int) -> RecordPlace:
        stored = self.rows_N[row]
        return RecordPlace(
            split=self.splits[self.split_indices_N[row]],
            record_key=bytes(stored["key"]).decode("utf-8", "replace"),
            path=self.paths[self.path_indices_N[row]],
            number=int(stored["number"]),
            offset=int(stored["offset"]),
        )


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


def find_duplicates(
    shards: Sequence[ShardRows], splits: Sequence[str], train_split: str, checks: DataChecks
) -> Duplicates:
    """Compare all images; counts "across" splits are images of other splits with a duplicate in `train_split`."""
    rows = ImageRows.of_shards(shards, splits)
    train_index = splits.index(train_split) if train_split in splits else None
    exact = near = None
    wants_exact = (checks.exact_duplicates.severity, checks.exact_duplicates_within_split.severity) != ("off", "off")
    if wants_exact:
        exact = find_equal(rows.rows_N["content_hash"], rows.split_indices_N, train_index=train_index)
    max_distance = checks.near_duplicates.max_distance
    if checks.near_duplicates.severity != "off":
        rows_D = np.flatnonzero(rows.rows_N["has_perceptual_hash"])
        found = find_near_duplicates(
            rows.rows_N["perceptual_hash"][rows_D],
            rows.split_indices_N[rows_D],
            max_distance=max_distance,
            train_index=train_index,
        )
        groups = [replace(group, members=tuple(rows_D[list(group.members)].tolist())) for group in found.groups]
        near = replace(found, groups=tuple(groups))
    return Duplicates(rows, exact, near, max_distance)
