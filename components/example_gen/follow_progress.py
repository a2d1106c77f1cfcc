"""Show the progress of a running ingestion from the staging folder, in which workers of any runner leave files.

A runner that lost a worker may start the job again from its beginning. The files of the earlier attempt stay until they
are replaced, so that only files written after the job's newest start count.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator

from detloom.components.example_gen.hash_images import list_blocks
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.plan import read_plan
from detloom.components.example_gen.write_shard import read_shard_outcome
from detloom.trainer_module.runtime.progress import show_progress

_POLL_SECONDS = 1.0
_STARTS = "starts"  # folder with a file for each start of the job
_LOGGER = logging.getLogger("detloom")


def note_start(job: IngestJob) -> None:
    """Leave a file that says that a worker has begun the job; called by its first step."""
    job.staging.write_json(f"{_STARTS}/{uuid.uuid4().hex}.json", None)


@contextlib.contextmanager
def follow_progress(job: IngestJob, num_chunks: int) -> Iterator[None]:
    """Show how many records are done until the block ends; errors here never fail the ingestion."""
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(job, num_chunks, stop), name="ingest-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _StartedAgainError(Exception):
    """The runner has started the job again."""


class _Attempt:
    """The files that the workers have written since the job's newest start."""

    def __init__(self, job: IngestJob) -> None:
        self._staging = job.staging
        self._num_starts = 1
        self._since_ns = 0  # a file of the first attempt needs no look at its time, which may be a request

    def list_names(self, folder: str) -> list[str]:
        """Return the names of a folder's files.

        Raises:
            _StartedAgainError: if the job was started again since the last call; the next call goes by the new start.
        """
        self._check_starts()
        if not self._since_ns:
            return self._staging.list_names(folder)
        entries = self._staging.list_entries(folder)
        return [entry.path.rpartition("/")[2] for entry in entries if entry.mtime_ns >= self._since_ns]

    def has(self, path: str) -> bool:
        """Return whether a file exists; raises as `list_names` does."""
        self._check_starts()
        found = self._staging.status(path)
        return found is not None and found.mtime_ns >= self._since_ns

    def _check_starts(self) -> None:
        num_starts = len(self._staging.list_names(_STARTS))
        if num_starts > self._num_starts:
            self._num_starts = num_starts
            self._since_ns = max(entry.mtime_ns for entry in self._staging.list_entries(_STARTS))
            raise _StartedAgainError


def _follow(job: IngestJob, num_chunks: int, stop: threading.Event) -> None:
    attempt = _Attempt(job)
    # A file may disappear or be replaced between listing and reading.
    with contextlib.suppress(OSError, ValueError):
        while not stop.is_set():
            try:
                _follow_stages(job, num_chunks, attempt, stop)
                return
            except _StartedAgainError:
                _LOGGER.warning("The runner has lost workers and starts the ingestion again; progress begins at zero.")


def _follow_stages(job: IngestJob, num_chunks: int, attempt: _Attempt, stop: threading.Event) -> None:
    _show("Annotations", "parts", num_chunks, lambda: len(attempt.list_names("read")), stop)
    if job.joins_duplicates and not stop.is_set():
        num_blocks = sum(len(list_blocks(chunk, job)) for chunk in range(num_chunks))
        _show("Comparison", "parts", num_blocks, lambda: len(attempt.list_names("hashes")), stop)
    while not stop.is_set() and not attempt.has(job.plan_file):
        stop.wait(_POLL_SECONDS)
    if stop.is_set():
        return
    finished: dict[str, int] = {}
    _show("Ingestion", "images", read_plan(job).num_planned, lambda: _count_written(job, attempt, finished), stop)
    while not stop.wait(_POLL_SECONDS):
        attempt.has(job.plan_file)  # the runner may still lose a worker


def _show(name: str, unit: str, total: int, count: Callable[[], int], stop: threading.Event) -> None:
    with show_progress(name, total, unit=unit) as reporter:
        done = 0
        while done < total and not stop.wait(_POLL_SECONDS):
            now_done = count()
            if now_done > done:
                reporter.advance(now_done - done)
                done = now_done


def _count_written(job: IngestJob, attempt: _Attempt, finished: dict[str, int]) -> int:
    """Count the records of finished shards, kept in `finished` by name, and of shards being written."""
    for name in attempt.list_names("written"):
        if name not in finished:
            counts = read_shard_outcome(job, f"written/{name}").counts
            finished[name] = counts.num_written + counts.num_quarantined
    under_way = 0
    for name in attempt.list_names("progress"):
        if name not in finished:
            under_way += int(job.staging.read_json(f"progress/{name}"))
    return sum(finished.values()) + under_way
