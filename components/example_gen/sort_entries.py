"""Sort the entries of one folder, on disk if there are too many for the memory."""

import itertools
import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from detloom.components.storage.storage import Entry

_MAX_IN_MEMORY = 50_000  # entries: about 20 MB
_CACHE_KIB = 16 * 1024  # SQLite's memory


def sort_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield files, then folders, each in the order of the bytes of their paths."""
    rest = iter(entries)
    first = list(itertools.islice(rest, _MAX_IN_MEMORY + 1))
    if len(first) > _MAX_IN_MEMORY:
        return _sort_on_disk(itertools.chain(first, rest))
    return iter(sorted(first, key=_sort_key))


def _sort_key(entry: Entry) -> tuple[bool, bytes]:
    return entry.is_folder, os.fsencode(entry.path)


def _sort_on_disk(entries: Iterable[Entry]) -> Iterator[Entry]:
    with (
        tempfile.TemporaryDirectory(prefix="detloom-names-") as folder,
        closing(sqlite3.connect(Path(folder) / "names.sqlite", isolation_level=None)) as database,
    ):
        database.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=FILE; PRAGMA cache_size=-{_CACHE_KIB};"
            "CREATE TABLE entries (is_folder INTEGER, path BLOB, size INTEGER, mtime_ns INTEGER); BEGIN"
        )
        database.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            ((*_sort_key(each), each.size, each.mtime_ns) for each in entries),
        )
        for is_folder, path, size, mtime_ns in database.execute("SELECT * FROM entries ORDER BY is_folder, path"):
            yield Entry(os.fsdecode(path), size, mtime_ns, bool(is_folder))
