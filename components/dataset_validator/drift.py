"""How far the data moved since the report before."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detloom.components.dataset_validator.report import REPORT_JSON
from detloom.schemas.errors import InputError

NO_EARLIER_SPAN = "no earlier span"
REPORT_FORMAT = 2  # of report.json; counts are compared only with those of the same format


def jensen_shannon_distance(counts: Sequence[int], other_counts: Sequence[int]) -> float | None:
    """0 for equal shares to 1 for such that have nothing in common; None where one side counts nothing.

    The square root of the Jensen-Shannon divergence (Lin, "Divergence Measures Based on the Shannon Entropy", IEEE
    Trans. Inf. Theory 37(1), 1991, section IV) with logarithms to base 2; the root is a metric (Endres and Schindelin,
    "A New Metric for Probability Distributions", IEEE Trans. Inf. Theory 49(7), 2003).
    """
    p, q = np.asarray(counts, np.float64), np.asarray(other_counts, np.float64)
    if not p.sum() or not q.sum():
        return None
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2

    def divergence(shares: np.ndarray) -> float:
        is_there = shares > 0
        return float(np.sum(shares[is_there] * np.log2(shares[is_there] / middle[is_there])))

    return math.sqrt(min(max((divergence(p) + divergence(q)) / 2, 0.0), 1.0))


def chance_distance(counts: Sequence[int], other_counts: Sequence[int]) -> float | None:
    """The distance to expect, about, between two draws of so many from one distribution.

    From the first term of the divergence's series, chi-squared / (8 ln 2), whose mean has one degree of freedom less
    than there are bins with a count.
    """
    num, other_num = sum(counts), sum(other_counts)
    if not num or not other_num:
        return None
    num_bins = sum(1 for pair in zip(counts, other_counts, strict=True) if any(pair))
    return min(math.sqrt((num_bins - 1) / (8 * math.log(2)) * (1 / num + 1 / other_num)), 1.0)


@dataclass(frozen=True)
class PreviousReport:
    """The report of an earlier span."""

    span: int | None
    splits: Mapping[str, Any]


def read_previous_report(path: Path) -> PreviousReport | str:
    """A report.json, or the folder that holds one; for a report of another format, the sentence that says so.

    Raises:
        InputError: no such file, or not a report.
    """
    file = path / REPORT_JSON if path.is_dir() else path
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: the earlier report cannot be read ({error}).") from None
    if not isinstance(report, dict) or not isinstance(report.get("splits"), dict):
        raise InputError(f"{file}: got no report of a data set, allowed: the {REPORT_JSON} of DatasetValidator.")
    if report.get("format") != REPORT_FORMAT:
        return "the earlier report is of another version"
    try:
        for split in report["splits"].values():
            sum([*split["boxes_by_class"].values(), *_sizes(split)["counts"]])
            len(_sizes(split)["bins"])
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: the counts of its splits are incomplete; name a report as it was written.") from None
    return PreviousReport(report.get("span"), report["splits"])


def describe_drift(splits: Mapping[str, Any], train_split: str, previous: PreviousReport | str) -> dict[str, Any]:
    """The drift of each split, with the shares behind it for the training split.

    Args:
        splits: of the report being made.
        previous: or the sentence that says why there is none.
    """
    if isinstance(previous, str):
        return {"previous_span": None, "reason": previous, "splits": {}, "classes": [], "sizes": None}
    compared = {
        name: _compare_split(split, previous.splits[name]) for name, split in splits.items() if name in previous.splits
    }
    drift: dict[str, Any] = {
        "previous_span": previous.span,
        "reason": "",
        "splits": compared,
        "classes": [],
        "sizes": None,
    }
    if train_split in compared and _sizes(splits[train_split])["bins"] == _sizes(previous.splits[train_split])["bins"]:
        now, before = splits[train_split], previous.splits[train_split]
        names, counts, previous_counts = _class_counts(now, before)
        shares = zip(names, _shares(counts), _shares(previous_counts), strict=True)
        drift["classes"] = [{"name": name, "share": share, "previous_share": old} for name, share, old in shares]
        drift["sizes"] = {
            "bins": _sizes(now)["bins"],
            "shares": _shares(_sizes(now)["counts"]),
            "previous_shares": _shares(_sizes(before)["counts"]),
        }
    return drift


def _compare_split(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float | None]:
    _, counts, previous_counts = _class_counts(now, before)
    sizes, previous_sizes = _sizes(now)["counts"], _sizes(before)["counts"]
    if _sizes(now)["bins"] != _sizes(before)["bins"] or len(sizes) != len(previous_sizes):
        previous_sizes = [0] * len(sizes)
    return {
        "class_distance": jensen_shannon_distance(counts, previous_counts),
        "class_chance": chance_distance(counts, previous_counts),
        "size_distance": jensen_shannon_distance(sizes, previous_sizes),
        "size_chance": chance_distance(sizes, previous_sizes),
    }


def _class_counts(now: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[list[str], list[int], list[int]]:
    counts, previous_counts = now["boxes_by_class"], before["boxes_by_class"]
    names = list(dict.fromkeys([*counts, *previous_counts]))
    return names, [counts.get(name, 0) for name in names], [previous_counts.get(name, 0) for name in names]


def _sizes(split: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes: Mapping[str, Any] = split["distributions"]["box_areas_rel"]
    return sizes


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]
