"""Read COCO detection JSON: `images`, `annotations` with `bbox` [x, y, width, height] in pixels, and `categories`.

The lists may be in any order, and the annotations of an image may be anywhere in theirs. The file is therefore streamed
once into groups by image (image_groups.py), in memory that does not grow with it.
"""

import itertools
import json
import struct
from array import array
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.coco_files import find_files, find_images_dir
from detloom.components.example_gen.sources.image_groups import MAX_BYTES_PER_IMAGE, MAX_OBJECTS_PER_IMAGE, ImageGroups
from detloom.components.example_gen.sources.json_stream import UnreadableElement, stream_lists
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
    SourceClass,
    SourceItem,
    SourceObject,
    SourceRecord,
    reject_box,
    reject_record,
)
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

_MAX_STRAYS = 1000  # annotations without an image that are reported one by one; the others of a file are one line
_MAX_CATEGORIES = 100_000
_MAX_ID = 2**63 - 1  # largest value of an int64 feature

# kinds of items in a group, in the order in which they are read back
_IMAGE, _OBJECT, _BAD_OBJECT = 0, 1, 2
_OBJECT_FIELDS = struct.Struct("<qq5d2?")  # index, category id, corners, area, has an area, is a crowd


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find JSON files with COCO's lists: at the top, in annotations/, or Roboflow's in train/, valid/, test/."""
    found = find_files(folder)
    if not found:
        return None
    return FormatEvidence(f"COCO annotations in {', '.join(found[:4])}", layout.name_splits(found))


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """Return one chunk for each annotation file; "" means every file that `detect` names."""
    sources = [source] if source else find_files(folder)
    if not sources:
        raise InputError(f"{folder.root}: no COCO annotation file found; give one as the source of split {split!r}.")
    for path in sources:
        try:
            folder.open(path).close()
        except SourceError as error:
            raise _unreadable(folder, path, split, error) from None
        yield Chunk(split, path)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Read a file. The record key is the image id as text; records are ordered by their keys.

    Raises:
        InputError: naming file and line, if the JSON is unreadable or not a COCO detection file.
    """
    strays = _Strays(chunk)
    with ImageGroups() as groups:
        images_dir, class_names = yield from _collect(folder, chunk, settings, groups, strays)
        join = _Join(chunk, images_dir, class_names, strays)
        for image_id, items in groups.by_image():
            yield from join.join(image_id, items)
    yield from strays.summarize_rest()


@dataclass
class _Strays:
    """A counter of annotations without an image; only the first ones are reported singly, so that the report stays
    small.
    """

    chunk: Chunk
    num: int = 0

    def count(self) -> bool:
        """Count one more; return whether it is reported singly."""
        self.num += 1
        return self.num <= _MAX_STRAYS

    def summarize_rest(self) -> Iterator[Reject]:
        num_left = self.num - _MAX_STRAYS
        if num_left > 0:
            detail = f"{num_left} more annotations have no image or are unreadable"
            yield replace(
                reject_box(self.chunk.split, Reason.UNKNOWN_IMAGE, self.chunk.source, "", detail), num_boxes=num_left
            )


def _collect(
    folder: DataFolder, chunk: Chunk, settings: IngestSettings, groups: ImageGroups, strays: _Strays
) -> Generator[SourceItem, None, tuple[str, dict[int, str]]]:
    """Group what belongs to an image; yield the classes, and a reject for each item without an image id.

    Returns:
        the folder of the images, and the class names by id.
    """
    where = f"{folder.root}/{chunk.source}"
    class_names: dict[int, str] = {}
    file_names: list[str] = []  # some
    uses_zero = False
    try:
        file = folder.open(chunk.source)
    except SourceError as error:
        raise _unreadable(folder, chunk.source, chunk.split, error) from None
    with file:
        keys = ("images", "annotations", "categories")
        for key, index, element in stream_lists(file, where, keys, MAX_ANNOTATION_BYTES):
            if key == "annotations":
                image_id = _id(element.get("image_id")) if type(element) is dict else None
                if index == 0:
                    _check_kind(where, element)
                if image_id is None:
                    if strays.count():
                        yield _reject_stray(chunk, index, element)
                    continue
                uses_zero = uses_zero or element.get("category_id") == 0
                groups.add(image_id, *_encode_object(index, element, settings))
            elif key == "images":
                image_id = _id(element.get("id")) if isinstance(element, dict) else None
                problem = _image_problem(element)
                if image_id is None:
                    detail = f"images[{index}]: {problem}"
                    yield reject_record(chunk.split, Reason.UNREADABLE_ANNOTATION, chunk.source, f"#{index}", detail)
                    continue
                groups.add(image_id, _IMAGE, _encode_image(index, element, problem))
                if problem is None and len(file_names) < layout.SAMPLE:
                    file_names.append(_with_slashes(element["file_name"]))
            else:
                _add_category(where, index, element, class_names)
    _settle_categories(where, class_names, uses_zero)
    for class_id, name in class_names.items():
        yield SourceClass(name, class_id)
    images_dir = settings.images_dir or find_images_dir(folder, chunk.source, file_names)
    return images_dir, class_names


def _add_category(where: str, index: int, category: Any, class_names: dict[int, str]) -> None:
    if isinstance(category, UnreadableElement):
        raise InputError(f"{where}: categories[{index}]: {category.detail}.")
    class_id = category.get("id") if isinstance(category, dict) else None
    name = category.get("name") if isinstance(category, dict) else None
    if type(class_id) is not int or abs(class_id) > _MAX_ID or not isinstance(name, str):
        raise InputError(f"{where}: categories[{index}] needs an integer 'id' and a 'name', got {show(category)}.")
    name = name.strip()
    if not is_text(name):
        got = f"{len(name)} characters" if len(name) > MAX_TEXT_BYTES else show(name)
        raise InputError(
            f"{where}: categories[{index}]: 'name' must be 1 to {MAX_TEXT_BYTES} bytes of text without NUL, got {got}."
        )
    if class_id in class_names:
        raise InputError(f"{where}: categories[{index}]: id {class_id} occurs twice.")
    if index >= _MAX_CATEGORIES:
        raise InputError(f"{where}: got more than {_MAX_CATEGORIES} categories.")
    class_names[class_id] = name


def _settle_categories(where: str, class_names: dict[int, str], uses_zero: bool) -> None:
    """Drop category 0 if no annotation uses it and another has its name; then check that each name has one id.

    Roboflow writes a category 0 named after the project, which may have the name of its only class.
    """
    ids: dict[str, list[int]] = {}
    for class_id, name in class_names.items():
        ids.setdefault(name, []).append(class_id)
    for name, of_name in ids.items():
        if len(of_name) > 1 and 0 in of_name and not uses_zero:
            of_name.remove(0)
            del class_names[0]
        if len(of_name) > 1:
            raise InputError(
                f"{where}: categories: {show(name)} occurs twice, with the ids {of_name[0]} and {of_name[1]}; "
                "keep one, and use it in all annotations."
            )


def _check_kind(where: str, first: Any) -> None:
    """Raise for panoptic and caption files, which have COCO's lists but no boxes, by their first annotation."""
    if isinstance(first, dict) and "bbox" not in first:
        for key, kind in (("segments_info", "panoptic"), ("caption", "caption")):
            if key in first:
                raise InputError(
                    f"{where}: annotations[0] has {key!r} and no 'bbox': got a {kind} file, allowed: a detection file "
                    "such as instances_train2017.json."
                )


def _with_slashes(file_name: str) -> str:
    """Replace backslashes, which Label Studio writes on Windows."""
    return file_name.replace("\\", "/")


def _image_problem(image: Any) -> str | None:
    if isinstance(image, UnreadableElement):
        return image.detail
    if not isinstance(image, dict):
        return f"must be an object, got {name_type(image)}"
    if _id(image.get("id")) is None:
        return f"'id' must be a number or text, got {show(image.get('id'))}"
    if not is_text(image.get("file_name")):
        return f"'file_name' must be text of at most {MAX_TEXT_BYTES} bytes, got {show(image.get('file_name'))}"
    for key in ("height", "width"):
        value = image.get(key)
        if value is not None and not is_pixel_count(value):
            return f"{key!r} must be a whole number of pixels, got {show(value)}"
    return None


def _encode_image(index: int, image: dict[str, Any], problem: str | None) -> bytes:
    if problem is not None:
        return json.dumps([index, problem, None, 0, 0]).encode()
    height, width = (int(image.get(key) or 0) for key in ("height", "width"))
    return json.dumps([index, None, _with_slashes(image["file_name"]), height, width]).encode()


def _encode_object(index: int, annotation: dict[str, Any], settings: IngestSettings) -> tuple[int, bytes]:
    """Return kind and payload of one annotation; its category is looked up after the file has been read."""
    category_id = annotation.get("category_id")
    if type(category_id) is not int or abs(category_id) > _MAX_ID:
        return _bad(index, Reason.UNKNOWN_CLASS, _unknown_category(category_id))
    bbox = annotation.get("bbox")
    numbers = [to_number(value) for value in bbox] if type(bbox) is list and len(bbox) == 4 else [None]
    if None in numbers:
        return _bad(index, Reason.UNREADABLE_ANNOTATION, f"'bbox' must be four numbers, got {show(bbox)}")
    x, y, width, height = (number for number in numbers if number is not None)
    area, is_crowd = to_number(annotation.get("area")), annotation.get("iscrowd")
    if is_crowd not in (None, 0, 1):  # false and true are equal to 0 and 1
        return _bad(index, Reason.UNREADABLE_ANNOTATION, f"'iscrowd' must be 0 or 1, got {show(is_crowd)}")
    packed = _OBJECT_FIELDS.pack(
        index, category_id, x, y, x + width, y + height, area or 0.0, area is not None, bool(is_crowd)
    )
    if not settings.masks and not settings.keypoints:
        return _OBJECT, packed
    keypoints = annotation.get("keypoints") if settings.keypoints else None
    if keypoints is not None and (keypoints := _read_keypoints(keypoints)) is None:
        detail = f"'keypoints' must be triples of x, y and 0, 1 or 2, got {show(annotation['keypoints'])}"
        return _bad(index, Reason.UNREADABLE_KEYPOINTS, detail)
    mask = (annotation.get("segmentation") or None) if settings.masks else None
    try:
        return _OBJECT, packed + json.dumps([mask, keypoints]).encode()
    except RecursionError:
        return _bad(index, Reason.UNREADABLE_MASK, "'segmentation' is nested too deeply")


def _read_keypoints(values: Any) -> list[tuple[float, float, int]] | None:
    if not isinstance(values, list) or len(values) % 3:
        return None
    numbers = [to_number(value) for value in values]
    if None in numbers or any(visibility not in (0, 1, 2) for visibility in numbers[2::3]):
        return None
    finite = [number for number in numbers if number is not None]
    return [(x, y, int(seen)) for x, y, seen in zip(finite[0::3], finite[1::3], finite[2::3], strict=True)]


def _bad(index: int, reason: Reason, detail: str) -> tuple[int, bytes]:
    return _BAD_OBJECT, json.dumps([index, reason.value, detail]).encode()


@dataclass(frozen=True)
class _Join:
    """Combine the items of one image to its record or its rejects."""

    chunk: Chunk
    images_dir: str
    class_names: dict[int, str]
    strays: _Strays

    def join(self, image_id: str, items: Iterator[tuple[int, bytes]]) -> Iterator[SourceItem]:
        image, indexes, first_object = _take_images(items)
        objects = itertools.chain(() if first_object is None else (first_object,), items)
        if image is None:
            for kind, payload in objects:
                if self.strays.count():
                    index = _OBJECT_FIELDS.unpack_from(payload)[0] if kind == _OBJECT else json.loads(payload)[0]
                    detail = f"annotations[{index}]: image_id {show(image_id)} is not among the images"
                    yield reject_box(self.chunk.split, Reason.UNKNOWN_IMAGE, self.chunk.source, image_id, detail)
            return
        path = self._find_image(image_id, image, len(indexes))
        if not isinstance(path, str):
            num_boxes = sum(1 for _ in objects)
            for index in indexes:
                detail = f"images[{index}]: {path[1]}"
                yield reject_record(self.chunk.split, path[0], self.chunk.source, image_id, detail, num_boxes)
                num_boxes = 0  # several images share them, so they count once
            return
        yield from self._read_objects(image_id, path, image, objects)

    def _find_image(self, image_id: str, image: bytes, num_images: int) -> str | tuple[Reason, str]:
        """Return the image's path, or why it is rejected; of several images with one id, all are rejected."""
        _, problem, file_name, _, _ = json.loads(image)
        if num_images > 1:
            return Reason.DUPLICATE_ID, f"the id {show(image_id)} is used by {num_images} images, allowed: 1"
        if problem is not None:
            return Reason.UNREADABLE_ANNOTATION, problem
        path = join_inside(self.images_dir, file_name)
        if path is None:
            return Reason.PATH_OUTSIDE, f"file_name {show(file_name)} leads out of the image folder"
        return path

    def _read_objects(
        self, image_id: str, path: str, image: bytes, items: Iterator[tuple[int, bytes]]
    ) -> Iterator[SourceItem]:
        objects: list[SourceObject] = []
        rejects: list[Reject] = []
        num_bytes = 0
        for kind, payload in items:
            num_bytes += len(payload)
            if len(objects) + len(rejects) >= MAX_OBJECTS_PER_IMAGE or num_bytes > MAX_BYTES_PER_IMAGE:
                num_boxes = len(objects) + len(rejects) + 1 + sum(1 for _ in items)
                detail = f"{num_boxes} annotations with {num_bytes} bytes or more, too many to hold in memory"
                yield reject_record(
                    self.chunk.split, Reason.TOO_MANY_BOXES, self.chunk.source, image_id, detail, num_boxes
                )
                return
            found = self._read_object(image_id, kind, payload)
            if isinstance(found, SourceObject):
                objects.append(found)
            else:
                rejects.append(found)
        yield from rejects
        _, _, _, height, width = json.loads(image)
        declared_hw = (height, width) if height and width else None
        yield SourceRecord(self.chunk.split, image_id, path, self.chunk.source, declared_hw, tuple(objects))

    def _read_object(self, image_id: str, kind: int, payload: bytes) -> SourceObject | Reject:
        if kind == _BAD_OBJECT:
            index, reason, detail = json.loads(payload)
            return reject_box(
                self.chunk.split, Reason(reason), self.chunk.source, image_id, f"annotations[{index}]: {detail}"
            )
        index, category_id, xmin, ymin, xmax, ymax, area, has_area, is_crowd = _OBJECT_FIELDS.unpack_from(payload)
        name = self.class_names.get(category_id)
        if name is None:
            detail = f"annotations[{index}]: {_unknown_category(category_id)}"
            return reject_box(self.chunk.split, Reason.UNKNOWN_CLASS, self.chunk.source, image_id, detail)
        mask, keypoints = None, None
        if len(payload) > _OBJECT_FIELDS.size:
            mask, points = json.loads(payload[_OBJECT_FIELDS.size :])
            keypoints = None if points is None else tuple(map(tuple, points))
        return SourceObject(
            class_name=name,
            box_xyxy=(xmin, ymin, xmax, ymax),
            is_crowd=is_crowd,
            area_px=area if has_area else None,
            mask=mask,
            keypoints=keypoints,
        )


def _take_images(items: Iterator[tuple[int, bytes]]) -> tuple[bytes | None, Sequence[int], tuple[int, bytes] | None]:
    """Return the first image entry, the indexes of all image entries, which come first, and the next item."""
    image, indexes = None, array("q")  # any number of entries may have the same id
    for kind, payload in items:
        if kind != _IMAGE:
            return image, indexes, (kind, payload)
        image = image or payload
        indexes.append(json.loads(payload)[0])
    return image, indexes, None


def _reject_stray(chunk: Chunk, index: int, annotation: Any) -> Reject:
    if isinstance(annotation, UnreadableElement):
        detail = f"annotations[{index}]: {annotation.detail}"
        return reject_box(chunk.split, Reason.UNREADABLE_ANNOTATION, chunk.source, "", detail)
    image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
    detail = f"annotations[{index}]: image_id {show(image_id)} is not among the images"
    return reject_box(chunk.split, Reason.UNKNOWN_IMAGE, chunk.source, "", detail)


def _unknown_category(category_id: Any) -> str:
    return f"category_id {show(category_id)} is not among the categories"


def _unreadable(folder: DataFolder, source: str, split: str, error: SourceError) -> InputError:
    where = f"{folder.root}/{source}"
    return InputError(f"{where}: the annotation file of split {split!r} cannot be read ({error.detail}).")


def _id(value: Any) -> str | None:
    """Return an id as text, so that 5 and "5" are equal: the record key cannot distinguish them."""
    if type(value) is int:
        return str(value)
    return value if is_text(value) else None
