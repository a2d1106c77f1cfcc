"""Show the progress of a running ingestion from the staging folder, in which workers of any runner leave files."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from detloom.components.example_gen.hash_images import list_blocks
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.plan import read_plan
from detloom.components.example_gen.write_shard import read_shard_outcome
from detloom.trainer_module.runtime.progress import show_progress

_POLL_SECONDS = 1.0


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


def _follow(job: IngestJob, num_chunks: int, stop: threading.Event) -> None:
    def count_files(folder: str) -> Callable[[], int]:
        return lambda: len(job.staging.list_names(folder))

    # A file may disappear or be replaced between listing and reading.
    with contextlib.suppress(OSError, ValueError):
        _show("Annotations", "parts", num_chunks, count_files("read"), stop)
        if job.joins_duplicates and not stop.is_set():
            num_blocks = sum(len(list_blocks(chunk, job)) for chunk in range(num_chunks))
            _show("Comparison", "parts", num_blocks, count_files("hashes"), stop)
        while not stop.is_set() and not job.staging.exists(job.plan_file):
            stop.wait(_POLL_SECONDS)
        if not stop.is_set():
            finished: dict[str, int] = {}
            _show("Ingestion", "images", read_plan(job).num_planned, lambda: _count_written(job, finished), stop)


def _show(name: str, unit: str, total: int, count: Callable[[], int], stop: threading.Event) -> None:
    with show_progress(name, total, unit=unit) as reporter:
        done = 0
        while done < total and not stop.wait(_POLL_SECONDS):
            now_done = count()
            if now_done > done:
                reporter.advance(now_done - done)
                done = now_done


def _count_written(job: IngestJob, finished: dict[str, int]) -> int:
    """Count the records of finished shards, kept in `finished` by name."""
    for name in job.staging.list_names("written"):
        if name not in finished:
            counts = read_shard_outcome(job, f"written/{name}")
            finished[name] = counts.num_written + counts.num_quarantined
    return sum(finished.values())
