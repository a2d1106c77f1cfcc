"""Convert the content of a report to plain values for the templates: texts, bars, shares, drawn images."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from detloom.components.dataset_validator.report.build_report import DISTRIBUTIONS
from detloom.components.dataset_validator.statistics.image_sample import RecordPlace, read_places
from detloom.components.pages.charts import histogram
from detloom.components.pages.formats import format_count, format_share_digits, jpeg_data_uri
from detloom.components.similarity.image_hash import open_small_image
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.arrays import Float64Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.drawing.draw import draw_detections, drawn_name

MAX_PAGE_BYTES = 4_000_000  # all images as data URIs, so that the page stays below 5 MB
MAX_DRAWN_BOXES = 300  # more boxes would hide the image
_SIDE_PX = 480  # longer side of a drawn image
_JPEG_QUALITY = 75
Json = Mapping[str, Any]
COUNTS = (
    ("Examples", "num_examples"),
    ("Unreadable", "num_unreadable"),
    ("Without boxes", "num_without_boxes"),
    ("Boxes", "num_boxes"),
    ("Crowds", "num_crowd"),
    ("Difficult", "num_difficult"),
)
# Square root of the area in pixels, with the limits of COCO's small, medium and large objects.
_BOX_SIZES = ((32.0, "small, below 32 px"), (96.0, "medium, 32 to 96 px"), (float("inf"), "large, above 96 px"))
_MAX_CLASS_ROWS = 500  # rows of a table; keeps the page small for a label map of any size


@dataclass(frozen=True, kw_only=True)
class DrawnImage:
    """One drawn record.

    Attributes:
        data_uri: JPEG with the boxes drawn.
        note: limitation of the drawing, or "".
        class_names, box_sizes: distinct, of all boxes; sizes as in `_BOX_SIZES`.
    """

    split: str
    record_key: str
    image_hw: tuple[int, int]
    num_boxes: int
    data_uri: str
    note: str = ""
    class_names: tuple[str, ...] = ()
    box_sizes: tuple[str, ...] = ()


DrawnImages = Mapping[tuple[str, str], DrawnImage]


def count_rows(splits: Json) -> list[Json]:
    """Return the rows of a table with one column per split."""
    rows = [
        {"name": title, "texts": [format_count(part[key]) for part in splits.values()]}
        for title, key in COUNTS
        if key in ("num_examples", "num_boxes") or any(part[key] for part in splits.values())
    ]
    sizes = [_format_sizes(part["image_hw"]) for part in splits.values()]
    return [*rows, {"name": "Image sizes, px", "texts": sizes}]


def _format_sizes(image_hw: Json | None) -> str:
    if image_hw is None:
        return "–"
    (min_h, min_w), (max_h, max_w) = image_hw["min"], image_hw["max"]
    smallest, largest = f"{min_w} × {min_h}", f"{max_w} × {max_h}"
    return smallest if smallest == largest else f"{smallest} to {largest}"


def class_rows(splits: Json) -> list[Json]:
    """Return one row per class, in the order of the report."""
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
    """Return one histogram per distribution of the report, with one bar per split."""
    views = []
    for key, (title, _) in DISTRIBUTIONS.items():
        found = [part["distributions"].get(key) for part in splits.values()]
        if found and all(found):
            views.append(histogram(title, found[0]["bins"], [part["counts"] for part in found]))
    return views


def position_maps(splits: Json) -> list[Json]:
    """Return one map per split; a darker cell contains more box centres."""
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


def image_entries(records: Iterable[tuple[str, str]], images: DrawnImages) -> list[Json]:
    """Return one figure per distinct (split, record key); its image is None if it could not be drawn."""
    return [{"image": images.get(record), "name": f"{record[0]}/{record[1]}"} for record in dict.fromkeys(records)]


def draw_images(
    places: Iterable[RecordPlace], label_map: LabelMap, *, max_pixels: int, max_bytes: int = MAX_PAGE_BYTES
) -> dict[tuple[str, str], DrawnImage]:
    """Draw the records and return them by (split, record key); omit those that cannot be read or drawn.

    `places` are in order of importance: the last ones are omitted if they do not fit into `max_bytes`. A place that
    occurs several times is shown, and counted, each time.
    """
    shown = list(places)
    wanted = list(dict.fromkeys(shown))
    num_uses = Counter((place.split, place.record_key) for place in shown)
    drawn = {place: draw_record(place, record, label_map, max_pixels) for place, record in read_places(wanted)}
    images: dict[tuple[str, str], DrawnImage] = {}
    num_bytes = 0
    for place in wanted:
        image = drawn.get(place)
        record = place.split, place.record_key
        if image is None or record in images:
            continue
        size = len(image.data_uri) * num_uses[record]
        if num_bytes + size <= max_bytes:
            num_bytes += size
            images[record] = image
    return images


def draw_record(place: RecordPlace, serialized: bytes, label_map: LabelMap, max_pixels: int) -> DrawnImage | None:
    """Draw one tf.Example at a small size with its boxes; return None if its image cannot be decoded."""
    try:
        features = ExampleFeatures(serialized)
    except ValueError:
        return None
    small = open_small_image(features.image_bytes, (_SIDE_PX, _SIDE_PX), "RGB", max_pixels)
    if small is None:
        return None
    small.thumbnail((_SIDE_PX, _SIDE_PX))
    heights, widths = features.ints(keys.IMAGE_HEIGHT).tolist(), features.ints(keys.IMAGE_WIDTH).tolist()
    image_hw = (heights[0] if heights else small.height, widths[0] if widths else small.width)
    columns = [features.floats(key) for key in keys.BOX_KEYS_YXYX]
    class_ids = features.ints(keys.CLASS_ID).tolist()
    num_boxes = min(len(class_ids), *(len(column) for column in columns))
    num_drawn = min(num_boxes, MAX_DRAWN_BOXES)
    boxes: Float64Array = np.array([column[:num_boxes] for column in columns], np.float64).T
    names = [drawn_name(label_map.name_of(class_id)) for class_id in class_ids[:num_boxes]]
    image = draw_detections(np.asarray(small), boxes[:num_drawn], class_ids[:num_drawn], names[:num_drawn])
    return DrawnImage(
        split=place.split,
        record_key=place.record_key,
        image_hw=image_hw,
        num_boxes=num_boxes,
        data_uri=jpeg_data_uri(image, _JPEG_QUALITY),
        note=f"only the first {num_drawn} boxes are drawn" if num_drawn < num_boxes else "",
        class_names=tuple(dict.fromkeys(names)),
        box_sizes=_find_sizes(boxes, image_hw),
    )


def _find_sizes(boxes_yxyx_rel: Float64Array, image_hw: tuple[int, int]) -> tuple[str, ...]:
    """Return the names of the sizes that occur inside the image; a box that is inverted or not a number has none."""
    boxes = np.clip(boxes_yxyx_rel, 0, 1)
    sides_px = (boxes[:, 2:] - boxes[:, :2]) * image_hw
    sizes_px = np.sqrt(sides_px[(sides_px > 0).all(axis=1)].prod(axis=1))
    numbers = np.unique(np.searchsorted([limit for limit, _ in _BOX_SIZES], sizes_px, side="right"))
    return tuple(_BOX_SIZES[min(number, len(_BOX_SIZES) - 1)][1] for number in numbers.tolist())
