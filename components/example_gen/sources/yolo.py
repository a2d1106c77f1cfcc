"""YOLO: data.yaml, images/..., and labels/.../<stem>.txt with a line an object, relative to the image's size.

A line is a box `class cx cy w h`, a polygon `class x1 y1 x2 y2 ...` of three points or more, of which the box around is
taken, or, where data.yaml has `kpt_shape`, a box followed by its keypoints. An image without a label file, or with an
empty one, is an image without boxes.

A source is a key of data.yaml (train, val, test), a folder of images, or a list of image paths (.txt); "" is all that
data.yaml names, else `images/`. The record key is the image's path without its suffix: below the source if that is one
folder, else below the data folder.
"""

import functools
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, FileStatus, SourceError, join_inside
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE
from detloom.components.example_gen.sources.json_values import show
from detloom.components.example_gen.sources.layout import find_split_word
from detloom.components.example_gen.sources.name_list import IMAGE_SUFFIXES, read_names
from detloom.components.example_gen.sources.source_record import (
    Chunk,
    Evidence,
    ReaderSettings,
    SourceClass,
    SourceItem,
    SourceObject,
    SourceRecord,
    cut_into_chunks,
    reject_box,
    reject_record,
)
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason
from detloom.schemas.yaml_file import parse_yaml

DATA_FILES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
CLASSES_FILES = ("classes.txt", "labels/classes.txt", "obj.names")
SPLIT_KEYS = ("train", "val", "test")
MAX_LINE = 1 << 20  # characters: a polygon of some hundred thousand points
_LONG_LINE = (Reason.UNREADABLE_ANNOTATION, f"the line is longer than the {MAX_LINE} characters allowed")
_MAX_DATA_BYTES = 1 << 20
_FIRST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _DataFile:
    """What data.yaml says; `path` is "" without one.

    Attributes:
        names: by class number; empty: the numbers are the names.
        num_keypoints, keypoint_size: of `kpt_shape`; 0 without.
        locations: what the split keys name: folders or lists, as written.
        base: `path` as written.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    num_keypoints: int = 0
    keypoint_size: int = 0
    locations: tuple[tuple[str, tuple[str, ...]], ...] = ()
    base: str = ""


def detect(folder: DataFolder) -> Evidence | None:
    """A data.yaml with names or splits, or a first label file in labels/ whose line is a class number and 4 or more."""
    path = _find_file(folder, DATA_FILES)
    if path:
        try:
            data = _read_data_file(folder)
            splits = {key: key for key, _ in data.locations if key in SPLIT_KEYS and _find_locations(folder, data, key)}
        except InputError:
            return Evidence(f"{path} is there", {})
        return Evidence(f"{path} names classes", splits) if data.names or data.locations else None
    label = _first_label(folder, "labels")
    if label is None:
        return None
    parts = {posixpath.basename(path): path for path in folder.list_folders("images")}
    return Evidence(f"{label} is a YOLO label", {name: path for name, path in parts.items() if find_split_word(name)})


def list_chunks(folder: DataFolder, split: str, source: str, settings: ReaderSettings) -> Iterator[Chunk]:
    """Image paths relative to the data folder."""
    data = _read_data_file(folder)
    keys = [key for key, _ in data.locations] if not source else [source]
    places = list(dict.fromkeys(place for key in keys for place in _find_locations(folder, data, key)))
    if not places:
        if source and not (folder.is_folder(source) or folder.is_file(source)):
            known = ", ".join(key for key, _ in data.locations) or "none"
            raise InputError(
                f"{folder.root}/{source}: got {source!r} for split {split!r}, allowed: a folder of images, a list of "
                f"image paths (.txt), or a key of data.yaml (there: {known})."
            )
        places = [source or settings.images_dir or ("images" if folder.is_folder("images") else "")]
    names = _list_images(folder, split, places)
    named_as = places[0] or "." if len(places) == 1 else data.path
    num_chunks = 0
    for chunk in cut_into_chunks(split, named_as, names, settings):
        num_chunks += 1
        yield chunk
    if num_chunks == 0:
        raise InputError(f"{folder.root}/{named_as}: no images there for split {split!r}; give a folder that has some.")


def read_chunk(folder: DataFolder, chunk: Chunk, settings: ReaderSettings) -> Iterator[SourceItem]:
    """One record an image; the label file lies where `labels` stands for the last `images` in the path, else beside."""
    data = _read_data_file(folder)
    yield from (SourceClass(name) for name in data.names)
    prefix = chunk.source + "/"
    lines = _LineReader(data, settings)
    for path in chunk.names:
        image_path = join_inside("", path)
        key = posixpath.splitext(path[len(prefix) :] if path.startswith(prefix) else path)[0]
        if image_path is None:
            detail = f"the listed path {path!r:.60} leads out of the data folder"
            yield reject_record(chunk.split, Reason.PATH_OUTSIDE, chunk.source, key, detail)
            continue
        label_path = _label_path(image_path)
        try:
            text = folder.read_text(label_path, settings.max_annotation_bytes)
        except SourceError as error:
            if error.reason is not Reason.MISSING_FILE:
                yield reject_record(chunk.split, error.reason, label_path, key, error.detail)
                continue
            text = ""
        num_lines = text.count("\n") + text.count("\r") + 1
        if num_lines > MAX_OBJECTS_PER_IMAGE:
            detail = f"more than {MAX_OBJECTS_PER_IMAGE} lines of labels"
            yield reject_record(chunk.split, Reason.TOO_MANY_BOXES, label_path, key, detail, num_lines)
            continue
        objects = []
        for number, line in enumerate(text.splitlines(), 1):
            fields = line[:MAX_LINE].split()
            if not fields:
                continue
            item = lines.read(fields) if len(line) <= MAX_LINE else _LONG_LINE
            if isinstance(item, SourceObject):
                objects.append(item)
            else:
                reason, detail = item
                yield reject_box(chunk.split, reason, label_path, key, f"line {number}: {detail}")
        yield SourceRecord(chunk.split, key, image_path, label_path, None, tuple(objects), is_relative=True)


class _LineReader:
    """Reads the fields of one label line."""

    def __init__(self, data: _DataFile, settings: ReaderSettings) -> None:
        self._names = data.names
        self._pose_size = 5 + data.num_keypoints * data.keypoint_size if data.num_keypoints else 0
        self._keypoint_size = data.keypoint_size
        self._with_keypoints = settings.with_keypoints

    def read(self, fields: list[str]) -> SourceObject | tuple[Reason, str]:
        """The object, or why there is none."""
        size = len(fields)
        is_pose = size == self._pose_size
        if size != 5 and not is_pose and (size < 7 or size % 2 == 0):
            return Reason.UNREADABLE_ANNOTATION, (
                f"got {size} values, allowed: a class and 4 numbers of a box, or 6 and more, even, of a polygon"
            )
        try:
            values = list(map(float, fields[1:]))
        except ValueError:
            return Reason.UNREADABLE_ANNOTATION, f"got {show(' '.join(fields))}, allowed: numbers"
        name = self._read_class(fields[0])
        if name is None:
            allowed = f"0 to {len(self._names) - 1}" if self._names else "whole numbers from 0"
            return Reason.UNKNOWN_CLASS, f"got the class {show(fields[0])}, allowed: {allowed}"
        if size != 5 and not is_pose:
            xs, ys = values[0::2], values[1::2]
            return SourceObject(name, _box_around(xs, ys))
        centre_x, centre_y, width, height = values[:4]
        box = (centre_x - width / 2, centre_y - height / 2, centre_x + width / 2, centre_y + height / 2)
        if is_pose and self._with_keypoints:
            return SourceObject(name, box, keypoints=self._read_keypoints(values[4:]))
        return SourceObject(name, box)

    def _read_class(self, text: str) -> str | None:
        """Name by number; some tools write "3.0"."""
        try:
            number = int(text) if text.isdecimal() else int(value) if (value := float(text)).is_integer() else -1
        except (ValueError, OverflowError):
            return None
        if number < 0:
            return None
        if not self._names:
            return str(number)
        return self._names[number] if number < len(self._names) else None

    def _read_keypoints(self, values: list[float]) -> tuple[tuple[float, float, int], ...]:
        """Visibility as written; without one, a point at the corner 0, 0 or before it was not labelled."""
        size = self._keypoint_size
        points = []
        for at in range(0, len(values), size):
            x, y = values[at], values[at + 1]
            visibility = values[at + 2] if size == 3 else 2.0 * (x >= 0 and y >= 0 and (x > 0 or y > 0))
            points.append((x, y, int(visibility) if visibility in (0.0, 1.0, 2.0) else 0))
        return tuple(points)


def _box_around(xs: list[float], ys: list[float]) -> tuple[float, float, float, float]:
    """The box around points; not finite if one of them is not, which `min` would hide."""
    if not all(value - value == 0 for value in (*xs, *ys)):
        return float("nan"), float("nan"), float("nan"), float("nan")
    return min(xs), min(ys), max(xs), max(ys)


def _label_path(image_path: str) -> str:
    stem = posixpath.splitext(image_path)[0]
    head, found, tail = ("/" + stem).rpartition("/images/")
    return f"{head}/labels/{tail}.txt".removeprefix("/") if found else stem + ".txt"


def _list_images(folder: DataFolder, split: str, places: list[str]) -> Iterator[str]:
    for place in places:
        if not place.endswith(".txt"):
            yield from folder.list_files(place, IMAGE_SUFFIXES, recursive=True)
            continue
        base = posixpath.dirname(place)
        for line in read_names(folder, place, split):
            beside = join_inside(base, line) if line.startswith("./") else None
            yield beside or _inside_or_as_is(folder, line)


def _inside_or_as_is(folder: DataFolder, line: str) -> str:
    """A listed path, in normal form if it stays inside; an absolute one below the data folder counts as that."""
    return join_inside("", line.removeprefix(folder.root.rstrip("/") + "/")) or line


def _find_locations(folder: DataFolder, data: _DataFile, key: str) -> list[str]:
    """Folders and lists that a split key names, relative to the data folder; none if there is no such key.

    They are looked for below `path`, beside data.yaml, and without a leading `../`, which Roboflow writes for folders
    beside data.yaml; it also names a `test` that it did not write. Nothing outside the data folder is looked at.
    """
    places = []
    for location in dict(data.locations).get(key, ()):
        plain = location
        while plain.startswith(("../", "./")):
            plain = plain.split("/", 1)[1]
        here = posixpath.dirname(data.path)
        bases = (join_inside(here, data.base) if data.base else None, here)
        tried = [join_inside(base, name) for base in bases if base is not None for name in (location, plain)]
        at_home = join_inside("", location.removeprefix(folder.root.rstrip("/") + "/"))
        found = (path for path in (*tried, at_home) if path and (folder.is_folder(path) or folder.is_file(path)))
        place = next(found, "." if plain in ("", ".") else None)
        if place is None and key == "test":
            continue
        if place is None:
            raise InputError(
                f"{folder.root}/{data.path}: {key}: got {show(location)} (path: {show(data.base)}), allowed: a folder "
                "or a list inside the data folder."
            )
        places.append(place.removeprefix("."))
    return places


def _find_file(folder: DataFolder, names: tuple[str, ...]) -> str:
    return next((name for name in names if folder.is_file(name)), "")


def _first_label(folder: DataFolder, labels_dir: str) -> str | None:
    """The first label file that says something, if that is YOLO's: numbers only, the first of them whole."""
    for item in folder.walk(labels_dir):
        if item.size == 0 or not item.path.endswith(".txt") or item.path in CLASSES_FILES:
            continue
        try:
            with folder.open(item.path) as file:
                line = file.read(_FIRST_BYTES).split(b"\n")[0].split()
            numbers = [float(field) for field in line]
        except (OSError, ValueError, SourceError):
            return None
        return item.path if len(numbers) >= 5 and numbers[0] >= 0 and numbers[0].is_integer() else None
    return None


def _read_data_file(folder: DataFolder) -> _DataFile:
    path = _find_file(folder, DATA_FILES) or _find_file(folder, CLASSES_FILES)
    if not path:
        return _DataFile()
    try:
        status = folder.status(path)
        return _read_data_file_cached(folder, path, status)
    except SourceError as error:
        raise InputError(f"{folder.root}/{path}: cannot be read ({error.detail}).") from None


@functools.lru_cache(maxsize=16)
def _read_data_file_cached(folder: DataFolder, path: str, status: FileStatus | None) -> _DataFile:
    """A chunk has some hundred records, and YAML takes longer than one of them; the status is part of the key."""
    text = folder.read_text(path, _MAX_DATA_BYTES)
    where = f"{folder.root}/{path}"
    if path in CLASSES_FILES:
        return _DataFile(path, names=_check_names(where, [line for line in text.splitlines() if line.strip()]))
    values, _ = parse_yaml(text, where, number_keys=True)
    if not isinstance(values, dict):
        raise InputError(f"{where}: got {show(values)}, allowed: keys such as names, train and val.")
    names = _read_class_names(where, values.get("names"))
    num_classes = values.get("nc")
    if names and num_classes is not None and num_classes != len(names):
        raise InputError(f"{where}: nc: got {show(num_classes)}, but names has {len(names)}.")
    num_keypoints, keypoint_size = _read_keypoint_shape(where, values.get("kpt_shape"))
    base = values.get("path") or ""
    if not isinstance(base, str):
        raise InputError(f"{where}: path: got {show(base)}, allowed: text.")
    locations = tuple((key, found) for key in SPLIT_KEYS if (found := _read_location(where, key, values.get(key))))
    return _DataFile(path, names, num_keypoints, keypoint_size, locations, base)


def _read_location(where: str, key: str, value: Any) -> tuple[str, ...]:
    locations = value if isinstance(value, list) else [value] if value else []
    if not all(isinstance(location, str) for location in locations):
        raise InputError(f"{where}: {key}: got {show(value)}, allowed: a folder, a list file, or several of them.")
    return tuple(locations)


def _read_class_names(where: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, dict):
        names = [value.get(str(number)) for number in range(len(value))]
        if None in names:
            missing = names.index(None)
            raise InputError(f"{where}: names: number {missing} is missing, allowed: all from 0 to {len(names) - 1}.")
    elif isinstance(value, list):
        names = value
    else:
        raise InputError(f"{where}: names: got {show(value)}, allowed: a list, or names by number.")
    return _check_names(f"{where}: names", names)


def _check_names(where: str, names: list[Any]) -> tuple[str, ...]:
    checked = tuple(_check_name(f"{where}[{i}]", name) for i, name in enumerate(names))
    if len(set(checked)) != len(checked):
        twice = next(name for name in checked if checked.count(name) > 1)
        raise InputError(f"{where}: {show(twice)} stands twice, allowed: different names.")
    return checked


def _check_name(where: str, name: Any) -> str:
    text = str(name) if type(name) is int else name
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InputError(f"{where}: got the class name {show(name)}, allowed: text that is not empty (quote it).")
    return text.strip()


def _read_keypoint_shape(where: str, value: Any) -> tuple[int, int]:
    if value is None:
        return 0, 0
    match value:
        case [int(count), int(size)] if 1 <= count <= 10_000 and size in (2, 3):
            return count, size
    raise InputError(f"{where}: kpt_shape: got {show(value)}, allowed: [number of keypoints, 2 or 3].")
