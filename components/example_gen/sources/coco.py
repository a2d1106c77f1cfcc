"""Read COCO detection JSON: `images`, `annotations` with `bbox` [x, y, width, height] in pixels, and `categories`.

The lists may be in any order, and the annotations of an image may be anywhere in theirs. The file is therefore streamed
once into groups by image (image_groups.py), in memory that does not grow with it.
"""

import itertools
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.coco_files import find_files, find_images_dir
from detloom.components.example_gen.sources.image_entries import ImageEntry, image_name, read_record
from detloom.components.example_gen.sources.image_groups import IMAGE, OBJECT, ImageGroups, read_payload
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
)
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "a JSON file with `images` and `annotations`, at the top, in annotations/ or in train/, valid/, test/"
_MAX_CATEGORIES = 100_000
_MAX_BYTES_PER_IMAGE = 256 * 2**20  # of its annotations, which may have masks
_MAX_ID = 2**63 - 1  # largest value of an int64 feature


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find JSON files with COCO's lists: at the top, in annotations/, or Roboflow's in train/, valid/, test/."""
    found = find_files(folder)
    if not found:
        return None
    return FormatEvidence(f"COCO annotations in {', '.join(found[:4])}", layout.name_splits(found))


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """Return one chunk for each annotation file; "" means every file that `detect` names."""
    return layout.list_file_chunks(folder, split, [source] if source else find_files(folder), DESCRIPTION)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Read a file. The record key is the image id as text; records are ordered by their keys.

    Raises:
        InputError: naming file and line, if the JSON is unreadable or not a COCO detection file.
    """
    strays = _Strays()
    with ImageGroups() as groups:
        images_dir, class_names = yield from _collect(folder, chunk, settings, groups, strays)
        join = _Join(chunk, images_dir, class_names, strays)
        for image_id, items in groups.by_image():
            yield from join.join(image_id, items)
    yield from strays.summarize()


@dataclass
class _Strays:
    """Annotations without an image: counted, and reported as one reject that names the first of them."""

    num: int = 0
    first: Reject | None = None

    def add(self, reject: Reject) -> None:
        self.num += 1
        self.first = self.first or reject

    def summarize(self) -> Iterator[Reject]:
        if self.first is not None:
            more = f"; {self.num - 1} more annotations have no image" if self.num > 1 else ""
            yield replace(self.first, detail=self.first.detail + more, num_boxes=self.num)


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
    groups_of_classes: set[str] = set()
    with folder.refuse(chunk.source), folder.open(chunk.source) as file:
        keys = ("images", "annotations", "categories")
        for key, index, element in stream_lists(file, where, keys, MAX_ANNOTATION_BYTES):
            if key == "annotations":
                image_id = _id(element.get("image_id")) if type(element) is dict else None
                if index == 0:
                    _check_kind(where, element)
                if image_id is None:
                    strays.add(_reject_stray(chunk, index, element))
                    continue
                uses_zero = uses_zero or _category_id(element.get("category_id")) == 0
                try:
                    groups.add(image_id, OBJECT, (index, *_read_annotation(element, settings)))
                except SourceError as error:
                    groups.add(image_id, OBJECT, (index, error.reason.value, error.detail))
            elif key == "images":
                image_id = _id(element.get("id")) if isinstance(element, dict) else None
                problem = _image_problem(element)
                if image_id is None:
                    detail = f"images[{index}]: {problem}"
                    yield chunk.reject_record(Reason.UNREADABLE_ANNOTATION, f"#{index}", detail)
                    continue
                groups.add(image_id, IMAGE, (index, *_read_image(element, problem)))
                if problem is None and len(file_names) < layout.SAMPLE:
                    file_names.append(image_name(element["file_name"]))
            else:
                _add_category(where, index, element, class_names)
                if _category_id(element["id"]) != 0:  # a class may be a group of itself
                    groups_of_classes.add(show(element.get("supercategory")))
    _settle_categories(where, class_names, uses_zero)
    # Label maps start at 1. Category 0 of Roboflow is not a class: it groups the others and has no object.
    start = 1 if 0 in class_names and (uses_zero or show(class_names[0]) not in groups_of_classes) else 0
    for class_id, name in class_names.items():
        yield SourceClass(name, class_id + start)
    images_dir = settings.images_dir or find_images_dir(folder, chunk.source, file_names)
    return images_dir, class_names


def _add_category(where: str, index: int, category: Any, class_names: dict[int, str]) -> None:
    if isinstance(category, UnreadableElement):
        raise InputError(f"{where}: categories[{index}]: {category.detail}.")
    class_id = _category_id(category.get("id")) if isinstance(category, dict) else None
    name = category.get("name") if isinstance(category, dict) else None
    if class_id is None or not isinstance(name, str):
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


def _read_image(image: dict[str, Any], problem: str | None) -> tuple[str | None, str, int, int]:
    """Return the problem, the file name, and height and width, 0 if they are not stated."""
    if problem is not None:
        return problem, "", 0, 0
    height, width = (int(image.get(key) or 0) for key in ("height", "width"))
    return None, image_name(image["file_name"]), height, width


def _read_annotation(annotation: dict[str, Any], settings: IngestSettings) -> SourceObject:
    """Return the object, or raise a SourceError. The class is the category id until all names are read."""
    category_id = _category_id(annotation.get("category_id"))
    if category_id is None:
        raise _unknown_category(annotation.get("category_id"))
    bbox = annotation.get("bbox")
    numbers = [to_number(value) for value in bbox] if type(bbox) is list and len(bbox) == 4 else [None]
    if None in numbers:
        raise unreadable(f"'bbox' must be four numbers, got {show(bbox)}")
    x, y, width, height = (number for number in numbers if number is not None)
    is_crowd = annotation.get("iscrowd")
    if is_crowd not in (None, 0, 1):  # false and true are equal to 0 and 1
        raise unreadable(f"'iscrowd' must be 0 or 1, got {show(is_crowd)}")
    keypoints = annotation.get("keypoints") if settings.keypoints else None
    if keypoints is not None and (keypoints := _read_keypoints(keypoints)) is None:
        detail = f"'keypoints' must be triples of x, y and 0, 1 or 2, got {show(annotation['keypoints'])}"
        raise SourceError(Reason.UNREADABLE_KEYPOINTS, detail)
    return SourceObject(
        class_name=str(category_id),
        box_xyxy=(x, y, x + width, y + height),
        is_crowd=bool(is_crowd),
        area_px=to_number(annotation.get("area")),
        mask=(annotation.get("segmentation") or None) if settings.masks else None,
        keypoints=keypoints,
    )


def _read_keypoints(values: Any) -> tuple[tuple[float, float, int], ...] | None:
    if not isinstance(values, list) or len(values) % 3:
        return None
    numbers = [to_number(value) for value in values]
    if None in numbers or any(visibility not in (0, 1, 2) for visibility in numbers[2::3]):
        return None
    finite = [number for number in numbers if number is not None]
    return tuple((x, y, int(seen)) for x, y, seen in zip(finite[0::3], finite[1::3], finite[2::3], strict=True))


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
            for _, payload in objects:
                index = read_payload(payload)[0]
                self.strays.add(_reject_stray(self.chunk, index, {"image_id": image_id}))
            return
        path = self._find_image(image_id, image, len(indexes))
        if not isinstance(path, str):
            reason, problem = path
            num_boxes = sum(1 for _ in objects)
            for index in indexes:
                yield self.chunk.reject_record(reason, image_id, f"images[{index}]: {problem}", num_boxes=num_boxes)
                num_boxes = 0  # several images share them, so they count once
            return
        _, _, _, height, width = image
        declared_hw = (height, width) if height and width else None
        entry = ImageEntry((), _read_marks(objects), self._read_object, declared_hw)
        yield from read_record(self.chunk, image_id, path, entry)

    def _find_image(self, image_id: str, image: Sequence[Any], num_images: int) -> str | tuple[Reason, str]:
        """Return the image's path, or why it is rejected; of several images with one id, all are rejected."""
        _, problem, file_name, _, _ = image
        if num_images > 1:
            return Reason.DUPLICATE_ID, f"the id {show(image_id)} is used by {num_images} images, allowed: 1"
        if problem is not None:
            return Reason.UNREADABLE_ANNOTATION, problem
        return join_inside(self.images_dir, file_name) or file_name

    def _read_object(self, values: list[Any]) -> list[SourceObject]:
        if len(values) == 2:
            reason, detail = values
            raise SourceError(Reason(reason), detail)
        category_id, *fields = values
        name = self.class_names.get(int(category_id))
        if name is None:
            raise _unknown_category(int(category_id))
        return [SourceObject(name, *fields)]


def _read_marks(items: Iterator[tuple[int, bytes]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield place and values of the annotations of an image: the fields of the object, or reason and detail."""
    num_bytes = 0
    for _, payload in items:
        num_bytes += len(payload)
        index, *values = read_payload(payload)
        if num_bytes > _MAX_BYTES_PER_IMAGE:
            values = [Reason.TOO_MANY_BOXES.value, f"more than {_MAX_BYTES_PER_IMAGE} bytes"]
        yield f"annotations[{index}]", values


def _take_images(items: Iterator[tuple[int, bytes]]) -> tuple[Any, list[int], tuple[int, bytes] | None]:
    """Return the first image entry, the indexes of all image entries, which come first, and the next item."""
    image: Any = None
    indexes: list[int] = []
    for kind, payload in items:
        if kind != IMAGE:
            return image, indexes, (kind, payload)
        entry = read_payload(payload)
        image = image or entry
        indexes.append(entry[0])
    return image, indexes, None


def _reject_stray(chunk: Chunk, index: int, annotation: Any) -> Reject:
    if isinstance(annotation, UnreadableElement):
        detail = f"annotations[{index}]: {annotation.detail}"
        return chunk.reject_box(Reason.UNREADABLE_ANNOTATION, "", detail)
    image_id = annotation.get("image_id") if isinstance(annotation, dict) else None
    detail = f"annotations[{index}]: image_id {show(image_id)} is not among the images"
    return chunk.reject_box(Reason.UNKNOWN_IMAGE, _id(image_id) or "", detail)


def _unknown_category(category_id: Any) -> SourceError:
    return SourceError(Reason.UNKNOWN_CLASS, f"category_id {show(category_id)} is not among the categories")


def _id(value: Any) -> str | None:
    """Return an id as text, so that 5, 5.0 and "5" are equal: the record key cannot distinguish them."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int:
        return str(value)
    return value if is_text(value) else None


def _category_id(value: Any) -> int | None:
    """Return a category's id, which may be written as 5, 5.0 or "5"; None for anything else."""
    text = (_id(value) or "").strip()
    if not re.fullmatch("-?[0-9]{1,19}", text) or abs(int(text)) > _MAX_ID:
        return None
    return int(text)
