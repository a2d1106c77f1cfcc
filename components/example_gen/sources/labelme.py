"""Read LabelMe: one JSON file per image, with `shapes` of points in pixels."""

import base64
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.image_entries import ImageEntry, image_name, number_marks, read_record
from detloom.components.example_gen.sources.image_folder import IMAGE_SUFFIXES
from detloom.components.example_gen.sources.json_values import MAX_TEXT_BYTES, is_text, name_type, parse_json, show
from detloom.components.example_gen.sources.name_index import find_image
from detloom.components.example_gen.sources.shapes import box_at, read_hw, read_points, read_polygon
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    bounding_box,
    cut_into_chunks,
)
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "JSON files with `shapes` and `imagePath`"
_MAX_FILES = 5
_NO_BOXES = frozenset({"point", "points", "line", "linestrip"})  # shapes without an area


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find JSON files with `shapes`, at the top or in folders of splits."""
    parts = layout.find_split_folders(folder, (".json",))
    for part in dict.fromkeys(("", *parts.values(), *folder.list_folders())):
        paths = folder.list_files(part, (".json",))[:_MAX_FILES]
        heads = ((path, layout.read_head(folder, path)) for path in paths)
        found = next((path for path, head in heads if head.startswith(b"{") and b'"shapes"' in head), None)
        if found is not None:
            splits = parts if part in parts.values() else {}
            return FormatEvidence(f"LabelMe shapes in {found}{_describe_others(folder, splits)}", splits)
    return None


def _describe_others(folder: DataFolder, splits: Mapping[str, str]) -> str:
    """Name the folders with JSON files that are no splits beside folders that are, with their numbers of files."""
    others = [part for part in folder.list_folders() if splits and part not in splits.values()]
    counts = {part: sum(1 for _ in folder.iter_files(part, (".json",))) for part in others}
    named = ", ".join(f"{part}/ ({count} JSON files)" for part, count in counts.items() if count)
    return f"; not read, because not named after splits: {named}" if named else ""


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
        path, key = posixpath.join(chunk.source, name), posixpath.splitext(name)[0]
        own = Chunk(chunk.split, path)
        try:
            data = parse_json(folder.read_text(path, MAX_ANNOTATION_BYTES))
            entry = _read_file(data, settings.masks)
        except SourceError as error:
            yield own.reject_record(error.reason, key, error.detail)
        else:
            image_path = _find_image(folder, path, entry.names[0], settings.images_dir)
            if data.get("imageData") and not find_image(folder, image_path, (path,)):
                image_path = path
            yield from read_record(own, key, image_path, entry)


def _read_file(data: Any, with_masks: bool) -> ImageEntry:
    if not isinstance(data, dict):
        raise unreadable(f"the top level must be an object, got {name_type(data)}")
    names = (image_name(data.get("imagePath")),)
    marks = number_marks("shapes", data.get("shapes"))
    declared_hw = read_hw(data.get("imageHeight"), data.get("imageWidth"))
    return ImageEntry(names, marks, lambda shape: _read_shape(shape, with_masks), declared_hw)


def _find_image(folder: DataFolder, json_path: str, name: str, images_dir: str) -> str:
    """Return the image's path; if image and JSON were renamed together, the image beside the JSON with its name."""
    if images_dir:
        return join_inside(images_dir, posixpath.basename(name)) or name
    beside = posixpath.dirname(json_path)
    path = None if name.startswith("/") else join_inside("", posixpath.join(beside, name))
    stem = posixpath.splitext(json_path)[0]
    if path is not None and (posixpath.splitext(path)[0] == stem or folder.is_file(path)):
        return path
    same_stem = (stem + suffix for suffix in IMAGE_SUFFIXES)
    return next((each for each in same_stem if folder.is_file(each)), path or name)


def read_embedded_image(folder: DataFolder, path: str) -> bytes:
    """Return the image that a LabelMe file contains.

    Raises:
        SourceError: if it cannot be decoded.
    """
    try:
        return base64.b64decode(parse_json(folder.read_text(path, MAX_ANNOTATION_BYTES))["imageData"])
    except (ValueError, TypeError, KeyError):
        raise SourceError(Reason.NOT_AN_IMAGE, "imageData is not base64") from None


def _read_shape(shape: Any, with_masks: bool) -> list[SourceObject] | str:
    """Return the object, or the kind of a shape without area. A box encloses all points, in whatever order."""
    if not isinstance(shape, dict):
        raise unreadable(f"must be an object, got {name_type(shape)}")
    kind = shape.get("shape_type") or "polygon"  # LabelMe before 3.0 had only polygons
    if isinstance(kind, str) and kind in _NO_BOXES:
        return kind
    label = shape.get("label")
    name = label.strip() if isinstance(label, str) else ""
    if not is_text(name):
        raise unreadable(f"'label' must be text of at most {MAX_TEXT_BYTES} bytes, got {show(label)}")
    points = read_points(shape.get("points"))
    if points is None:
        raise unreadable(f"'points' must be pairs of numbers, got {show(shape.get('points'))}")
    mask = None
    # The points of a mask, as AI tools draw it, are two corners; its bitmap is not read.
    if (kind, len(points)) in (("rectangle", 2), ("rectangle", 4), ("mask", 2)):
        box = bounding_box(*zip(*points, strict=True))
    elif kind == "polygon" and len(points) >= 3:
        box, mask = read_polygon(points, points)
    elif kind == "circle" and len(points) == 2:
        (x, y), (edge_x, edge_y) = points
        radius = ((edge_x - x) * (edge_x - x) + (edge_y - y) * (edge_y - y)) ** 0.5
        box = box_at(x, y, radius, radius)
    else:
        allowed = "rectangle of 2 or 4 points, polygon of 3 and up, circle of 2, mask of 2"
        raise unreadable(f"shape_type {show(kind)} of {len(points)} points, allowed: {allowed}")
    flags = shape.get("flags")
    difficult, truncated = (isinstance(flags, dict) and flags.get(key) is True for key in ("difficult", "truncated"))
    return [SourceObject(name, box, difficult, truncated, mask=mask if with_masks else None)]
