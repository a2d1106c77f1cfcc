"""Work on many files of a storage: one after another in a local folder, several requests at a time at an address."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from detloom.components.storage.storage import Storage, is_address

_NUM_THREADS = 16
_MAX_AHEAD = 32  # results in memory
_LARGE_BYTES = 4 * 2**20  # a larger file is not read ahead

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_files(storage: Storage, function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield the results of a function that makes requests, in the order of the items; its first error is raised."""
    if not is_address(storage.root):
        yield from map(function, items)
        return
    rest = iter(items)
    with ThreadPoolExecutor(_NUM_THREADS, "files") as threads:
        ahead: deque[Future[_Result]] = deque()
        try:
            ahead.extend(threads.submit(function, item) for item in itertools.islice(rest, _MAX_AHEAD))
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(threads.submit(function, item) for item in itertools.islice(rest, 1))
        finally:
            threads.shutdown(cancel_futures=True)


def read_lines_of_files(storage: Storage, folder: str) -> Iterator[bytes]:
    """Yield the lines of all files in a folder without their ends, in the order of the names."""
    paths = (f"{folder}/{name}" for name in storage.list_names(folder))
    for path, data in map_files(storage, lambda path: (path, storage.read(path, _LARGE_BYTES) or b""), paths):
        if len(data) > _LARGE_BYTES:
            yield from storage.read_lines(path)
        else:
            yield from data.removesuffix(b"\n").split(b"\n") if data else ()
