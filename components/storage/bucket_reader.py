"""Read many files of a bucket with few requests: names come from pages of a listing, and files that are
read soon are requested ahead, by several threads.

What a page says is not asked for again, so a reader is for one pass over files that do not change meanwhile.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from detloom.components.storage.bucket import NAMES_PER_PAGE, BucketStorage
from detloom.components.storage.storage import Entry, Storage, open_storage
from detloom.schemas.run_file.push import REMOTE_SCHEMES

_PAGE_NAMES = NAMES_PER_PAGE - 1  # one response, because `scan` looks one object ahead
_MAX_PAGES = 256  # in memory: about 50 MB
_NUM_THREADS = 8
_MAX_AHEAD = 16  # files in memory or on their way
_MAX_BYTES_AHEAD = 64 << 20  # the next file is requested while those ahead have no more; at least one is
_FIRST_BYTES = _MAX_BYTES_AHEAD // _MAX_AHEAD  # taken for the size of a file before any is known


@dataclass(frozen=True)
class _Page:
    """A part of a folder's listing in the order of names; names of subfolders end in "/".

    Attributes:
        first, last: the page has all names from `first` to `last`; None for the end of the folder.
    """

    folder: str
    first: str
    last: str | None
    entries: dict[str, Entry]

    def covers(self, folder: str, name: str) -> bool:
        return folder == self.folder and self.first <= name and (self.last is None or name <= self.last)


class BucketReader(BucketStorage):
    """A bucket, to read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._pages: deque[_Page] = deque(maxlen=_MAX_PAGES)  # the newest first
        self._expected: Iterator[str] = iter(())
        self._limit_bytes = 0
        self._ahead: dict[str, Future[bytes | None]] = {}
        self._last_bytes = _FIRST_BYTES  # size of the file that was taken last

    def status(self, path: str) -> Entry | None:
        if not path:
            return super().status(path)
        folder, _, name = path.rpartition("/")
        return self._look_up(folder, name) or self._look_up(folder, f"{name}/")

    def is_folder(self, path: str = "") -> bool:
        folder, _, name = path.rpartition("/")
        return self._look_up(folder, f"{name}/") is not None if path else super().is_folder(path)

    def expect(self, paths: Iterable[str], limit_bytes: int) -> None:
        """Read these files ahead, in this order; `read` with this limit then returns them without waiting."""
        self._ahead.clear()
        self._expected, self._limit_bytes = iter(paths), limit_bytes
        self._read_ahead()

    def read(self, path: str, limit_bytes: int | None = None) -> bytes | None:
        if path not in self._ahead or limit_bytes != self._limit_bytes:
            folder, _, name = path.rpartition("/")
            page = self._find_page(folder, name)
            return super().read(path, limit_bytes) if page is None or name in page.entries else None
        while (first := next(iter(self._ahead))) != path:  # it was not read after all
            del self._ahead[first]
        future = self._ahead.pop(path)
        self._read_ahead()
        data = future.result()
        self._last_bytes = len(data or b"")
        return data

    def _read_ahead(self) -> None:
        while len(self._ahead) < _MAX_AHEAD and self._bytes_ahead() <= _MAX_BYTES_AHEAD:
            path = next(self._expected, None)
            if path is None:
                return
            self._ahead[path] = self._threads.submit(super().read, path, self._limit_bytes)

    def _bytes_ahead(self) -> int:
        return sum(self._num_bytes(path, future) for path, future in self._ahead.items())

    def _num_bytes(self, path: str, future: Future[bytes | None]) -> int:
        """Return the size of a file as it was read, or as a page in memory says, or that of the file taken last."""
        if future.done() and future.exception() is None:
            return len(future.result() or b"")
        folder, _, name = path.rpartition("/")
        page = self._find_page(folder, name)
        entry = page.entries.get(name) if page else None
        return min(entry.size, self._limit_bytes + 1) if entry else self._last_bytes

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_THREADS, "read-ahead")

    def _look_up(self, folder: str, name: str) -> Entry | None:
        page = self._find_page(folder, name)
        if page is None:
            listed = list(itertools.islice(self.scan(folder, name), _PAGE_NAMES))
            page = _Page(folder, name, listed[-1][0] if len(listed) == _PAGE_NAMES else None, dict(listed))
            self._pages.appendleft(page)
        return page.entries.get(name)

    def _find_page(self, folder: str, name: str) -> _Page | None:
        """Return the page in memory that has this name if it exists."""
        return next((page for page in self._pages if page.covers(folder, name)), None)


def open_to_read(root: str) -> Storage:
    """Return a reader of a bucket, or the storage of a local folder."""
    return BucketReader(root) if root.startswith(REMOTE_SCHEMES) else open_storage(root)
