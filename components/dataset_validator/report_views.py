"""From the numbers of a report to what a page shows of them: texts, bars, shares. Plain values for the templates."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detloom.components.dataset_validator.sample_pictures import Picture
from detloom.components.pages.bars import histogram
from detloom.components.pages.formats import format_count, format_share_digits

Json = Mapping[str, Any]
Pictures = Mapping[tuple[str, str], Picture]

COUNTS = (
    ("Examples", "num_examples"),
    ("Unreadable", "num_unreadable"),
    ("Without boxes", "num_without_boxes"),
    ("Boxes", "num_boxes"),
    ("Crowds", "num_crowd"),
    ("Difficult", "num_difficult"),
)
_DISTRIBUTIONS = (
    ("Boxes in a picture", "boxes_per_image"),
    ("Box size: square root of the area, px", "box_sizes_px"),
    ("Box size in the model's input, px", "box_sizes_input_px"),
    ("Shorter side in the model's input, px", "box_sides_input_px"),
    ("Box area as a share of the picture", "box_areas_rel"),
    ("Box width / height", "box_aspect_ratios"),
    ("Picture size: longer side, px", "image_sizes_px"),
    ("Picture width / height", "image_aspect_ratios"),
)
_MAX_CLASS_ROWS = 500  # of a table; a page of a hostile label map must stay small


def count_rows(splits: Json) -> list[Json]:
    """Rows of a table with a column a split."""
    rows = [
        {"name": title, "texts": [format_count(part[key]) for part in splits.values()]}
        for title, key in COUNTS
        if key in ("num_examples", "num_boxes") or any(part[key] for part in splits.values())
    ]
    sizes = [_format_sizes(part["image_hw"]) for part in splits.values()]
    return [*rows, {"name": "Picture sizes, px", "texts": sizes}]


def _format_sizes(image_hw: Json | None) -> str:
    if image_hw is None:
        return "–"
    (min_h, min_w), (max_h, max_w) = image_hw["min"], image_hw["max"]
    smallest, largest = f"{min_w} × {min_h}", f"{max_w} × {max_h}"
    return smallest if smallest == largest else f"{smallest} to {largest}"


def class_rows(splits: Json) -> list[Json]:
    """A row a class, in the order of the report."""
    names = list(dict.fromkeys(name for part in splits.values() for name in part["boxes_by_class"]))
    totals = [sum(part["boxes_by_class"].values()) for part in splits.values()]
    return [
        {
            "name": name,
            "cells": [
                {
                    "boxes": part["boxes_by_class"].get(name, 0),
                    "images": part["images_by_class"].get(name, 0),
                    "share": part["boxes_by_class"].get(name, 0) / total if total else None,
                }
                for part, total in zip(splits.values(), totals, strict=True)
            ],
        }
        for name in names[:_MAX_CLASS_ROWS]
    ]


def split_histograms(splits: Json) -> list[Json]:
    """A histogram for each distribution, with a bar a split; those that the report lacks are left out."""
    views = []
    for title, key in _DISTRIBUTIONS:
        found = [part["distributions"].get(key) for part in splits.values()]
        if found and all(found):
            views.append(histogram(title, found[0]["bins"], [part["counts"] for part in found]))
    return views


def position_maps(splits: Json) -> list[Json]:
    """A map for each split: the darker a cell, the more centres of boxes lie in it."""
    return [_position_map(name, part["positions"]) for name, part in splits.items()]


def _position_map(split: str, positions: Json) -> Json:
    counts = positions["counts"]
    total, largest = sum(map(sum, counts)), max(map(max, counts))
    cells = [
        {"x": x, "y": y, "opacity": count / largest, "text": f"{format_share_digits(count / total)} %"}
        for y, row in enumerate(counts)
        for x, count in enumerate(row)
        if count
    ]
    label = f"fullest cell: {format_share_digits(largest / total)} % of the boxes" if total else "no boxes"
    return {"title": split, "rows": positions["rows"], "columns": positions["columns"], "cells": cells, "label": label}


def picture_entries(records: Iterable[tuple[str, str]], pictures: Pictures) -> list[Json]:
    """Figures of (split, record key), each once; the picture is None where it could not be drawn."""
    return [{"picture": pictures.get(record), "name": f"{record[0]}/{record[1]}"} for record in dict.fromkeys(records)]


def sample_parts(listed: Sequence[Json], pictures: Pictures) -> list[Json]:
    """The sections of pictures that stand for the data: some of every split, some of every class."""
    samples = [(entry["split"], entry["record_key"]) for entry in listed if entry["topic"] == "sample"]
    classes = [
        {"picture": pictures[record], "name": f"{entry['topic'].partition(':')[2]} – {record[0]}/{record[1]}"}
        for entry in listed
        if entry["topic"].startswith("class:") and (record := (entry["split"], entry["record_key"])) in pictures
    ]
    text = "Drawn by a hash of the record's key, not chosen for how they look."
    parts = [
        {"title": "Samples", "text": text, "entries": picture_entries(samples, pictures)},
        {"title": "Classes in pictures", "text": "", "entries": classes},
    ]
    return [part for part in parts if part["entries"]]


def problem_parts(listed: Sequence[Json], titles: Mapping[str, str], pictures: Pictures) -> list[Json]:
    """Pictures of the first records that each check complains of."""
    by_check: dict[str, list[tuple[str, str]]] = {}
    for entry in listed:
        kind, _, check = entry["topic"].partition(":")
        if kind == "problem":
            by_check.setdefault(check, []).append((entry["split"], entry["record_key"]))
    return [
        {"title": titles.get(check, check), "entries": picture_entries(records, pictures)}
        for check, records in by_check.items()
    ]
