"""Group the annotations of one file by image, in bounded memory: SQLite sorts them on disk.

Sorted data that exceeds SQLite's cache goes to the system's temporary folder (TMPDIR).
"""

import itertools
import marshal
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Any

_BATCH = 10_000  # rows per insert into SQLite
_BATCH_BYTES = 4 * 2**20  # or fewer rows with this size: payloads with masks reach megabytes
_CACHE_KIB = 32 * 1024  # SQLite's memory, including what it sorts before it writes to the temporary folder

# A record with more objects is rejected, because they are held in memory. Far above any limit of `max_boxes`.
MAX_OBJECTS_PER_IMAGE = 100_000

# Kinds of items, in the order in which they are read back.
IMAGE, OBJECT = 0, 1


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
        """Store a plain value or a tuple of them."""
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

    def some_images(self, number: int) -> list[str]:
        """Return the names of at most this many images."""
        self._flush()
        rows = self._database.execute("SELECT DISTINCT image FROM items LIMIT ?", (number,))
        return [image for (image,) in rows]

    def _flush(self) -> None:
        self._database.executemany("INSERT INTO items VALUES (?, ?, ?)", self._rows)
        self._rows.clear()
        self._num_bytes = 0


def read_payload(payload: bytes) -> Any:
    """Return the values of an item."""
    return marshal.loads(payload)  # noqa: S302 - written by this process
