"""Group the annotations of one file by image, in bounded memory: SQLite sorts them on disk.

Sorted data that exceeds SQLite's cache goes to the system's temporary folder (TMPDIR).
"""

import itertools
import marshal
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from detloom.components.example_gen.sources.source_record import Chunk, SourceObject
from detloom.schemas.contracts.rejects import Reason, Reject

_BATCH = 10_000  # rows per insert into SQLite
_BATCH_BYTES = 4 * 2**20  # or fewer rows with this size: payloads with masks reach megabytes
_CACHE_KIB = 32 * 1024  # SQLite's memory, including what it sorts before it writes to the temporary folder

# A record with more objects is rejected, because they are held in memory. Far above any limit of `max_boxes`.
MAX_OBJECTS_PER_IMAGE = 100_000
MAX_BYTES_PER_IMAGE = 256 * 2**20  # total size of their payloads (masks)

# Kinds of items, in the order in which they are read back.
IMAGE, OBJECT, BAD_OBJECT = 0, 1, 2


class ImageGroups:
    """Items grouped by image; a context manager that deletes its file.

    The file is unlinked as soon as it is open, so a killed worker leaves none behind.
    """

    def __init__(self) -> None:
        descriptor, path = tempfile.mkstemp(suffix=".groups")
        os.close(descriptor)
        self._rows: list[tuple[str, int, bytes]] = []
        self._num_bytes = 0  # in the rows
        # No journal and no flush to disk: the file is useless after a crash.
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", "temp_store=FILE"):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute("CREATE TABLE items (image TEXT, kind INTEGER, payload BLOB)")
        finally:
            os.unlink(path)

    def __enter__(self) -> "ImageGroups":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, image: str, kind: int, value: Any) -> None:
        """Store a tuple of plain values: of a `BAD_OBJECT` its number, the reason and the detail of the reject."""
        payload = marshal.dumps(value)
        self._rows.append((image, kind, payload))
        self._num_bytes += len(payload) + len(image)
        if len(self._rows) >= _BATCH or self._num_bytes >= _BATCH_BYTES:
            self._flush()

    def by_image(self) -> Iterator[tuple[str, Iterator[tuple[int, bytes]]]]:
        """Yield each image, sorted by name, with kind and payload of its items: by kind, then in the order of adding.

        The items of an image must be consumed before the next image, and nothing may be added meanwhile.
        """
        self._flush()
        rows = self._database.execute("SELECT image, kind, payload FROM items ORDER BY image, kind, rowid")
        for image, items in itertools.groupby(rows, key=lambda row: row[0]):
            yield image, ((kind, payload) for _, kind, payload in items)

    def _flush(self) -> None:
        self._database.executemany("INSERT INTO items VALUES (?, ?, ?)", self._rows)
        self._rows.clear()
        self._num_bytes = 0


def collect_objects(
    chunk: Chunk,
    image_id: str,
    items: Iterator[tuple[int, bytes]],
    read: Callable[[Any], Iterable[SourceObject | Reject]],
) -> tuple[list[SourceObject], list[Reject]] | Reject:
    """Return the objects and the rejected boxes of an image, or its reject if they are too many for the memory.

    Args:
        read: converts the values of an `OBJECT`.
    """
    objects: list[SourceObject] = []
    rejects: list[Reject] = []
    num_items = num_bytes = 0
    for kind, payload in items:
        num_items += 1
        num_bytes += len(payload)
        if len(objects) + len(rejects) >= MAX_OBJECTS_PER_IMAGE or num_bytes > MAX_BYTES_PER_IMAGE:
            num_items += sum(1 for _ in items)
            detail = f"{num_items} annotations with {num_bytes} bytes or more, too many to hold in memory"
            return chunk.reject_record(Reason.TOO_MANY_BOXES, image_id, detail, num_boxes=num_items)
        value = read_payload(payload)
        if kind == BAD_OBJECT:
            _, reason, detail = value
            rejects.append(chunk.reject_box(Reason(reason), image_id, detail))
            continue
        for item in read(value):
            if isinstance(item, SourceObject):
                objects.append(item)
            else:
                rejects.append(item)
    return objects, rejects


def read_payload(payload: bytes) -> Any:
    """Return the values of an item."""
    return marshal.loads(payload)  # noqa: S302 - written by this process
