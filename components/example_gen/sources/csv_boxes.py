"""Read CSV files with one box in pixels per row, as the Object Detection API's tutorials, Roboflow, VoTT and makesense
write them.

With a header, columns are found by their names; case, spaces and underscores do not matter. Without one, the order is
that of RetinaNet or makesense. A row with an image and no coordinates is an image without objects.
"""

import itertools

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources.csv_rows import Columns, split_line
from detloom.components.example_gen.sources.image_entries import EntryFormat, ImageEntry, ImageRows, image_name
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.source_record import SourceObject
from detloom.schemas.run_file.data import IngestSettings

_NAMES = {
    "image": "filename file filepath image imagename imagepath imagefile img imgname imgpath path",
    "class": "class label classname labelname category categoryname",
    "width": "width imagewidth imgwidth",
    "height": "height imageheight imgheight",
    "xmin": "xmin x1 left",
    "ymin": "ymin y1 top",
    "xmax": "xmax x2 right",
    "ymax": "ymax y2 bottom",
    "x": "bboxx boxx",
    "y": "bboxy boxy",
    "w": "bboxwidth bboxw boxwidth boxw",
    "h": "bboxheight bboxh boxheight boxh",
}
_ROLES = {name: role for role, names in _NAMES.items() for name in names.split()}
_CORNERS, _SIZED = ("xmin", "ymin", "xmax", "ymax"), ("x", "y", "w", "h")
_RETINANET = ("image", *_CORNERS, "class")  # also Roboflow's _annotations.csv
_MAKESENSE = ("class", *_SIZED, "image", "width", "height")


def _find_columns(line: str) -> Columns | None:
    values = [value.strip() for value in split_line(line) or ()]
    roles = [_ROLES.get("".join(filter(str.isalnum, value.lower())), "") for value in values]
    if {"image", "class"} <= set(roles) and (set(_CORNERS) <= set(roles) or set(_SIZED) <= set(roles)):
        return tuple(role if role not in roles[:index] else "" for index, role in enumerate(roles)), True
    for order in (_RETINANET, _MAKESENSE):
        row = dict(zip(order, values, strict=False))
        if len(values) == len(order) and row["image"].lower().endswith(IMAGE_SUFFIXES) and _are_numbers(row):
            return order, False
    return None


def _are_numbers(row: dict[str, str]) -> bool:
    try:
        return all(
            not value or float(value) is not None for role, value in row.items() if role not in ("image", "class")
        )
    except ValueError:
        return False


def _read_entry(element: ImageRows, settings: IngestSettings) -> ImageEntry:
    first = next(element.rows)
    roles = _CORNERS if "xmin" in first[1] else _SIZED
    rows = itertools.chain([first], element.rows)
    boxes = ((place, row) for place, row in rows if any(row[role].strip() for role in roles))
    return ImageEntry((image_name(element.image),), boxes, lambda row: [_read_box(row, roles)], _read_hw(first[1]))


def _read_box(row: dict[str, str], roles: tuple[str, ...]) -> SourceObject:
    name = row["class"].strip()
    try:
        x, y, right, bottom = (float(row[role]) for role in roles)
    except ValueError:
        raise unreadable(f"{', '.join(roles)} must be numbers, got {show([row[role] for role in roles])}") from None
    if not is_text(name):
        raise unreadable(f"the class must be text, got {show(name)}")
    return SourceObject(name, (x, y, right, bottom) if roles == _CORNERS else (x, y, x + right, y + bottom))


def _read_hw(row: dict[str, str]) -> tuple[int, int] | None:
    try:
        height, width = (int(float(row.get(role, ""))) for role in ("height", "width"))
    except (ValueError, OverflowError):
        return None
    return (height, width) if height > 0 and width > 0 else None


FORMAT = EntryFormat(
    DESCRIPTION="CSV files with the columns filename, class, xmin, ymin, xmax, ymax, or makesense's",
    read_entry=_read_entry,
    find_columns=_find_columns,
)
