"""Compare the data with the report of an earlier span, and keep reports for later spans.

Where nothing else keeps reports between runs, they are kept in a folder or at a URL (`history`):

span-00000012.json      report.json of span 12, which passed the checks; the next span is compared with it
failed-00000012.html    page of span 12, which failed the checks
failed.html             page of data without spans that failed the checks
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from detloom.components.properties import DATASET_REPORT_FILE
from detloom.components.storage.storage import is_address, open_storage
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import show_address

NO_EARLIER_SPAN = "no earlier span"
REPORT_FORMAT = 2  # format of report.json; reports of different formats are not compared
_NAME = re.compile(r"span-([0-9]{1,18})\.json")


def jensen_shannon_distance(counts: Sequence[int], other_counts: Sequence[int]) -> float | None:
    """Return 0 for equal distributions up to 1 for distributions without overlap; None if one side has no counts.

    The distance is the square root of the Jensen-Shannon divergence (Lin, "Divergence Measures Based on the Shannon
    Entropy", IEEE Trans. Inf. Theory 37(1), 1991, section IV) with logarithms to base 2; the root is a metric (Endres
    and Schindelin, "A New Metric for Probability Distributions", IEEE Trans. Inf. Theory 49(7), 2003).
    """
    p, q = np.asarray(counts, np.float64), np.asarray(other_counts, np.float64)
    if not p.sum() or not q.sum():
        return None
    p, q = p / p.sum(), q / q.sum()
    middle = (p + q) / 2

    def divergence(shares: np.ndarray) -> float:
        is_positive = shares > 0
        return float(np.sum(shares[is_positive] * np.log2(shares[is_positive] / middle[is_positive])))

    return math.sqrt(min(max((divergence(p) + divergence(q)) / 2, 0.0), 1.0))


def chance_distance(counts: Sequence[int], other_counts: Sequence[int]) -> float | None:
    """Return the approximate expected distance between two samples of these sizes from one distribution.

    It follows from the first term of the divergence's series, chi-squared / (8 ln 2); the degrees of freedom are the
    number of non-empty bins minus one.
    """
    num, other_num = sum(counts), sum(other_counts)
    if not num or not other_num:
        return None
    num_bins = sum(1 for pair in zip(counts, other_counts, strict=True) if any(pair))
    return min(math.sqrt((num_bins - 1) / (8 * math.log(2)) * (1 / num + 1 / other_num)), 1.0)


@dataclass(frozen=True)
class PreviousReport:
    """Report of an earlier span."""

    span: int | None
    splits: Mapping[str, Any]


def read_previous_report(path: str | Path) -> PreviousReport | str:
    """Read the report at a path or address that ends in .json, or in a folder; explain if its format differs.

    Raises:
        InputError: if the file is missing or is not a report.
    """
    is_file = str(path).endswith(".json") or (not is_address(str(path)) and not Path(path).is_dir())
    file = str(path) if is_file else f"{path}/{DATASET_REPORT_FILE}"
    folder, _, name = file.rpartition("/")
    where = show_address(file)
    try:
        with open_storage(folder or ".").open(name) as content:
            report = json.loads(content.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: the earlier report cannot be read ({error}).") from None
    if not isinstance(report, dict) or not isinstance(report.get("splits"), dict):
        raise InputError(f"{where}: not a data set report, allowed: the {DATASET_REPORT_FILE} of DatasetValidator.")
    if report.get("format") != REPORT_FORMAT:
        return "the earlier report was written by another version"
    try:
        for split in report["splits"].values():
            sum([*split["boxes_by_class"].values(), *_sizes(split)["counts"]])
            len(_sizes(split)["bins"])
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{where}: the counts of its splits are incomplete; give an unmodified report.") from None
    return PreviousReport(report.get("span"), report["splits"])


def describe_drift(splits: Mapping[str, Any], train_split: str, previous: PreviousReport | str) -> dict[str, Any]:
    """Describe the drift of each split, with the compared shares for the training split.

    Args:
        splits: splits of the new report.
        previous: the earlier report, or the reason why there is none.
    """
    drift: dict[str, Any] = {"previous_span": None, "reason": "", "splits": {}, "classes": [], "sizes": None}
    if isinstance(previous, str):
        return drift | {"reason": previous}
    compared = {
        name: _compare_split(split, previous.splits[name]) for name, split in splits.items() if name in previous.splits
    }
    drift |= {"previous_span": previous.span, "splits": compared}
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


def find_earlier_report(history: str, span: int | None) -> str | None:
    """Return the path or URL of the latest earlier span's report that can be read; None without history or span.

    Raises:
        OSError: if the storage is not available.
    """
    if not history or span is None:
        return None
    spans = {int(match[1]) for name in open_storage(history).list_names() if (match := _NAME.fullmatch(name))}
    for earlier in sorted((each for each in spans if each < span), reverse=True):
        path = f"{history.rstrip('/')}/{_name(earlier)}"
        try:
            read_previous_report(path)
        except InputError as error:
            logging.warning("%s: ignored: %s", show_address(path), error)
            continue
        logging.info("DatasetValidator: comparing with the report of span %d at %s.", earlier, show_address(history))
        return path
    return None


def keep_report(history: str, span: int, report: bytes) -> None:
    """Write report.json under its span, replacing an earlier one; do nothing without a history.

    Raises:
        OSError: if it cannot be written.
    """
    if history:
        open_storage(history).write(_name(span), report)


def keep_failed_page(history: str, span: int | None, page: bytes) -> str:
    """Write the page of data that failed the checks, and return its path or URL.

    Raises:
        OSError: if it cannot be written.
    """
    name = "failed.html" if span is None else f"failed-{span:08d}.html"
    open_storage(history).write(name, page)
    return f"{history.rstrip('/')}/{name}"


def _name(span: int) -> str:
    return f"span-{span:08d}.json"
