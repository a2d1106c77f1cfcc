"""Histograms with fixed bins: counts of whole numbers, so that merging in any order gives the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class Histogram:
    """How many values fall between two edges.

    Attributes:
        edges: ascending; below the first and from the last on there is a bin too.
        counts_Q: by bin, one more than edges.
        is_count: values are whole numbers, and edges the largest number of their bin; else an edge belongs to the bin
            above it.
    """

    __slots__ = ("counts_Q", "edges", "is_count")

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
            names.append(_text(low) if self.is_count and low == edge else f"{_text(low)}-{_text(edge)}")
        return [*names, f"{_text(edges[-1] + (1 if self.is_count else 0))}+"]

    def to_dict(self, unit: str) -> dict[str, Any]:
        return {"bins": self.bin_names(), "counts": self.counts_Q.tolist(), "unit": unit}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Histogram)
            and self.is_count == other.is_count
            and np.array_equal(self.edges, other.edges)
            and np.array_equal(self.counts_Q, other.counts_Q)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Histogram({dict(zip(self.bin_names(), self.counts_Q.tolist(), strict=True))})"


def _text(value: float) -> str:
    if 0 < value < 1 and (1 / value).is_integer():
        return f"1/{round(1 / value)}"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
