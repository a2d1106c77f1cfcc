"""Divide one annotation file of many images into parts, each of which one worker reads.

One worker streams the file once. It writes what belongs to an image to the part that a hash of the image's name
selects, so that all of it is in one part, wherever it was in the file. What does not belong to an image goes to the
first part.
"""

import contextlib
import io
import json
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

from detloom.components.example_gen.sources.image_groups import ImageGroups
from detloom.components.example_gen.sources.source_record import Chunk, SourceClass, SourceItem
from detloom.components.storage.storage import Storage
from detloom.schemas.contracts.rejects import Reject, format_reject, parse_reject
from detloom.schemas.errors import InputError

PART_BYTES = 16 * 2**20  # of the annotation file; smaller files are not divided
_MAX_PARTS = 64  # files that are written at the same time
_ITEM = struct.Struct("<IBI")  # bytes of the image's name, kind, bytes of the payload
_ERROR = "error"

Head = dict[str, Any]  # what all parts need to know; stored as JSON
Add = Callable[[str, int, bytes], None]  # takes image, kind and payload of an item, see ImageGroups.add


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

    def read_groups(
        self, part: int, scratch: str, join: Callable[[Head, ImageGroups], Iterator[SourceItem]]
    ) -> Iterator[SourceItem]:
        """Yield what `join` makes of the items of one part; the first part also has what belongs to no image."""
        head = self.read_head()
        if part == 0:
            yield from map(_decode_item, self.storage.read_lines(f"{self.prefix}-items.jsonl"))
        with ImageGroups(scratch) as groups:
            with self.storage.open(self._part(part)) as file:
                while header := file.read(_ITEM.size):
                    name_bytes, kind, payload_bytes = _ITEM.unpack(header)
                    name = file.read(name_bytes).decode("utf-8", "surrogatepass")
                    groups.add(name, kind, file.read(payload_bytes))
            yield from join(head, groups)

    def _part(self, part: int) -> str:
        return f"{self.prefix}-{part:03d}.bin"


class FilePart(io.RawIOBase):
    """A range of a file's bytes from its current position, to read once, with some bytes before and after."""

    def __init__(self, file: BinaryIO, num_bytes: int, before: bytes, after: bytes) -> None:
        self._file, self._num_bytes, self._before, self._after = file, num_bytes, before, after

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._before:
            data, self._before = self._before[: len(buffer)], self._before[len(buffer) :]
        elif self._num_bytes and (data := self._file.read(min(self._num_bytes, len(buffer)))):
            self._num_bytes -= len(data)
        else:
            data, self._after = self._after[: len(buffer)], self._after[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


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
