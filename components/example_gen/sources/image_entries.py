"""Find the files of formats that describe many images in each file, read their elements or rows, and make records."""

import itertools
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from detloom.components.example_gen.data_folder import DataFolder, SourceError, join_inside, unreadable
from detloom.components.example_gen.sources import layout
from detloom.components.example_gen.sources.csv_rows import Columns, read_lines, read_row
from detloom.components.example_gen.sources.image_groups import MAX_OBJECTS_PER_IMAGE, OBJECT, ImageGroups, read_payload
from detloom.components.example_gen.sources.json_stream import UnreadableElement, stream_members
from detloom.components.example_gen.sources.json_values import is_text, name_type, show
from detloom.components.example_gen.sources.name_index import find_image
from detloom.components.example_gen.sources.source_record import (
    MAX_ANNOTATION_BYTES,
    Chunk,
    FormatEvidence,
    SourceItem,
    SourceObject,
    SourceRecord,
)
from detloom.schemas.contracts.rejects import Reason
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import IngestSettings

_MAX_FILES = 5  # files of a folder of which one must match; other formats have a file for each image


class ImageEntry(NamedTuple):
    """The content of a file that concerns one image.

    Attributes:
        names: of the image, as the file writes it and in other forms that the image file may have.
        marks: place and value of each mark.
        read_mark: returns the objects of a mark, or its kind if it is to be left out; raises a SourceError for an
            invalid one, with the reason TOO_MANY_BOXES if the image is to be rejected.
    """

    names: tuple[str, ...]
    marks: Iterable[tuple[str, Any]]
    read_mark: Callable[[Any], list[SourceObject] | str]
    declared_hw: tuple[int, int] | None = None
    is_relative: bool = False


class ImageRows(NamedTuple):
    """The rows of a CSV file with the same `image`, each with its place; there is one at least."""

    image: str
    rows: Iterator[tuple[str, dict[str, str]]]


@dataclass(frozen=True)
class EntryFormat:
    """A format with files of many images; a source is such a file, "" all of them at the top and in its folders.

    Attributes:
        read_entry: returns the entry of an element of a JSON file, or of `ImageRows`; raises a SourceError.
        inside: the key of a JSON object whose members are the elements; keys with its first 5 letters are settings.
    """

    DESCRIPTION: str
    read_entry: Callable[[Any, IngestSettings], ImageEntry]
    is_json: Callable[[bytes], bool] = lambda head: False
    find_columns: Callable[[str], Columns | None] = lambda line: None
    inside: str = ""

    def detect(self, folder: DataFolder) -> FormatEvidence | None:
        """Find the files; they are splits if each is named after one."""
        found = self._find_files(folder)
        if not found:
            return None
        splits = layout.name_splits(found) if all(map(layout.find_split_word, found)) else {}
        return FormatEvidence(f"boxes in {', '.join(found[:4])}", splits)

    def list_chunks(self, folder: DataFolder, split: str, source: str, settings: IngestSettings) -> Iterator[Chunk]:
        """Return one chunk for each file."""
        paths = [source] if source else self._find_files(folder)
        return layout.list_file_chunks(folder, split, paths, self.DESCRIPTION)

    def read_chunk(self, folder: DataFolder, chunk: Chunk, settings: IngestSettings) -> Iterator[SourceItem]:
        """Yield the records; the record key is the image's name as the file writes it, without suffix."""
        is_csv = chunk.source.lower().endswith(".csv")
        read = self._read_rows if is_csv else self._read_members
        with folder.refuse(chunk.source), folder.open(chunk.source) as file:
            for place, element in read(file, f"{folder.root}/{chunk.source}"):
                try:
                    if isinstance(element, str):
                        raise unreadable(element)
                    entry = self.read_entry(element, settings)
                except SourceError as error:
                    reject = chunk.reject_box if is_csv else chunk.reject_record
                    yield reject(error.reason, "" if is_csv else place, f"{place}: {error}")
                    continue
                path = _find_path(folder, chunk, settings.images_dir, entry.names)
                is_other = posixpath.basename(path) != posixpath.basename(entry.names[0])
                key = posixpath.splitext(entry.names[0])[0]
                for item in read_record(chunk, key, path, entry, place and f"{place}."):
                    yield item._replace(is_found_by_name=True) if is_other and isinstance(item, SourceRecord) else item

    def _read_members(self, file: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
        """Yield place and value of the elements; an error text instead of one that is not an object."""
        for key, element in stream_members(file, where, MAX_ANNOTATION_BYTES, self.inside):
            is_entry = isinstance(element, dict) and "filename" in element
            if self.inside and str(key).startswith(self.inside[:5]) and not is_entry:
                continue
            if isinstance(element, UnreadableElement):
                element = element.detail
            elif not isinstance(element, dict):
                element = f"must be an object, got {name_type(element)}"
            yield f"[{show(key)}]", element

    def _read_rows(self, file: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
        """Yield the rows of each image; an error text instead of a row that has no image."""
        lines = read_lines(file, where)
        first = next(lines, (1, ""))
        columns, has_header = self.find_columns(first[1] or "") or ((), True)
        if not columns:
            raise InputError(f"{where}:1: got {show(first[1])}; looked for {self.DESCRIPTION}.")
        with ImageGroups() as groups:
            yield from group_rows(lines if has_header else itertools.chain([first], lines), columns, groups)
            for name, items in groups.by_image():
                yield "", ImageRows(name, (read_payload(payload) for _, payload in items))

    def _find_files(self, folder: DataFolder) -> list[str]:
        found: list[str] = []
        for part in ("", *folder.list_folders()):
            paths = folder.list_files(part, (".json", ".csv"))
            first = next((path for path in paths[:_MAX_FILES] if self._is_match(folder, path)), None)
            found += [path for path in paths if first and self._is_match(folder, path)]
        return found

    def _is_match(self, folder: DataFolder, path: str) -> bool:
        head = layout.read_head(folder, path)
        first_line = head.partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
        return self.find_columns(first_line) is not None if path.lower().endswith(".csv") else self.is_json(head)


def group_rows(
    lines: Iterable[tuple[int, str | None]], columns: Sequence[str], groups: ImageGroups
) -> Iterator[tuple[str, str]]:
    """Add the rows of a CSV file to their images, each with its place; yield place and problem of the other rows."""
    for number, line in lines:
        place = f"line {number}"
        row = read_row(line, columns)
        if isinstance(row, str):
            yield place, row
            continue
        name = row["image"].strip()
        if is_text(name):
            groups.add(name, OBJECT, (place, {**row, "image": name}))
        else:
            yield place, f"the image must be text, got {show(name)}"


def read_record(chunk: Chunk, key: str, image_path: str, entry: ImageEntry, place: str = "") -> Iterator[SourceItem]:
    """Yield the record of an image and the rejects of its boxes, or the reject of the record."""
    objects: list[SourceObject] = []
    rejects: list[SourceItem] = []
    left_out: Counter[str] = Counter()
    marks = iter(entry.marks)
    is_too_large = False
    for num_marks, (where, mark) in enumerate(marks, 1):
        try:
            found = entry.read_mark(mark)
        except SourceError as error:
            rejects.append(chunk.reject_box(error.reason, key, f"{place}{where}: {error}"))
            found, is_too_large = [], error.reason is Reason.TOO_MANY_BOXES
        if isinstance(found, str):
            left_out[found] += 1
        else:
            objects += found
        if is_too_large or len(objects) + len(rejects) > MAX_OBJECTS_PER_IMAGE:
            num_boxes = num_marks + sum(1 for _ in marks)
            detail = f"{place}{num_boxes} annotations, too many to hold in memory"
            yield chunk.reject_record(Reason.TOO_MANY_BOXES, key, detail, num_boxes=num_boxes)
            return
    yield from rejects
    yield SourceRecord(
        split=chunk.split,
        record_key=key,
        image_path=image_path,
        annotation_path=chunk.source,
        declared_hw=entry.declared_hw,
        objects=tuple(objects),
        is_relative=entry.is_relative,
        left_out=tuple(left_out.items()),
    )


def _find_path(folder: DataFolder, chunk: Chunk, images_dir: str, names: tuple[str, ...]) -> str:
    """Return the path of the image; of several names that of the first one that a file has."""
    beside = posixpath.dirname(chunk.source)
    paths = [join_inside(images_dir or beside, name) or name for name in names]
    found = (find_image(folder, path, (beside, chunk.split)) for path in paths[: len(paths) if len(paths) > 1 else 0])
    return next((path for path in found if isinstance(path, str)), paths[0])


def image_name(value: Any) -> str:
    """Return the name with forward slashes; raise a SourceError if it is not text."""
    if not is_text(value):
        raise unreadable(f"the name of the image must be text, got {show(value)}")
    return str(value).replace("\\", "/")


def number_marks(key: str, values: Any) -> Iterator[tuple[str, Any]]:
    """Return place and value of the elements of a list; raise a SourceError if it is none."""
    if not isinstance(values, list):
        raise unreadable(f"{key!r} must be a list, got {show(values)}")
    return ((f"{key}[{number}]", value) for number, value in enumerate(values))
