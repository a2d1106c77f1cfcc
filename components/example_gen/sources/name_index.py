"""Find files of a data set by names that tools and systems write in another way than the file is named.

Paths are compared without the differences that archives and tools make: Unicode form (NFD on macOS), percent encoding,
case, backslashes, and suffixes that are missing, different or repeated. Of an absolute path, the end counts.
"""

import functools
import posixpath
import re
import sqlite3
import threading
import unicodedata
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from detloom.components.example_gen.data_folder import DataFolder, join_inside
from detloom.components.example_gen.sources.layout import IMAGE_SUFFIXES, find_split_word
from detloom.components.example_gen.sources.source_record import Chunk, SourceItem, SourceRecord
from detloom.schemas.contracts.rejects import Reason, Reject
from detloom.schemas.errors import list_first
from detloom.schemas.reading.redact import escape

_SUFFIXES = {*IMAGE_SUFFIXES, ".txt", ".xml", ".json"}
_MAX_NAME = 4096  # characters of a written name that are compared
_MAX_CANDIDATES = 1000  # files with one name; more are ambiguous
_SHOWN = 3
# Folders that say what kind of file they contain, so that images/a and annotations/a belong together.
_KINDS = re.compile(r"(jpeg)?images?(_2)?|imgs?|labels?(_2|_txt)?|annotations?|annots?|ann|txt|xmls?|json|data")
_PRAGMAS = "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; PRAGMA temp_store=FILE;"


def plain(path: str) -> str:
    """Return a path in the form in which names are compared."""
    text = path[-_MAX_NAME:].replace("\\", "/")
    if text.isascii() and "%" not in text:  # nearly all; a third of the time
        return text.lower().strip()
    text = urllib.parse.unquote(urllib.parse.unquote(text))  # a name with %20 in it, percent-encoded, has %2520
    text = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", text.casefold()).strip()


def find_folder(folder: DataFolder, path: str) -> str | None:
    """Return the folder with this path, whose names may differ in case and Unicode form; None without exactly one."""
    if folder.is_folder(path):
        return path
    found = ""
    for part in posixpath.normpath(path).split("/"):
        same = [each for each in folder.list_folders(found) if plain(posixpath.basename(each)) == plain(part)]
        exact = posixpath.join(found, part)
        if exact not in same and len(same) != 1:
            return None
        found = exact if exact in same else same[0]
    return found


def index_of(folder: DataFolder) -> "NameIndex":
    """Return the index of a folder; it is built once for a listing in each process."""
    with _LOCK:
        return _build_index(folder.root, folder.listing)


_LOCK = threading.Lock()


@functools.lru_cache(maxsize=2)
def _build_index(root: str, listing: str) -> "NameIndex":
    return NameIndex(DataFolder(root, listing))


class NameIndex:
    """The files below a data folder by name; SQLite keeps a small one in memory, a large one in a temporary file."""

    def __init__(self, folder: DataFolder) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_PRAGMAS + "CREATE TABLE files (stem TEXT, path TEXT); BEGIN")
        rows = ((_plain_stem(path), path) for path in folder.iter_files() if _is_utf8(path))
        self._database.executemany("INSERT INTO files VALUES (?, ?)", rows)
        self._database.execute("CREATE INDEX by_stem ON files (stem)")

    def iter_files(self) -> Iterator[str]:
        """Yield the paths of all files."""
        last: str | int = 0
        while rows := self._select("path, rowid", "rowid > ? ORDER BY rowid", last):
            yield from (path for path, _ in rows)
            last = rows[-1][1]

    def find(self, written: str, suffixes: Sequence[str], split: str = "") -> list[str]:
        """Return the files that a written name means: one; several if it is ambiguous; none if there is no such file.

        Args:
            split: files in the folder of another split are not meant, because splits often number their images alike.
        """
        *folders, name = plain(written).split("/")
        found = [
            path
            for path in self.with_stem(written, suffixes)
            if not split or find_split_word(posixpath.dirname(path)) in ("", split)
        ]
        same_name = [path for path in found if plain(posixpath.basename(path)) == name]
        shared = {path: _count_shared(plain(path).split("/")[:-1], folders) for path in same_name or found}
        most = max(shared.values(), default=0)
        return [path for path, number in shared.items() if number == most]

    def find_label(self, image_path: str, suffix: str) -> list[str]:
        """Return the label file of an image, as `find` does: in the folder that corresponds to the image's, else the
        only file with its name. A label with exactly the name of another image is not meant.
        """
        images = self.with_stem(image_path, IMAGE_SUFFIXES)
        owned = {(_place(path), _stem(path)) for path in images if path != image_path}
        labels = self.with_stem(image_path, (suffix,))
        labels = [path for path in labels if (_place(path), _stem(path)) not in owned]
        beside = [path for path in labels if _place(path) == _place(image_path)]
        return beside or (labels if len(images) == 1 else [])

    def with_stem(self, path: str, suffixes: Sequence[str]) -> list[str]:
        """Return the files with these suffixes and the name of `path`, without its suffixes."""
        if not _is_utf8(path):
            return []
        rows = self._select("path", "stem = ?", _plain_stem(path))
        return [path for (path,) in rows if path.lower().endswith(tuple(suffixes))]

    def _select(self, columns: str, condition: str, value: str | int) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM files WHERE {condition} LIMIT {_MAX_CANDIDATES}"  # noqa: S608 - no data in it
        with self._lock:
            return self._database.execute(query, (value,)).fetchall()


def find_image(folder: DataFolder, written: str, hints: Iterable[str] = ()) -> str | list[str]:
    """Return the path of an image: as written if that exists; else the files that the name may mean.

    Args:
        hints: names that may contain the word of the image's split, such as that of the annotation file.
    """
    if folder.is_file(written):
        return written
    split = find_split_word(posixpath.dirname(plain(written))) or next(filter(None, map(find_split_word, hints)), "")
    found = index_of(folder).find(written, IMAGE_SUFFIXES, split)
    return found[0] if len(found) == 1 else found


def with_image(folder: DataFolder, record: SourceRecord, images_dir: str) -> SourceItem:
    """Return the record with the path of its image, which may be written in any way; or its reject.

    A missing image of a name inside the folder is rejected when it is read.

    Args:
        images_dir: folder of the images if the user named it, else "".
    """
    found = find_image(folder, record.image_path, (posixpath.dirname(record.annotation_path), record.split))
    if images_dir and isinstance(found, str) and not found.startswith(images_dir.rstrip("/") + "/"):
        found = []
    if isinstance(found, str):
        return record if found == record.image_path else record._replace(image_path=found, is_found_by_name=True)
    written = escape(record.image_path[-_MAX_NAME:])
    chunk, num_boxes = Chunk(record.split, record.annotation_path), len(record.objects)
    if found:
        detail = f"the image {written!r:.120} is ambiguous: {describe_some(found)} have its name"
        return chunk.reject_record(Reason.AMBIGUOUS_NAME, record.record_key, detail, num_boxes=num_boxes)
    if join_inside("", record.image_path) is None or ":/" in record.image_path[:3]:
        detail = f"the image {written!r:.120} leads out of the data folder, and no file in it has this name"
        return chunk.reject_record(Reason.PATH_OUTSIDE, record.record_key, detail, num_boxes=num_boxes)
    return record


def reject_ambiguous(chunk: Chunk, key: str, what: str, found: Sequence[str], *, file: str = "") -> Reject:
    """Return the reject of a record, of whose `what` several files may be meant."""
    detail = f"{what} is ambiguous: {describe_some(found)} have its name"
    return chunk.reject_record(Reason.AMBIGUOUS_NAME, key, detail, file=file)


def describe_some(paths: Sequence[str]) -> str:
    return list_first(map(escape, paths), _SHOWN)


def _plain_stem(path: str) -> str:
    return _stem(plain(path))


def _stem(path: str) -> str:
    """Return the name without its suffixes: "a" for "x/a.jpg.txt"."""
    name = path.rpartition("/")[2]
    while (cut := name.rpartition("."))[1] and f".{cut[2].lower()}" in _SUFFIXES:
        name = cut[0]
    return name


def _place(path: str) -> tuple[str, ...]:
    """Return the folders of a file without those that name its kind, so that those of image and label are equal."""
    parts = plain(path).split("/")[:-1]
    return tuple(find_split_word(part) or part for part in parts if not _KINDS.fullmatch(part))


def _count_shared(folders: Sequence[str], others: Sequence[str]) -> int:
    """Return how many folders are equal, counted from the end."""
    pairs = zip(reversed(folders), reversed(others), strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(folders), len(others)))


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # SQLite stores UTF-8 only
        return False
    return True
