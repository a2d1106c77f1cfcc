"""Read Open Images' CSV of boxes (one box per row, corners from 0 to 1, `IsGroupOf`) and the challenge's class
hierarchy.
"""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.csv_rows import MAX_LINE_BYTES, read_lines, split_line
from detloom.components.example_gen.sources.image_entries import ImageEntry, group_rows, read_record
from detloom.components.example_gen.sources.image_groups import ImageGroups, read_payload
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceClass,
    SourceItem,
    SourceObject,
)
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

DESCRIPTION = "a CSV file with the columns ImageID, LabelName, XMin, XMax, YMin, YMax"
_NEEDED = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax")
_FLAGS = ("IsTruncated", "IsGroupOf")
_FOLDERS = ("", "annotations", "labels", "metadata")  # folders of the CSV files; at the top, or in a split's folder
_CLASS_LIST = re.compile(r"class-descriptions|^classes\.csv$")  # the second is FiftyOne's name, in metadata/
_MAX_CLASSES = 100_000  # the official list of all labels has 20,000
_MAX_HIERARCHY_DEPTH = 32  # the official one has 5
_MAX_HIERARCHY_NODES = 100_000


def detect(folder: DataFolder) -> FormatEvidence | None:
    """Find CSV files with the columns of boxes."""
    found = _find_files(folder)
    if not found:
        return None
    return FormatEvidence(f"Open Images boxes in {', '.join(found[:4])}", layout.name_splits(found))


def list_chunks(folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
    """Return one chunk for each CSV file; "" means every file that `detect` names."""
    return layout.list_file_chunks(folder, split, [source] if source else _find_files(folder), DESCRIPTION)


def read_chunk(folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
    """Yield the records, ordered by key; the record key is the ImageID. Images without a row are unknown."""
    classes = _read_classes(folder, chunk.source, settings)
    yield from map(SourceClass, classes.declared)
    where = f"{folder.root}/{chunk.source}"
    with ImageGroups() as groups:
        with folder.refuse(chunk.source), folder.open(chunk.source) as file:
            columns = ["image" if name == "ImageID" else name for name in _read_header(where, file)]
            repeated = [name for name in ("image", *_NEEDED, *_FLAGS) if columns.count(name) > 1]
            if repeated:
                raise InputError(f"{where}:1: the column {repeated[0]} occurs twice; remove or rename one.")
            for place, problem in group_rows(read_lines(file, where), columns, groups):
                yield chunk.reject_box(Reason.UNREADABLE_ANNOTATION, "", f"{place}: {problem}")
        sample = groups.some_images(layout.SAMPLE)
        images_dir = settings.images_dir or _find_images_dir(folder, chunk.source, sample)
        for image_id, items in groups.by_image():
            path = join_inside(images_dir, f"{image_id}.jpg") or f"{image_id}.jpg"
            rows = (read_payload(payload) for _, payload in items)
            entry = ImageEntry((), rows, classes.read_box, is_relative=True)
            yield from read_record(chunk, image_id, path, entry)


@dataclass(frozen=True)
class _Classes:
    """Names by label; `names` is empty if the data set has no class list, and labels are names then.

    Attributes:
        declared: the names of the data set's own class list ("boxable", the challenge's), not of the list of all
            labels.
        ancestors: labels above a label, without the root.
    """

    names: Mapping[str, str]
    declared: tuple[str, ...]
    ancestors: Mapping[str, tuple[str, ...]]

    def name_of(self, label: str) -> str | None:
        return self.names.get(label) if self.names else label

    def read_box(self, row: Mapping[str, str]) -> list[SourceObject]:
        """Return the object for its class and for the ancestors of that."""
        label = row["LabelName"].strip()
        if not label:
            raise unreadable("LabelName is empty")
        if not is_text(label) or self.name_of(label) is None:
            raise SourceError(Reason.UNKNOWN_CLASS, f"LabelName {show(label)} is not among the class descriptions")
        try:
            xmin, ymin, xmax, ymax = (float(row[name]) for name in ("XMin", "YMin", "XMax", "YMax"))
        except ValueError:
            got = ", ".join(f"{name} {show(row[name])}" for name in ("XMin", "XMax", "YMin", "YMax"))
            raise unreadable(f"corners must be numbers, got {got[:120]}") from None
        is_truncated, is_group = (row.get(name) == "1" for name in _FLAGS)  # -1 means unknown
        names = map(self.name_of, (label, *self.ancestors.get(label, ())))  # ancestors were checked with the hierarchy
        box = (xmin, ymin, xmax, ymax)
        return [SourceObject(name or label, box, truncated=is_truncated, group_of=is_group) for name in names]


def _find_files(folder: DataFolder) -> list[str]:
    found = []
    parts = [part for part in folder.list_folders() if layout.find_split_word(part)]
    for part in (*_FOLDERS, *(f"{part}/labels" for part in parts)):  # FiftyOne writes train/labels/detections.csv
        for path in folder.list_files(part, (".csv",))[:50]:
            try:
                with folder.open(path) as file:
                    _read_header(path, file)
            except (SourceError, InputError, OSError):
                continue
            found.append(path)
    return found


def _find_images_dir(folder: DataFolder, source: str, image_ids: list[str]) -> str:
    beside = posixpath.dirname(source)
    base = posixpath.dirname(beside) if posixpath.basename(beside) in _FOLDERS else beside
    split = layout.find_split_word(posixpath.splitext(posixpath.basename(source))[0])
    words = {"val": ("validation", "val")}.get(split, (split,) if split else ())
    parts = [*(f"images/{word}" for word in words), "images", *words, *(f"{word}/data" for word in words), "data", ""]
    candidates = [posixpath.join(base, part).rstrip("/") for part in parts]
    names = [name for image_id in image_ids if (name := join_inside("", f"{image_id}.jpg"))]
    return layout.choose_images_dir(folder, candidates, names, posixpath.join(base, "images"))


def _read_classes(folder: DataFolder, source: str, settings: IngestSettings) -> _Classes:
    beside = posixpath.dirname(source)
    parts = dict.fromkeys((beside, posixpath.join(posixpath.dirname(beside), "metadata"), *_FOLDERS))
    paths = [path for part in parts for path in folder.list_files(part, (".csv",))]
    lists = [path for path in paths if _CLASS_LIST.search(posixpath.basename(path))]
    # Lists of the box classes first; class-descriptions.csv lists every image-level label.
    lists.sort(key=lambda path: posixpath.basename(path).endswith("class-descriptions.csv"))
    names: dict[str, str] = {}
    is_own = False
    if lists:
        is_own = not posixpath.basename(lists[0]).endswith("class-descriptions.csv")
        names = _read_names(folder, lists[0])
    ancestors = _read_hierarchy(folder, settings) if settings.hierarchy_file else {}
    for label in {each for path in ancestors.values() for each in path}:
        if names and label not in names:
            raise InputError(
                f"{folder.root}/{settings.hierarchy_file}: {show(label)} is not among the classes of {lists[0]}; "
                "use the hierarchy and the class list of the same release."
            )
    return _Classes(names, tuple(dict.fromkeys(names.values())) if is_own else (), ancestors)


def _read_names(folder: DataFolder, path: str) -> dict[str, str]:
    """Return display name by label, with or without a header."""
    where = f"{folder.root}/{path}"
    names: dict[str, str] = {}
    with folder.refuse(path), folder.open(path) as file:
        for number, line in read_lines(file, where):
            values = split_line(line) if isinstance(line, str) else None
            if values == ["LabelName", "DisplayName"] or values == [""]:
                continue
            label, name = (value.strip() for value in values[:2]) if values and len(values) >= 2 else ("", "")
            if not is_text(label) or not is_text(name):
                raise InputError(f"{where}:{number}: expected a label and its name, got {show(line)}.")
            names[label] = name
            if len(names) > _MAX_CLASSES:
                raise InputError(f"{where}: got more than {_MAX_CLASSES} classes.")
    return names


def _read_hierarchy(folder: DataFolder, settings: IngestSettings) -> dict[str, tuple[str, ...]]:
    """Return the labels above each label, from all of its positions; parts of an object are not subcategories.

    The root means "anything" and is not a class. This follows the rule for boxes of the Open Images challenge:
    https://storage.googleapis.com/openimages/web/evaluation.html
    """
    where = f"{folder.root}/{settings.hierarchy_file}"
    with folder.refuse(settings.hierarchy_file):
        text = folder.read_text(settings.hierarchy_file, MAX_ANNOTATION_BYTES)
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not readable as JSON ({error}).") from None
    above: dict[str, dict[str, None]] = {}
    waiting: list[tuple[Any, tuple[str, ...] | None]] = [(root, None)]
    num_nodes = 0
    while waiting:
        node, path = waiting.pop()
        num_nodes += 1
        label = node.get("LabelName") if isinstance(node, dict) else None
        below = node.get("Subcategory", []) if isinstance(node, dict) else None
        if not isinstance(label, str) or not is_text(label) or not isinstance(below, list):
            raise InputError(f"{where}: each class needs a 'LabelName', 'Subcategory' is a list; got {show(node)}.")
        if num_nodes > _MAX_HIERARCHY_NODES or len(path or ()) > _MAX_HIERARCHY_DEPTH:
            raise InputError(f"{where}: got more than {_MAX_HIERARCHY_NODES} classes or {_MAX_HIERARCHY_DEPTH} levels.")
        if path is not None:
            above.setdefault(label, {}).update(dict.fromkeys(each for each in reversed(path) if each != label))
        waiting.extend((child, () if path is None else (*path, label)) for child in reversed(below))
    return {label: tuple(labels) for label, labels in above.items() if labels}


def _read_header(where: str, file: BinaryIO) -> list[str]:
    """Return the names of the columns, with those that boxes need."""
    line = file.readline(MAX_LINE_BYTES).decode("utf-8-sig", "replace").rstrip("\r\n")
    columns = [name.strip() for name in split_line(line) or ()]
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise InputError(f"{where}:1: the columns {', '.join(missing)} are missing; got {show(line)}.")
    return columns
