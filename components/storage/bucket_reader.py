"""Read many files of a Cloud Storage bucket with few requests: names come from pages of a listing, and files that are
read soon are requested ahead, by several threads.

What a page says is not asked for again, so a reader is for one pass over files that do not change meanwhile.
"""

import bisect
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from detloom.components.storage.google_storage import GoogleStorage, entry_of, os_errors, request_options
from detloom.components.storage.storage import Entry

_NAMES_PER_PAGE = 1000  # the most that Cloud Storage lists in one response
_MAX_PAGES = 256  # in memory: about 50 MB
_NUM_THREADS = 8  # the client keeps up to ten connections
_MAX_AHEAD = 16  # files in memory or on their way


@dataclass(frozen=True)
class _Page:
    """A part of a folder's listing in the order of names; names of subfolders end in "/".

    Attributes:
        first, last: the page has all names from `first` to `last`; None for the end of the folder.
    """

    first: str
    last: str | None
    entries: dict[str, Entry] = field(default_factory=dict)

    def covers(self, name: str) -> bool:
        return self.first <= name and (self.last is None or name <= self.last)


class BucketReader(GoogleStorage):
    """A bucket or a part of it, to read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._pages: OrderedDict[tuple[str, str], _Page] = OrderedDict()  # by folder and first name
        self._first_names: dict[str, list[str]] = {}  # of the pages of each folder, sorted
        self._expected: Iterator[str] = iter(())
        self._limit_bytes = 0
        self._ahead: dict[str, Future[bytes | None]] = {}

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
        known = self._ahead.pop(path)
        self._read_ahead()
        return known.result()

    def _read_ahead(self) -> None:
        while len(self._ahead) < _MAX_AHEAD and (path := next(self._expected, None)) is not None:
            self._ahead[path] = self._threads.submit(super().read, path, self._limit_bytes)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_THREADS, "read-ahead")

    def _look_up(self, folder: str, name: str) -> Entry | None:
        page = self._find_page(folder, name)
        if page is None:
            page = self._read_page(folder, name)
            self._pages[folder, name] = page
            bisect.insort(self._first_names.setdefault(folder, []), name)
            if len(self._pages) > _MAX_PAGES:
                (old_folder, old_name), _ = self._pages.popitem(last=False)
                self._first_names[old_folder].remove(old_name)
        return page.entries.get(name)

    def _find_page(self, folder: str, name: str) -> _Page | None:
        """Return the page in memory that has this name if it exists."""
        first_names = self._first_names.get(folder, [])
        place = bisect.bisect_right(first_names, name) - 1
        if place < 0 or not (page := self._pages[folder, first_names[place]]).covers(name):
            return None
        self._pages.move_to_end((folder, page.first))
        return page

    def _read_page(self, folder: str, first: str) -> _Page:
        """Read the names of a folder from `first` on, which need not exist."""
        prefix = self._prefix(folder)
        with os_errors(self.address(folder)):
            listing = self._bucket.list_blobs(
                prefix=prefix,
                delimiter="/",
                start_offset=prefix + first,
                page_size=_NAMES_PER_PAGE,
                fields="items(name,size,updated),prefixes,nextPageToken",
                **request_options(),
            )
            entries: dict[str, Entry] = {}
            for page in listing.pages:  # a page may be empty although others follow
                for blob in page:
                    name = blob.name.removeprefix(prefix)
                    entries[name] = entry_of(f"{folder}/{name}" if folder else name, blob)
                for found in listing.prefixes:
                    name = found.removeprefix(prefix)
                    entries[name] = Entry(f"{folder}/{name}".strip("/"), is_folder=True)
                if entries:
                    break
        return _Page(first, max(entries) if listing.next_page_token else None, entries)
