"""Group the annotations of one file by image, in bounded memory: SQLite sorts them on disk.

Sorted data that exceeds SQLite's cache goes to the system's temporary folder (TMPDIR).

A large file is divided into parts, each of which one worker groups. One worker streams the file once. It writes what
belongs to an image to the part that a hash of the image's name selects, so that all of it is in one part, wherever it
was in the file. What does not belong to an image goes to the first part.
"""

import contextlib
import itertools
import json
import os
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from detloom.components.example_gen.sources.source_record import Chunk, SourceClass, SourceItem
from detloom.components.storage.storage import Storage
from detloom.schemas.contracts.rejects import Reject, format_reject, parse_reject
from detloom.schemas.errors import InputError

_BATCH = 10_000  # rows per insert into SQLite
_BATCH_BYTES = 4 * 2**20  # or fewer rows with this size: payloads with masks reach megabytes
_CACHE_KIB = 32 * 1024  # SQLite's memory, including what it sorts before it writes to the temporary folder

# A record with more objects is rejected, because they are held in memory. Far above any limit of `max_boxes`.
MAX_OBJECTS_PER_IMAGE = 100_000
MAX_BYTES_PER_IMAGE = 256 * 2**20  # total size of their payloads (masks)
PART_BYTES = 16 * 2**20  # of the annotation file; smaller files are not divided
_MAX_PARTS = 64  # files that are written at the same time
_ITEM = struct.Struct("<IBI")  # bytes of the image's name, kind, bytes of the payload
_ERROR = "error"

Head = dict[str, Any]  # what all parts need to know; stored as JSON
Add = Callable[[str, int, bytes], None]  # takes image, kind and payload of an item, see ImageGroups.add


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

    def add(self, image: str, kind: int, payload: bytes) -> None:
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


def divide_file(split: str, source: str, num_bytes: int) -> Iterator[Chunk]:
    """Yield the chunks of one annotation file with this size."""
    num_parts = min(_MAX_PARTS, max(1, num_bytes // PART_BYTES))
    for part in range(num_parts):
        yield Chunk(split, source, part=part, num_parts=num_parts)


@dataclass(frozen=True)
class PartFiles:
    """The parts of one annotation file, in a folder that its workers share; `prefix` begins the paths of the files."""

    storage: Storage
    prefix: str

    def write_head(self, head: Head) -> None:
        self.storage.write_json(f"{self.prefix}-head.json", head, is_ascii=True)

    def write_error(self, message: str) -> None:
        """Tell the readers of all parts that the file cannot be used."""
        self.write_head({_ERROR: message})

    def read_head(self) -> Head:
        """Return what `write_head` wrote.

        Raises:
            InputError: if the file cannot be used.
        """
        head: Head = self.storage.read_json(f"{self.prefix}-head.json")
        if _ERROR in head:
            raise InputError(head[_ERROR])
        return head

    def write_groups(self, num_parts: int, collect: Callable[[Add], Generator[SourceItem, None, Head]]) -> None:
        """Write the items that `collect` adds, yields and returns; the head, which readers need, is written last."""
        with contextlib.ExitStack() as stack:
            items = stack.enter_context(self.storage.open_to_write(f"{self.prefix}-items.jsonl"))
            parts = [stack.enter_context(self.storage.open_to_write(self._part(part))) for part in range(num_parts)]

            def add(image: str, kind: int, payload: bytes) -> None:
                name = image.encode("utf-8", "surrogatepass")
                file = parts[zlib.crc32(name) % num_parts]
                file.writelines((_ITEM.pack(len(name), kind, len(payload)), name, payload))

            head = _write_items(collect(add), items)
        self.write_head(head)

    def read_groups(self, part: int, join: Callable[[Head, ImageGroups], Iterator[SourceItem]]) -> Iterator[SourceItem]:
        """Yield what `join` makes of the items of one part; the first part also has what belongs to no image."""
        head = self.read_head()
        if part == 0:
            yield from map(_decode_item, self.storage.read_lines(f"{self.prefix}-items.jsonl"))
        with ImageGroups() as groups:
            with self.storage.open(self._part(part)) as file:
                while header := file.read(_ITEM.size):
                    name_bytes, kind, payload_bytes = _ITEM.unpack(header)
                    name = file.read(name_bytes).decode("utf-8", "surrogatepass")
                    groups.add(name, kind, file.read(payload_bytes))
            yield from join(head, groups)

    def _part(self, part: int) -> str:
        return f"{self.prefix}-{part:03d}.bin"


def _write_items(items: Generator[SourceItem, None, Head], file: IO[bytes]) -> Head:
    while True:
        try:
            item = next(items)
        except StopIteration as end:
            head: Head = end.value
            return head
        assert isinstance(item, Reject | SourceClass), item
        line = format_reject(item) if isinstance(item, Reject) else json.dumps([item.name, item.class_id]).encode()
        file.write(line + b"\n")


def _decode_item(line: bytes) -> SourceItem:
    return SourceClass(*json.loads(line)) if line.startswith(b"[") else parse_reject(line)
