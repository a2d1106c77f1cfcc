"""Images that come twice: from the table of fingerprints to what the report and the checks say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detloom.components.dataset_validator.image_table import ImageRows, ImageTable
from detloom.components.dataset_validator.near_duplicates import DuplicateReport, find_equal, find_near_duplicates
from detloom.components.dataset_validator.sample_pictures import Place
from detloom.schemas.data_checks import DataChecks


@dataclass(frozen=True)
class Duplicates:
    """Equal images, and images that look alike; None where they were not looked for.

    Attributes:
        max_distance: bits in which the fingerprints of images that look alike may differ.
    """

    rows: ImageRows
    exact: DuplicateReport | None
    near: DuplicateReport | None
    max_distance: int

    def places(self, max_groups: int, max_members: int) -> list[Place]:
        """Where the first members of the first groups are stored, to be shown."""
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


def find_duplicates(table: ImageTable, splits: Sequence[str], train_split: str, checks: DataChecks) -> Duplicates:
    """Compare all images; "across" means that an image of another split has its like in `train_split`."""
    rows = table.sorted_rows(splits)
    train_index = splits.index(train_split) if train_split in splits else None
    exact = near = None
    wants_exact = (checks.exact_duplicates.severity, checks.exact_duplicates_within_split.severity) != ("off", "off")
    if wants_exact:
        exact = find_equal(rows.content_hashes_N, rows.split_indices_N, train_index=train_index)
    max_distance = checks.near_duplicates.max_distance
    if checks.near_duplicates.severity != "off":
        rows_L = np.flatnonzero(rows.has_look_N)
        found = find_near_duplicates(
            rows.looks_N[rows_L], rows.split_indices_N[rows_L], max_distance=max_distance, train_index=train_index
        )
        groups = [replace(group, members=tuple(rows_L[list(group.members)].tolist())) for group in found.groups]
        near = replace(found, groups=tuple(groups))
    return Duplicates(rows, exact, near, max_distance)
