"""Read VGG Image Annotator (VIA) 1 and 2: JSON of annotations or of a project, or CSV; shapes in pixels.

The class of a region is its attribute `label`, `class`, `name`, `type`, `category` or `object`, or the value of all; of
a checkbox the checked options. Without attributes it is the only one of `classes`. Points and open lines are left out.
"""

from collections.abc import Iterator
from typing import Any

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources import shapes
from detloom.components.example_gen.sources.csv_rows import Columns, split_line
from detloom.components.example_gen.sources.image_entries import (
    EntryFormat,
    ImageEntry,
    ImageRows,
    image_name,
    number_marks,
)
from detloom.components.example_gen.sources.json_values import is_text, parse_json, show
from detloom.components.example_gen.sources.source_record import SourceObject
from detloom.schemas.run_file.data import IngestSettings

_CLASS_ATTRIBUTES = ("label", "class", "name", "type", "category", "object")
_COLUMNS = {
    "filename": "image",
    "region_shape_attributes": "shape_attributes",
    "region_attributes": "region_attributes",
}


def _is_json(head: bytes) -> bool:
    return head.startswith(b"{") and (b'"_via_' in head or (b'"filename"' in head and b'"regions"' in head))


def _find_columns(line: str) -> Columns | None:
    columns = tuple(_COLUMNS.get(name.strip("# "), "") for name in split_line(line) or ())
    return (columns, True) if set(_COLUMNS.values()) <= set(columns) else None


def _read_entry(element: dict[str, Any] | ImageRows, settings: IngestSettings) -> ImageEntry:
    def read(region: Any) -> list[SourceObject] | str:
        return _read_region(region, settings.classes, settings.masks and isinstance(element, dict))

    marks: Iterator[tuple[str, Any]]
    if isinstance(element, ImageRows):  # the polygons of all rows together have no bound, so they become no masks
        marks = ((place, row) for place, row in element.rows if row["shape_attributes"] not in ("", "{}"))
        return ImageEntry((image_name(element.image),), marks, read)
    regions = element.get("regions", [])
    marks = number_marks("regions", list(regions.values()) if isinstance(regions, dict) else regions)  # VIA 1: object
    return ImageEntry((image_name(element.get("filename")),), marks, read)


def _read_region(region: Any, classes: tuple[str, ...], with_masks: bool) -> list[SourceObject] | str:
    values = region if isinstance(region, dict) else {}
    shape, attributes = (
        parse_json(value or "{}") if isinstance(value := values.get(key), str) else value  # of a row it is text
        for key in ("shape_attributes", "region_attributes")
    )
    outline = _read_outline(shape if isinstance(shape, dict) else {})
    if isinstance(outline, str):
        return outline
    names = _find_classes(attributes, classes)
    if not names or not all(map(is_text, names)):
        raise unreadable(
            f"no class in {show(attributes)}; name the attribute 'label', or set the class (--classes or data.classes)"
        )
    box, mask = outline
    return [SourceObject(name, box, mask=mask if with_masks else None) for name in names]


def _read_outline(shape: dict[str, Any]) -> tuple[shapes.Box, Any] | str:
    """Return box and mask of a shape; its kind if it has no area."""
    match shape.get("name"):
        case "rect":
            x, y, width, height = shapes.read_numbers(shape, "x", "y", "width", "height")
            return (x, y, x + width, y + height), None
        case "circle":
            centre_x, centre_y, radius = shapes.read_numbers(shape, "cx", "cy", "r")
            return shapes.box_around_ellipse(centre_x, centre_y, radius, radius, 0), None
        case "ellipse":
            return shapes.box_around_ellipse(
                *shapes.read_numbers({"theta": 0, **shape}, "cx", "cy", "rx", "ry", "theta")
            ), None
        case "polygon" | "polyline" as kind:
            xs, ys = shape.get("all_points_x"), shape.get("all_points_y")
            are_pairs = isinstance(xs, list) and isinstance(ys, list) and len(xs) == len(ys)
            points = shapes.read_points(
                [[x, y] for x, y in zip(xs or (), ys or (), strict=True)] if are_pairs else None
            )
            if kind == "polyline" and points and points[0] != points[-1]:
                return kind
            return shapes.read_polygon(points, shape)
        case "point":
            return "point"
    raise unreadable(f"'shape_attributes' must be a rect, circle, ellipse, polygon or point, got {show(shape)}")


def _find_classes(attributes: Any, classes: tuple[str, ...]) -> list[str]:
    if not isinstance(attributes, dict) or not attributes:
        return list(classes) if len(classes) == 1 else []
    lower = {str(key).strip().lower(): value for key, value in attributes.items()}
    values = list(lower.values())
    only = values[0] if values.count(values[0]) == len(values) else None
    value = next((lower[key] for key in _CLASS_ATTRIBUTES if key in lower), only)
    if isinstance(value, dict):
        return [option for option, is_checked in value.items() if is_checked is True]
    return [str(value).strip()] if isinstance(value, str | int) else []


FORMAT = EntryFormat(
    DESCRIPTION="VGG Image Annotator's JSON with `regions`, or its CSV",
    read_entry=_read_entry,
    is_json=_is_json,
    find_columns=_find_columns,
    inside="_via_img_metadata",
)
