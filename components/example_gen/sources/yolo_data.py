"""Read the settings of a YOLO data set: data.yaml, or a list of class names."""

import functools
import re
from dataclasses import dataclass
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources.json_values import show
from detloom.components.example_gen.sources.layout import split_lines
from detloom.components.example_gen.sources.source_record import TOO_MANY_CLASSES
from detloom.components.storage.storage import Entry
from detloom.schemas.errors import InputError
from detloom.schemas.reading.yaml_file import parse_yaml

DATA_FILES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
CLASSES_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "data/obj.names", "labels.txt", "classes.names")
SPLIT_KEYS = ("train", "val", "test")
# labelImg and Roboflow write the names beside the labels of each split.
_SPLIT_CLASSES_FILES = tuple(
    f"{part}/{name}"
    for part in ("images", "train", "val", "valid", "test")
    for name in ("classes.txt", "labels/classes.txt", "images/classes.txt", "_darknet.labels")
)
_MAX_DATA_BYTES = 1 << 20
_YAML_SUFFIXES = (".yaml", ".yml")
_NAMES_KEY = re.compile(r"^['\"]?names['\"]?\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DataFile:
    """The content of data.yaml or of a list of names; `path` is "" without one.

    Attributes:
        names: by class number; empty: the numbers are the names.
        num_keypoints, keypoint_size: of `kpt_shape`; 0 without.
        locations: folders or lists that the split keys name, as written.
        base: `path` as written.
    """

    path: str = ""
    names: tuple[str, ...] = ()
    num_keypoints: int = 0
    keypoint_size: int = 0
    locations: tuple[tuple[str, tuple[str, ...]], ...] = ()
    base: str = ""


def read_data_file(folder: DataFolder) -> DataFile:
    """Read data.yaml, or a list of class names.

    Raises:
        InputError: if it is damaged, or the splits' lists of class names differ.
    """
    path = find_data_file(folder) or next(filter(folder.is_file, CLASSES_FILES), "")
    paths = [path] if path else list(filter(folder.is_file, _SPLIT_CLASSES_FILES))
    if not paths:
        return DataFile()
    found = [_read_one(folder, path) for path in paths]
    for other in found[1:]:
        if other.names != found[0].names:
            raise InputError(
                f"{folder.root}/{other.path}: class names differ from {found[0].path}, allowed: one list for all; "
                "ingest the folders one by one, or put one classes.txt at the top."
            )
    return found[0]


def find_data_file(folder: DataFolder) -> str:
    """Return the path of data.yaml, or of the only other YAML file at the top that names classes; "" without one.

    Raises:
        InputError: if several name classes.
    """
    usual = next(filter(folder.is_file, DATA_FILES), "")
    if usual:
        return usual
    found = [path for path in folder.list_files("", _YAML_SUFFIXES) if _names_classes(folder, path)]
    if len(found) > 1:
        raise InputError(f"{folder.root}: {', '.join(found[:9])} all name classes; rename the right one to data.yaml.")
    return found[0] if found else ""


def _names_classes(folder: DataFolder, path: str) -> bool:
    try:
        return _NAMES_KEY.search(folder.read_text(path, _MAX_DATA_BYTES)) is not None
    except SourceError:
        return False


def _read_one(folder: DataFolder, path: str) -> DataFile:
    with folder.refuse(path):
        return _read_cached(folder, path, folder.status(path))


@functools.lru_cache(maxsize=16)
def _read_cached(folder: DataFolder, path: str, status: Entry | None) -> DataFile:
    """Read a data file. Cached, because parsing YAML takes longer than reading a record; the key has the status."""
    text = folder.read_text(path, _MAX_DATA_BYTES)
    where = f"{folder.root}/{path}"
    if not path.endswith(_YAML_SUFFIXES):
        return DataFile(path, names=_check_names(where, split_lines(text.rstrip())) if text.strip() else ())
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
    return DataFile(path, names, num_keypoints, keypoint_size, locations, base)


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
    if len(names) > TOO_MANY_CLASSES:
        raise InputError(f"{where}: got {len(names)} class names, allowed: {TOO_MANY_CLASSES} at most.")
    checked: dict[str, None] = {}
    for i, value in enumerate(names):
        name = _check_name(f"{where}[{i}]", value)
        if name in checked:
            raise InputError(f"{where}: {show(name)} occurs twice, allowed: unique names.")
        checked[name] = None
    return tuple(checked)


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
