"""Read LabelMe: one JSON file per image, with `shapes` of points in pixels."""

import json
import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.image_folder import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE
from detloom.components.example_gen.sources.json_values import (
    MAX_TEXT_BYTES,
    is_pixel_count,
    is_text,
    name_type,
    show,
    to_number,
)
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    SourceRecord,
    bounding_box,
    cut_into_chunks,
)
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "JSON files with `shapes` and `imagePath`"
_HEAD_BYTES = 64 * 1024  # `shapes` precedes the image's own bytes
_MAX_FILES = 5
_NO_BOXES = frozenset({"point", "points", "line", "linestrip"})  # shapes without an area

_Point = tuple[float, float]


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find JSON files with `shapes`, at the top or in folders of splits."""
    parts = layout.find_split_folders(folder, (".json",))
    for part in dict.fromkeys(("", *parts.values(), *folder.list_folders())):
        paths = folder.list_files(part, (".json",))[:_MAX_FILES]
        found = next((path for path in paths if _looks_like_labelme(folder, path)), None)
        if found is not None:
            return FormatEvidence(f"LabelMe shapes in {found}", parts if part in parts.values() else {})
    return None


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List the JSON files in the folder `source` and below; "" is the data folder."""
    prefix = f"{source}/" if source else ""
    names = (path.removeprefix(prefix) for path in folder.iter_files(source, (".json",)))
    if_empty = f"{folder.root}/{source}: no JSON file found, allowed: a folder with one for each image."
    return cut_into_chunks(split, source, names, if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield the records; the record key is the path of the JSON file in the source, without its suffix."""
    folder.expect((posixpath.join(chunk.source, name) for name in chunk.names), MAX_ANNOTATION_BYTES)
    for name in chunk.names:
        yield from _JsonReader(folder, chunk, settings, name).read()


class _JsonReader:
    """A reader of one file."""

    def __init__(self, folder: DataFolder, chunk: Chunk, settings: IngestSettings, name: str) -> None:
        self._folder, self._settings = folder, settings
        self._path = posixpath.join(chunk.source, name)
        self._chunk = Chunk(chunk.split, self._path)
        self._key = posixpath.splitext(name)[0]

    def read(self) -> Iterator[SourceItem]:
        try:
            data = self._read_json()
        except SourceError as error:
            yield self._chunk.reject_record(error.reason, self._key, error.detail)
            return
        shapes = data["shapes"]
        if len(shapes) > MAX_OBJECTS_PER_IMAGE:
            detail = f"{len(shapes)} shapes, too many to hold in memory"
            yield self._chunk.reject_record(Reason.TOO_MANY_BOXES, self._key, detail, num_boxes=len(shapes))
            return
        image_path = self._find_image(data)
        objects = []
        left_out: Counter[str] = Counter()
        for index, shape in enumerate(shapes):
            kind = shape.get("shape_type") if isinstance(shape, dict) else None
            if isinstance(kind, str) and kind in _NO_BOXES:
                left_out[kind] += 1
                continue
            found = _read_shape(shape, self._settings.masks)
            if isinstance(found, SourceObject):
                objects.append(found)
            else:
                yield self._chunk.reject_box(Reason.UNREADABLE_ANNOTATION, self._key, f"shapes[{index}]: {found}")
        height, width = (int(data.get(key) or 0) for key in ("imageHeight", "imageWidth"))
        yield SourceRecord(
            self._chunk.split,
            self._key,
            image_path,
            self._path,
            declared_hw=(height, width) if height and width else None,
            objects=tuple(objects),
            left_out=tuple(left_out.items()),
        )

    def _read_json(self) -> dict[str, Any]:
        """Return the object, with `shapes` a list, `imagePath` text, and sizes whole numbers or absent.

        Raises:
            SourceError: for any other content.
        """
        try:
            data = json.loads(self._folder.read_text(self._path, MAX_ANNOTATION_BYTES))
        except json.JSONDecodeError as error:
            problem = f"line {error.lineno}: not readable as JSON ({error.msg})"
        except RecursionError:
            problem = "it is nested too deeply"
        except ValueError:  # from int(), which reads at most 4,300 digits
            problem = "it contains a number with too many digits"
        else:
            found = _find_problem(data)
            if found is None:
                assert isinstance(data, dict)
                return data
            problem = found
        raise SourceError(Reason.UNREADABLE_ANNOTATION, problem)

    def _find_image(self, data: dict[str, Any]) -> str:
        """Return the image's path; if image and JSON were renamed together, the image beside the JSON with its name."""
        name = data["imagePath"].replace("\\", "/")  # LabelMe on Windows
        if self._settings.images_dir:
            return join_inside(self._settings.images_dir, posixpath.basename(name)) or name
        beside = posixpath.dirname(self._path)
        path = None if name.startswith("/") else join_inside("", posixpath.join(beside, name))
        stem = posixpath.splitext(self._path)[0]
        if path is not None and (posixpath.splitext(path)[0] == stem or self._folder.is_file(path)):
            return path
        same_stem = (stem + suffix for suffix in IMAGE_SUFFIXES)
        return next((each for each in same_stem if self._folder.is_file(each)), path or name)


def _looks_like_labelme(folder: DataFolder, path: str) -> bool:
    try:
        with folder.open(path) as file:
            head = file.read(_HEAD_BYTES)
    except (SourceError, OSError):
        return False
    return b'"shapes"' in head and head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")


def _find_problem(data: Any) -> str | None:
    if not isinstance(data, dict):
        return f"the top level must be an object, got {name_type(data)}"
    if not isinstance(data.get("shapes"), list):
        return f"'shapes' must be a list, got {name_type(data.get('shapes'))}"
    if not is_text(data.get("imagePath")):
        return f"'imagePath' must be text of at most {MAX_TEXT_BYTES} bytes, got {show(data.get('imagePath'))}"
    for key in ("imageHeight", "imageWidth"):
        if data.get(key) is not None and not is_pixel_count(data[key]):
            return f"{key!r} must be a whole number of pixels, got {show(data[key])}"
    return None


def _read_shape(shape: Any, with_masks: bool) -> SourceObject | str:
    """Return the object, or an error text. A box encloses all points, in whatever order they were drawn."""
    if not isinstance(shape, dict):
        return f"must be an object, got {name_type(shape)}"
    label = shape.get("label")
    name = label.strip() if isinstance(label, str) else ""
    if not is_text(name):
        return f"'label' must be text of at most {MAX_TEXT_BYTES} bytes, got {show(label)}"
    points = _read_points(shape.get("points"))
    if points is None:
        return f"'points' must be pairs of numbers, got {show(shape.get('points'))}"
    shape_type = shape.get("shape_type") or "polygon"  # LabelMe before 3.0 had only polygons
    mask = None
    # The points of a mask, as AI tools draw it, are two corners; its bitmap is not read.
    if (shape_type, len(points)) in (("rectangle", 2), ("rectangle", 4), ("mask", 2)):
        box = bounding_box(*zip(*points, strict=True))
    elif shape_type == "polygon" and len(points) >= 3:
        box = bounding_box(*zip(*points, strict=True))
        mask = [[value for point in points for value in point]] if with_masks else None
    elif shape_type == "circle" and len(points) == 2:
        (x, y), (edge_x, edge_y) = points
        radius = ((edge_x - x) * (edge_x - x) + (edge_y - y) * (edge_y - y)) ** 0.5
        box = (x - radius, y - radius, x + radius, y + radius)
    else:
        allowed = "rectangle of 2 or 4 points, polygon of 3 and up, circle of 2, mask of 2"
        return f"shape_type {show(shape_type)} of {len(points)} points, allowed: {allowed}"
    flags = shape.get("flags")
    is_set = flags if isinstance(flags, dict) else {}
    return SourceObject(
        name, box, difficult=is_set.get("difficult") is True, truncated=is_set.get("truncated") is True, mask=mask
    )


def _read_points(points: Any) -> list[_Point] | None:
    if not isinstance(points, list):
        return None
    found: list[_Point] = []
    for point in points:
        if not isinstance(point, list) or len(point) != 2:
            return None
        x, y = map(to_number, point)
        if x is None or y is None:
            return None
        found.append((x, y))
    return found
