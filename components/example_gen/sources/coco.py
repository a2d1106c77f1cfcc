"""COCO detection JSON: `images`, `annotations` with `bbox` [x, y, width, height] in pixels, `categories`."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detloom.components.example_gen.sources.source_record import SourceObject, SourceRecord, SourceSplit, join_inside
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason, Reject

DEFAULT_IMAGES_DIR = "images"  # where the data folder has one; otherwise file names are relative to the data folder


def read_coco_split(folder: Path, split: str, annotation_file: str, images_dir: str) -> SourceSplit:
    """Read one annotation JSON whole; the record key is the image id.

    Raises:
        InputError: naming file and line, where the JSON cannot be read or is not a COCO detection file.
    """
    where = folder / annotation_file
    data = _read_json(where, split)
    for key in ("images", "annotations", "categories"):
        if not isinstance(data.get(key), list):
            raise InputError(
                f"{where}: {key!r} must be a list, got {_type_name(data.get(key))}; "
                "allowed: a COCO detection file with 'images', 'annotations' and 'categories'."
            )
    class_names = _read_categories(where, data["categories"])
    result = SourceSplit(split=split, source=annotation_file, class_ids={n: i for i, n in class_names.items()})
    images_dir = find_images_dir(folder, images_dir)
    by_image: dict[Any, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    num_by_id = Counter(_id(image.get("id")) for image in data["images"] if isinstance(image, dict))
    result.num_boxes_in = len(data["annotations"])
    for index, annotation in enumerate(data["annotations"]):
        image_id = _id(annotation.get("image_id")) if isinstance(annotation, dict) else None
        if image_id is not None and image_id in num_by_id:
            by_image[image_id].append((index, annotation))
        else:
            detail = f"annotations[{index}]: image_id {image_id} is not among the images"
            _reject(result, Reason.UNKNOWN_IMAGE, "box", str(image_id), detail)
    for index, image in enumerate(data["images"]):
        image_id = _id(image.get("id")) if isinstance(image, dict) else None
        annotations = by_image.pop(image_id, [])
        path = _find_image(image, images_dir, num_by_id)
        if not isinstance(path, str):
            key = f"#{index}" if image_id is None else str(image_id)
            _reject(result, path[0], "record", key, f"images[{index}]: {path[1]}")
            result.num_boxes_quarantined += len(annotations)
            continue
        objects = []
        for annotation_index, annotation in annotations:
            item = _read_object(annotation, class_names)
            if isinstance(item, SourceObject):
                objects.append(item)
            else:
                _reject(result, item[0], "box", str(image_id), f"annotations[{annotation_index}]: {item[1]}")
        declared_hw = (image["height"], image["width"]) if image.get("height") and image.get("width") else None
        record = SourceRecord(split, str(image_id), path, annotation_file, declared_hw, tuple(objects))
        result.records.append(record)
    return result


def find_images_dir(folder: Path, images_dir: str) -> str:
    """The folder that file names are relative to; itself relative to the data folder, "" for that one."""
    return images_dir or (DEFAULT_IMAGES_DIR if (folder / DEFAULT_IMAGES_DIR).is_dir() else "")


def _reject(result: SourceSplit, reason: Reason, scope: str, key: str, detail: str) -> None:
    result.rejects.append(
        Reject(reason=reason, scope=scope, split=result.split, file=result.source, record_key=key, detail=detail)
    )


def _read_json(path: Path, split: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not readable as JSON ({error.msg}, column {error.colno}).") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the annotation file of split {split!r} cannot be read ({error}).") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}:1: the top level must be an object, got {_type_name(data)}.")
    return data


def _read_categories(where: Path, categories: list[Any]) -> dict[int, str]:
    """Names by category id."""
    names: dict[int, str] = {}
    for index, category in enumerate(categories):
        class_id = category.get("id") if isinstance(category, dict) else None
        name = category.get("name") if isinstance(category, dict) else None
        if (
            isinstance(class_id, bool)
            or not isinstance(class_id, int)
            or not isinstance(name, str)
            or not _is_text(name)
        ):
            raise InputError(f"{where}: categories[{index}] needs an integer 'id' and a 'name', got {category!r:.80}.")
        if class_id in names or name in names.values():
            raise InputError(f"{where}: categories[{index}] ({class_id}, {name!r}) stands twice.")
        names[class_id] = name
    return names


def _find_image(image: Any, images_dir: str, num_by_id: Mapping[Any, int]) -> str | tuple[Reason, str]:
    """The path of the image relative to the data folder, or why the record is refused.

    Of images with one id none is kept: whose the annotations are cannot be told.
    """
    problem = _image_problem(image)
    if problem:
        return Reason.UNREADABLE_ANNOTATION, problem
    num_same = num_by_id[_id(image["id"])]
    if num_same > 1:
        return Reason.DUPLICATE_ID, f"the id {image['id']!r} is that of {num_same} images, allowed: 1"
    path = join_inside(images_dir, image["file_name"])
    if path is None:
        return Reason.PATH_OUTSIDE, f"file_name {image['file_name']!r} leads out of the image folder"
    return path


def _image_problem(image: Any) -> str | None:
    if not isinstance(image, dict):
        return f"must be an object, got {_type_name(image)}"
    if _id(image.get("id")) is None:
        return f"'id' must be a number or text, got {image.get('id')!r:.40}"
    if not _is_text(image.get("file_name")):
        return f"'file_name' must be text, got {image.get('file_name')!r:.40}"
    for key in ("height", "width"):
        value = image.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            return f"{key!r} must be a whole number of pixels, got {value!r:.40}"
    return None


def _read_object(annotation: dict[str, Any], class_names: dict[int, str]) -> SourceObject | tuple[Reason, str]:
    category_id = annotation.get("category_id")
    name = class_names.get(category_id) if isinstance(category_id, int) else None
    if name is None:
        return Reason.UNKNOWN_CLASS, f"category_id {category_id!r:.40} is not among the categories"
    bbox = annotation.get("bbox")
    numbers = [_number(value) for value in bbox] if isinstance(bbox, list) else []
    if len(numbers) != 4 or None in numbers:
        return Reason.UNREADABLE_ANNOTATION, f"'bbox' must be four numbers, got {bbox!r:.60}"
    x, y, width, height = (float(number) for number in numbers if number is not None)
    return SourceObject(
        class_name=name,
        box_xyxy_px=(x, y, x + width, y + height),
        is_crowd=annotation.get("iscrowd") in (1, True),
        area_px=_number(annotation.get("area")),
    )


def _number(value: Any) -> float | None:
    """A float, infinite where the integer is beyond its range; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _id(value: Any) -> int | str | None:
    return value if (isinstance(value, int) and not isinstance(value, bool)) or _is_text(value) else None


def _is_text(value: Any) -> bool:
    """Neither empty nor with half of a surrogate pair, which JSON can hold but no file name or UTF-8 text."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= char <= "\udfff" for char in value)


def _type_name(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", type(None): "nothing"}.get(type(value), repr(value)[:40])
