"""Progress of a running ingestion, read from the staging folder: whatever the runner, the workers leave files there."""

import contextlib
import json
import threading
from collections.abc import Iterator

import tensorflow as tf

from detloom.components.example_gen import work_files
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.plan import read_plan
from detloom.components.example_gen.write_shard import read_shard_outcome
from detloom.trainer_module.progress import show_progress

_LOOK_EVERY_SECONDS = 1.0


@contextlib.contextmanager
def follow_progress(job: IngestJob, num_chunks: int) -> Iterator[None]:
    """Show how many records are done, until the block ends; nothing of it can fail the ingestion."""
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(job, num_chunks, stop), name="ingest-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(job: IngestJob, num_chunks: int, stop: threading.Event) -> None:
    # A file may vanish or be replaced between listing and reading.
    with contextlib.suppress(tf.errors.OpError, OSError, ValueError):
        with show_progress("Annotations", num_chunks, unit="parts") as reporter:
            done = 0
            while done < num_chunks and not stop.wait(_LOOK_EVERY_SECONDS):
                now_done = len(work_files.list_names(f"{job.staging}/read"))
                if now_done > done:
                    reporter.advance(now_done - done)
                    done = now_done
        while not work_files.exists(job.plan_file):
            if stop.wait(_LOOK_EVERY_SECONDS):
                return
        num_planned = read_plan(job).num_planned
        with show_progress("Ingestion", num_planned, unit="images") as reporter:
            done = 0
            finished: dict[str, int] = {}
            while done < num_planned and not stop.wait(_LOOK_EVERY_SECONDS):
                now_done = _count_written(job, finished)
                if now_done > done:
                    reporter.advance(now_done - done)
                    done = now_done


def _count_written(job: IngestJob, finished: dict[str, int]) -> int:
    """Records of finished shards, kept in `finished` by name, and of those that are being written."""
    for name in work_files.list_names(f"{job.staging}/written"):
        if name not in finished:
            counts = read_shard_outcome(f"{job.staging}/written/{name}").counts
            finished[name] = counts.num_written + counts.num_quarantined
    under_way = 0
    for name in work_files.list_names(f"{job.staging}/progress"):
        if name not in finished:
            with tf.io.gfile.GFile(f"{job.staging}/progress/{name}", "rb") as file:
                under_way += int(json.loads(file.read()))
    return sum(finished.values()) + under_way
