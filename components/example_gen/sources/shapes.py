"""Convert the shapes of labelling tools to boxes around them."""

import math
from typing import Any

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources.json_values import is_pixel_count, show, to_number
from detloom.components.example_gen.sources.source_record import bounding_box

Box = tuple[float, float, float, float]  # xmin, ymin, xmax, ymax


def box_around_ellipse(centre_x: float, centre_y: float, radius_x: float, radius_y: float, angle: float) -> Box:
    """Return the box around an ellipse that is rotated by `angle` radians."""
    angle = angle if math.isfinite(angle) else math.nan
    around_w = math.hypot(radius_x * math.cos(angle), radius_y * math.sin(angle))
    around_h = math.hypot(radius_x * math.sin(angle), radius_y * math.cos(angle))
    return box_at(centre_x, centre_y, around_w, around_h)


def box_at(centre_x: float, centre_y: float, half_width: float, half_height: float) -> Box:
    return centre_x - half_width, centre_y - half_height, centre_x + half_width, centre_y + half_height


def read_points(points: Any) -> list[tuple[float, float]] | None:
    """Return the points of a list of pairs in JSON; None if it is anything else."""
    found: list[tuple[float, float]] = []
    for point in points if isinstance(points, list) else [None]:
        x, y = map(to_number, point) if isinstance(point, list) and len(point) == 2 else (None, None)
        if x is None or y is None:
            return None
        found.append((x, y))
    return found


def read_polygon(points: list[tuple[float, float]] | None, got: Any) -> tuple[Box, list[list[float]]]:
    """Return the box around a polygon, and its mask in COCO's form; raise a SourceError without three points."""
    if points is None or len(points) < 3:
        raise unreadable(f"a polygon needs three points or more, as pairs of numbers, got {show(got)}")
    return bounding_box(*zip(*points, strict=True)), [[value for point in points for value in point]]


def read_numbers(values: Any, *keys: str) -> list[float]:
    """Return the numbers of an object in JSON by their keys; raise a SourceError if one is missing."""
    numbers = [to_number(values.get(key)) for key in keys] if isinstance(values, dict) else [None]
    found = [number for number in numbers if number is not None]
    if len(found) < len(numbers):
        raise unreadable(f"the numbers {', '.join(keys)} are needed, got {show(values)}")
    return found


def read_hw(height: Any, width: Any) -> tuple[int, int] | None:
    """Return the size of an image; None unless both are whole numbers above 0."""
    is_size = is_pixel_count(height) and is_pixel_count(width) and height and width
    return (int(height), int(width)) if is_size else None


def parse_hw(height: str | None, width: str | None) -> tuple[int, int] | None:
    """Return the size of an image from text; None if it is absent, unreadable or zero, as some tools write it."""
    try:
        return read_hw(int(float(height or 0)), int(float(width or 0)))
    except (ValueError, OverflowError):
        return None
