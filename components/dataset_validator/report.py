"""The validation report: one JSON file for programs, one self-contained HTML page for people."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from detloom.components.dataset_validator.checks import CheckResult
from detloom.components.dataset_validator.split_statistics import (
    BOX_COUNT_EDGES,
    BOX_SIZE_EDGES_PX,
    SplitStatistics,
    bin_names,
)
from detloom.schemas.label_map import LabelMap

REPORT_JSON = "report.json"
REPORT_HTML = "report.html"
_TEMPLATE = "report.html.j2"


def build_report(
    statistics: Mapping[str, SplitStatistics], results: Sequence[CheckResult], label_map: LabelMap
) -> dict[str, Any]:
    """The report as plain JSON values; class counts have every class of the label map and every id found."""
    statuses = {result.status for result in results}
    verdict = "failed" if "failed" in statuses else "warned" if "warned" in statuses else "passed"
    return {
        "verdict": verdict,
        "checks": [{**asdict(result), "record_keys": list(result.record_keys)} for result in results],
        "splits": {split: _describe_split(part, label_map) for split, part in statistics.items()},
    }


def _describe_split(part: SplitStatistics, label_map: LabelMap) -> dict[str, Any]:
    class_ids = sorted({*label_map.class_ids, *part.boxes_by_class_id})
    return {
        "num_examples": part.num_examples,
        "num_unreadable": part.unreadable.count,
        "num_without_boxes": part.num_without_boxes,
        "num_boxes": part.num_boxes,
        "num_crowd": part.num_crowd,
        "num_difficult": part.num_difficult,
        "boxes_by_class": {label_map.name_of(i): part.boxes_by_class_id[i] for i in class_ids},
        "images_by_class": {label_map.name_of(i): part.images_by_class_id[i] for i in class_ids},
        "box_sizes_px": _histogram(part.box_sizes, bin_names(BOX_SIZE_EDGES_PX, is_count=False)),
        "boxes_per_image": _histogram(part.box_counts, bin_names(BOX_COUNT_EDGES, is_count=True)),
    }


def _histogram(counts: Counter[int], names: list[str]) -> dict[str, int]:
    return {name: counts[index] for index, name in enumerate(names)}


def write_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Write both files into `folder`, which is made if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_JSON).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / REPORT_HTML).write_text(render_html(report), encoding="utf-8")


def render_html(report: Mapping[str, Any]) -> str:
    """One page without scripts and without anything to fetch."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    tables = [
        ("Boxes by class", "boxes_by_class"),
        ("Images by class", "images_by_class"),
        ("Box size (square root of the area, px)", "box_sizes_px"),
        ("Boxes per image", "boxes_per_image"),
    ]
    counts = [
        ("Examples", "num_examples"),
        ("Unreadable", "num_unreadable"),
        ("Without boxes", "num_without_boxes"),
        ("Boxes", "num_boxes"),
        ("Crowds", "num_crowd"),
        ("Difficult", "num_difficult"),
    ]
    return environment.get_template(_TEMPLATE).render(report=report, tables=tables, counts=counts)
