"""Read CVAT for images 1.1: one XML file with an <image> element per image, and its shapes in pixels.

Boxes, and the bounding boxes of polygons, ellipses, masks and cuboids, become objects; `rotation` is applied. Points,
polylines, skeletons and tags are marks without a box: counted, but not objects. The attributes `difficult`, `truncated`
and `is_crowd` are used; `occluded` is not. The record key is the image's name without its suffix.

A source is the XML file ("" is all, at the top or in its folders); `annotations.xml#Train` is the images of its
subset "Train". The text after the last `#` is a subset unless a file has the whole text as its name.
"""

import math
import posixpath
from collections.abc import Iterator
from typing import Any, BinaryIO

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources.image_entries import ImageEntry, read_record
from detloom.components.example_gen.sources.json_values import show
from detloom.components.example_gen.sources.layout import find_split_word, name_sources, name_splits
from detloom.components.example_gen.sources.shapes import Box, box_around_ellipse, box_at, parse_hw, read_polygon
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceClass,
    SourceItem,
    SourceObject,
    bounding_box,
)
from detloom.components.example_gen.sources.xml_file import has_root, stream_children
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "an XML file with the root <annotations>"
ANNOTATIONS_FILE = "annotations.xml"
DEFAULT_IMAGES_DIR = "images"
_MARKS = ("points", "polyline", "skeleton", "tag")
_ROOT = "annotations"
_MAX_FILES = 5  # XML files of which one must have CVAT's root; VOC has one for each image
_MAX_MASK_PIXELS = 1 << 25  # in the box of one mask
_MAX_SUBSET_BYTES = 64 * 2**20  # of a file that is searched for subsets during detection


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find an XML file with the root <annotations>; the splits are the subsets of its images."""
    paths = _find_files(folder)
    if len(paths) != 1:
        splits = name_splits(paths) if all(map(find_split_word, paths)) else {}
        return FormatEvidence(f"CVAT annotations in {', '.join(paths[:4])}", splits) if paths else None
    (path,) = paths
    subsets = _find_subsets(folder, path)
    names = [find_split_word(subset) or subset for subset in subsets]
    splits = name_sources([f"{path}#{subset}" for subset in subsets], names) if all(subsets) else {}
    return FormatEvidence(f"{path} is a CVAT annotation", splits)


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """Return each file as one chunk."""
    sources = [source] if source else _find_files(folder)
    if not sources:
        raise InputError(
            f"{folder.root}: no CVAT annotations for split {split!r}; give the XML file of the export 'CVAT for "
            "images 1.1'."
        )
    for each in sources:
        path, _ = _split_source(folder, each)
        if not folder.is_file(path):
            raise InputError(f"{folder.root}/{path}: the annotation file of split {split!r} does not exist.")
        yield Chunk(split, each)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Read one record per <image> of the subset.

    Raises:
        InputError: if the XML is damaged, an element is too large, or it is another kind of export.
    """
    path, subset = _split_source(folder, chunk.source)
    reader = _ImageReader(folder, chunk, path, settings)
    with folder.refuse(path), folder.open(path) as file:
        yield from _read_elements(file, reader, subset, settings)
    if reader.num_seen == 0:
        what = "no image" if subset is None else f"no image of the subset {subset!r}"
        raise InputError(f"{folder.root}/{path}: {what} for split {chunk.split!r}; give another source.")


def _read_elements(
    file: BinaryIO, reader: "_ImageReader", subset: str | None, settings: IngestSettings
) -> Iterator[SourceItem]:
    for element in stream_children(file, _ROOT, ("image", "track", "meta"), MAX_ANNOTATION_BYTES):
        match element.tag:
            case "track":
                raise InputError(
                    f"{reader.where}: contains video tracks, allowed: images; export the task from CVAT as 'CVAT for "
                    "images 1.1', including its images."
                )
            case "meta":
                yield from _read_classes(element)
            case "image" if subset is None or (element.get("subset") or "") == subset:
                yield from reader.read(element)


class _ImageReader:
    """A reader of <image> elements; `num_seen` counts them."""

    def __init__(self, folder: DataFolder, chunk: Chunk, path: str, settings: IngestSettings) -> None:
        self._folder, self._chunk, self._path = folder, Chunk(chunk.split, path), path
        beside = posixpath.dirname(path)
        usual = posixpath.join(beside, DEFAULT_IMAGES_DIR)
        self._images_dir = settings.images_dir or (usual if folder.is_folder(usual) else beside)
        self._with_masks = settings.masks
        self.where = f"{folder.root}/{path}"
        self.num_seen = 0

    def read(self, image: Any) -> Iterator[SourceItem]:
        number, self.num_seen = self.num_seen, self.num_seen + 1
        name = (image.get("name") or "").strip()
        num_boxes = sum(shape.tag not in _MARKS for shape in image)
        if not name:
            detail = f"image {number}: the attribute name is missing or empty"
            yield self._chunk.reject_record(Reason.UNREADABLE_ANNOTATION, f"#{number}", detail, num_boxes=num_boxes)
            return
        image_hw = parse_hw(image.get("height"), image.get("width"))
        shapes = ((f"shape {index}", shape) for index, shape in enumerate(image))
        entry = ImageEntry((name,), shapes, lambda shape: self._read_shape(shape, image_hw), image_hw)
        image_path = self._find_image(name, image.get("subset") or "")
        yield from read_record(self._chunk, posixpath.splitext(name)[0], image_path, entry, f"image {number}, ")

    def _find_image(self, name: str, subset: str) -> str:
        """Return the image's path; newer exports put the images of a subset into a folder with its name."""
        plain = join_inside(self._images_dir, name)
        if plain is None or not subset:
            return plain or name
        below = join_inside(posixpath.join(self._images_dir, subset), name)
        return below if below is not None and self._folder.is_file(below) else plain

    def _read_shape(self, shape: Any, image_hw: tuple[int, int] | None) -> list[SourceObject] | str:
        """Return the object of a shape, or the kind of a mark; raise a SourceError if it is invalid."""
        if shape.tag in _MARKS:
            return str(shape.tag)
        name = (shape.get("label") or "").strip()
        if not name:
            raise unreadable(f"<{shape.tag:.40}>: the attribute label is missing or empty")
        box, mask = self._read_outline(shape, name, image_hw)
        flags = {
            (attribute.get("name") or "").strip().lower(): (attribute.text or "").strip().lower() in ("true", "1")
            for attribute in shape.iterchildren("attribute")
        }
        difficult, truncated = flags.get("difficult", False), flags.get("truncated", False)
        is_crowd = flags.get("is_crowd", False) or flags.get("iscrowd", False)
        return [SourceObject(name, box, difficult, truncated, is_crowd, mask=mask)]

    def _read_outline(self, shape: Any, name: str, image_hw: tuple[int, int] | None) -> tuple[Box, Any]:
        """Return the box, and the mask if it is requested and the shape has one."""
        match shape.tag:
            case "box":
                xtl, ytl, xbr, ybr = _read_numbers(shape, name, ("xtl", "ytl", "xbr", "ybr"))
                angle = _read_angle(shape, name)
                if not angle:
                    return (xtl, ytl, xbr, ybr), None
                half_w, half_h = (xbr - xtl) / 2, (ybr - ytl) / 2
                around_w = abs(half_w * math.cos(angle)) + abs(half_h * math.sin(angle))
                around_h = abs(half_w * math.sin(angle)) + abs(half_h * math.cos(angle))
                return box_at(xtl + half_w, ytl + half_h, around_w, around_h), None
            case "ellipse":
                centre_x, centre_y, radius_x, radius_y = _read_numbers(shape, name, ("cx", "cy", "rx", "ry"))
                angle = _read_angle(shape, name)
                return box_around_ellipse(centre_x, centre_y, radius_x, radius_y, angle), None
            case "mask":
                left, top, width, height = _read_numbers(shape, name, ("left", "top", "width", "height"))
                mask = _read_mask(shape, name, (left, top, width, height), image_hw) if self._with_masks else None
                return (left, top, left + width, top + height), mask
            case "polygon":
                text = shape.get("points") or ""
                box, polygon = read_polygon(_read_points(text), text)
                return box, polygon if self._with_masks else None
            case "cuboid":
                corners = [f"{axis}{end}{side}" for end in ("tl", "bl", "tr", "br") for side in (1, 2) for axis in "xy"]
                values = _read_numbers(shape, name, corners)
                return bounding_box(values[0::2], values[1::2]), None
        raise unreadable(f"class {show(name)}: <{shape.tag:.40}>, allowed: box, polygon, ellipse, mask, cuboid")


def _read_numbers(shape: Any, class_name: str, attributes: Any) -> list[float]:
    numbers = []
    for attribute in attributes:
        text = shape.get(attribute)
        try:
            numbers.append(float(text))
        except (TypeError, ValueError):
            where = f"class {show(class_name)}: <{shape.tag}>"
            raise unreadable(f"{where} needs a number {attribute}, got {show(text)}") from None
    return numbers


def _read_angle(shape: Any, class_name: str) -> float:
    """Return radians, clockwise; NaN if the value is not finite."""
    if shape.get("rotation") is None:
        return 0.0
    (degrees,) = _read_numbers(shape, class_name, ("rotation",))
    return math.radians(degrees) if math.isfinite(degrees) else math.nan


def _read_points(text: str) -> list[tuple[float, float]] | None:
    """Return the points of "x,y;x,y;..."; None if it is anything else."""
    try:
        pairs = [pair.split(",") for pair in text.split(";")]
        return [(float(x), float(y)) for x, y in pairs]
    except ValueError:
        return None


def _read_mask(
    shape: Any, class_name: str, box_xywh_px: tuple[float, float, float, float], image_hw: tuple[int, int] | None
) -> dict[str, Any]:
    """Convert CVAT's runs, along the rows of the box, to COCO's uncompressed runs, down the columns of the image."""
    import numpy as np

    where = f"class {show(class_name)}: <mask>"
    if image_hw is None or not all(map(float.is_integer, box_xywh_px)):
        raise SourceError(Reason.UNREADABLE_MASK, f"{where} needs whole pixels, and width and height of its image")
    left, top, width, height = map(int, box_xywh_px)
    image_height, image_width = image_hw
    inside = 0 <= left < left + width <= image_width and 0 <= top < top + height <= image_height
    if not inside or width * height > _MAX_MASK_PIXELS:
        detail = f"{where} of {width}x{height} at {left}, {top}, allowed: inside the image, {_MAX_MASK_PIXELS} pixels"
        raise SourceError(Reason.UNREADABLE_MASK, detail)
    text = shape.get("rle") or ""
    try:
        runs = [int(run) for run in text.split(",")]
    except ValueError:
        runs = [-1]
    if min(runs) < 0 or sum(runs) != width * height:
        detail = f"{where} needs runs that sum to {width * height} pixels, got {show(text)}"
        raise SourceError(Reason.UNREADABLE_MASK, detail)
    mask_HW = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(height, width)
    edges = np.diff(np.pad(mask_HW.T, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    starts, ends = (
        (left + columns) * image_height + top + rows
        for columns, rows in (np.nonzero(edges == step) for step in (1, -1))
    )
    # A run that ends at the lower edge continues at the upper edge.
    meets_next = starts[1:] == ends[:-1]
    starts, ends = starts[np.append(True, ~meets_next)[: len(starts)]], ends[np.append(~meets_next, True)[: len(ends)]]
    borders = np.stack([starts, ends], axis=1).ravel()
    counts = np.diff(np.concatenate([[0], borders, [image_height * image_width]]))
    return {"size": [image_height, image_width], "counts": counts.tolist()}


def _read_classes(meta: Any) -> Iterator[SourceClass]:
    """Yield the labels of the task or project, without those of a skeleton's points."""
    for label in meta.iter("label"):
        name = (label.findtext("name") or "").strip()
        if name and not label.findtext("parent") and (label.findtext("type") or "any") not in _MARKS:
            yield SourceClass(name)


def _split_source(folder: DataFolder, source: str) -> tuple[str, str | None]:
    """Return the file and the subset; None for all images."""
    if "#" not in source or folder.is_file(source):
        return source, None
    path, _, subset = source.rpartition("#")
    return path, subset


def _find_files(folder: DataFolder) -> list[str]:
    """Return the XML files with CVAT's root at the top, or else in its folders: exports of several jobs or tasks."""
    for parts in ([""], folder.list_folders()):
        paths = [path for part in parts for path in folder.list_files(part, (".xml",))]
        named = [path for path in paths if posixpath.basename(path) == ANNOTATIONS_FILE] or paths
        if any(has_root(folder, path, _ROOT) for path in named[:_MAX_FILES]):
            return [path for path in named if has_root(folder, path, _ROOT)]
    return []


def _find_subsets(folder: DataFolder, path: str) -> list[str]:
    """Return the distinct subsets in file order; none if the file is too large to search, or damaged."""
    status = folder.status(path)
    if status is None or status.size > _MAX_SUBSET_BYTES:
        return []
    subsets: dict[str, None] = {}
    try:
        with folder.open(path) as file:
            for element in stream_children(file, _ROOT, ("image",), MAX_ANNOTATION_BYTES):
                subsets[element.get("subset") or ""] = None
    except SourceError:
        return []
    return list(subsets)
