"""Read Supervisely: `ann/<image>.json` for each image `img/<image>`, in a folder per data set of a project.

Polygons and bitmaps become the boxes around them, polygons also masks; points, lines and graphs are left out. A source
is the folder of a data set; "" is the whole project. The record key is the image's path without `img/` and suffix.
"""

import base64
import math
import posixpath
import zlib
from collections.abc import Iterator
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.image_entries import ImageEntry, number_marks, read_record
from detloom.components.example_gen.sources.json_values import is_text, parse_json, show
from detloom.components.example_gen.sources.shapes import Box, read_hw, read_points, read_polygon
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    bounding_box,
    cut_into_chunks,
)
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "img/, and JSON files with `objects` in ann/"
_LABELS_DIR, _IMAGES_DIR = "ann", "img"
_NO_BOXES = frozenset({"point", "line", "polyline", "graph"})


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find ann/ with a JSON file with `objects`, at the top or in the folder of a data set."""
    for part in ("", *folder.list_folders()):
        for path in folder.list_files(posixpath.join(part, _LABELS_DIR), (".json",))[:1]:
            if b'"objects"' in layout.read_head(folder, path):
                splits = layout.find_split_folders(folder, (".json",))
                others = (other for other in folder.list_folders() if other not in splits.values())
                are_all = not any(folder.list_files(f"{other}/{_LABELS_DIR}", (".json",)) for other in others)
                return FormatEvidence(f"Supervisely objects in {path}", splits if are_all else {})
    return None


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """List the JSON files in ann/ of the source and of the folders in it."""
    prefix = f"{source}/" if source else ""
    names = (
        path.removeprefix(prefix)
        for path in folder.iter_files(source, (".json",))
        if posixpath.basename(posixpath.dirname(path)) == _LABELS_DIR
    )
    if_empty = f"{folder.root}/{source}: found no {_LABELS_DIR}/ with a JSON file for each image."
    return cut_into_chunks(split, source, names, if_empty)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield one record per JSON file."""
    folder.expect((posixpath.join(chunk.source, name) for name in chunk.names), MAX_ANNOTATION_BYTES)
    for name in chunk.names:
        path = posixpath.join(chunk.source, name)
        part, file_name = posixpath.dirname(posixpath.dirname(name)), posixpath.basename(name)[: -len(".json")]
        images_dir = settings.images_dir or posixpath.join(chunk.source, part, _IMAGES_DIR)
        key, own = posixpath.join(part, posixpath.splitext(file_name)[0]), Chunk(chunk.split, path)
        try:
            entry = _read_file(parse_json(folder.read_text(path, MAX_ANNOTATION_BYTES)), settings.masks)
        except SourceError as error:
            yield own.reject_record(error.reason, key, error.detail)
        else:
            yield from read_record(own, key, posixpath.join(images_dir, file_name), entry)


def _read_file(data: Any, with_masks: bool) -> ImageEntry:
    values = data if isinstance(data, dict) else {}
    size = values.get("size")
    hw = read_hw(size.get("height"), size.get("width")) if isinstance(size, dict) else None
    marks = number_marks("objects", values.get("objects"))
    return ImageEntry((), marks, lambda each: _read_object(each, with_masks), hw)


def _read_object(item: Any, with_masks: bool) -> list[SourceObject] | str:
    values = item if isinstance(item, dict) else {}
    kind, title, points = values.get("geometryType", values.get("type")), values.get("classTitle"), values.get("points")
    points = points if isinstance(points, dict) else {}
    if isinstance(kind, str) and kind in _NO_BOXES:
        return kind
    if not is_text(title):
        raise unreadable(f"'classTitle' must be text, got {show(title)}")
    exterior, mask = read_points(points.get("exterior")), None
    if kind in ("bitmap", "alpha_mask"):
        box = _read_bitmap(values.get("bitmap"))
    elif kind == "rectangle" and exterior and len(exterior) == 2:
        box = bounding_box(*zip(*exterior, strict=True))
    elif kind in ("rectangle", "polygon"):
        box, polygon = read_polygon(exterior, points)
        mask = polygon if with_masks and not points.get("interior") else None
    else:
        raise unreadable(f"geometryType {show(kind)}, allowed: rectangle, polygon, bitmap")
    return [SourceObject(str(title), box, mask=mask)]


def _read_bitmap(bitmap: Any) -> Box:
    """Return the box of a bitmap: its origin, and the size in the header of its compressed PNG."""
    try:
        ((x, y),) = read_points([bitmap["origin"]]) or [(math.nan, math.nan)]
        header = zlib.decompressobj().decompress(base64.b64decode(bitmap["data"]), 24)
    except (KeyError, TypeError, ValueError, zlib.error):
        raise unreadable(f"'bitmap' must have an origin and the data of a PNG, got {show(bitmap)}") from None
    return x, y, x + int.from_bytes(header[16:20], "big"), y + int.from_bytes(header[20:24], "big")
