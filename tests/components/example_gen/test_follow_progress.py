"""The stages of an ingestion that the progress display shows."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from detloom.components.example_gen import follow_progress, ingest
from detloom.components.example_gen.follow_progress import note_start
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.read_annotations import list_chunks

# Of 300 records: two chunks of at most 256 names, and each of them is one block.
ALL_STAGES = [["Annotations", 2, "parts", 2], ["Comparison", 2, "parts", 2], ["Ingestion", 300, "images", 300]]


@pytest.fixture
def job(make_voc, tmp_path) -> IngestJob:
    ratios = {"train": 0.5, "eval": 0.5}
    return IngestJob(
        params=ExampleGenParams(data_format="voc", split_ratios=ratios, source="train"),
        data_format="voc",
        root=str(make_voc({"train": [f"{index:03d}" for index in range(300)]})),
        subfolders=("",),
        sources={"": "train"},
        examples=str(tmp_path / "out"),
        output_splits=tuple(ratios),
    )


@pytest.fixture
def follow(job, monkeypatch):
    """Return a function that follows the job and returns the stages as [name, total, unit, done].

    `at_end` is called each time that all images are done; the display ends when it returns True.
    """
    monkeypatch.setattr(follow_progress, "_POLL_SECONDS", 0.0)

    def call(num_chunks: int, at_end: Callable[[], bool] = lambda: True) -> list[list[object]]:
        shown: list[list[object]] = []
        stop = threading.Event()

        @contextlib.contextmanager
        def show(name, total, unit):
            def advance(number):
                shown[-1][3] += number
                if shown[-1][3] == 300 and at_end():
                    stop.set()

            shown.append([name, total, unit, 0])
            yield SimpleNamespace(advance=advance)

        monkeypatch.setattr(follow_progress, "show_progress", show)
        follow_progress._follow(job, num_chunks, stop)
        return shown

    return call


def test_all_stages_are_followed_to_their_ends(job, follow, without_beam):
    num_chunks = list_chunks(job).num_chunks
    note_start(job)
    ingest._run(job, num_chunks, dict)
    assert follow(num_chunks) == ALL_STAGES


def test_a_job_that_is_started_again_is_shown_from_its_beginning(job, follow, without_beam, caplog):
    num_chunks = list_chunks(job).num_chunks
    note_start(job)
    ingest._run(job, num_chunks, dict)
    ends = []

    def start_again() -> bool:
        ends.append(1)
        if len(ends) == 1:
            for path in job.staging.walk():  # a minute passes
                os.utime(job.staging.address(path.path), ns=(path.mtime_ns - 60 * 10**9,) * 2)
            note_start(job)
            threading.Thread(target=ingest._run, args=(job, num_chunks, dict)).start()
        return len(ends) == 2

    with caplog.at_level(logging.WARNING, logger="detloom"):
        assert follow(num_chunks, start_again) == ALL_STAGES * 2
    assert "starts the ingestion again; progress begins at zero" in caplog.text
