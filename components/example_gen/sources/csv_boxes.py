"""Read CSV files with one box in pixels per row, as the Object Detection API's tutorials, Roboflow, VoTT and makesense
write them.

With a header, columns are found by their names; case, spaces and underscores do not matter. Without one, the order is
that of RetinaNet or makesense. A row with an image and no coordinates is an image without objects.
"""

import itertools

from detloom.components.example_gen.data_folder import unreadable
from detloom.components.example_gen.sources.csv_rows import Columns, parse_number, split_line
from detloom.components.example_gen.sources.image_entries import EntryFormat, ImageEntry, ImageRows, image_name
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.shapes import read_hw
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
        first = {role: index for index, role in reversed(list(enumerate(roles)))}
        return tuple(role if first[role] == index else "" for index, role in enumerate(roles)), True
    for order in (_RETINANET, _MAKESENSE):
        row = dict(zip(order, values, strict=False))
        numbers = [value for role, value in row.items() if role not in ("image", "class") and value]
        if (
            len(values) == len(order)
            and row["image"].lower().endswith(IMAGE_SUFFIXES)
            and None not in map(parse_number, numbers)
        ):
            return order, False
    return None


def _read_entry(element: ImageRows, settings: IngestSettings) -> ImageEntry:
    first = next(element.rows)
    roles = _CORNERS if set(_CORNERS) <= first[1].keys() else _SIZED
    rows = itertools.chain([first], element.rows)
    boxes = ((place, row) for place, row in rows if any(row[role].strip() for role in roles))
    hw = read_hw(*(parse_number(first[1].get(side, "")) for side in ("height", "width")))
    return ImageEntry((image_name(element.image),), boxes, lambda row: [_read_box(row, roles)], hw)


def _read_box(row: dict[str, str], roles: tuple[str, ...]) -> SourceObject:
    name, numbers = row["class"].strip(), [number for role in roles if (number := parse_number(row[role])) is not None]
    if len(numbers) < 4 or not is_text(name):
        raise unreadable(
            f"the class must be text, {', '.join(roles)} numbers, got {show([name, *map(row.get, roles)])}"
        )
    x, y, right, bottom = numbers
    return SourceObject(name, (x, y, right, bottom) if roles == _CORNERS else (x, y, x + right, y + bottom))


FORMAT = EntryFormat(
    DESCRIPTION="CSV files with the columns filename, class, xmin, ymin, xmax, ymax, or makesense's",
    read_entry=_read_entry,
    find_columns=_find_columns,
)
