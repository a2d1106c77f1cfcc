"""The stages of an ingestion that the progress display shows."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

from detloom.components.example_gen import follow_progress, ingest
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.read_annotations import list_chunks

# Of 300 records: two chunks of at most 256 names, and each of them is one block.
ALL_STAGES = [["Annotations", 2, "parts", 2], ["Comparison", 2, "parts", 2], ["Ingestion", 300, "images", 300]]


@pytest.fixture
def job(make_voc, tmp_path) -> IngestJob:
    ratios = {"train": 0.5, "eval": 0.5}
    return IngestJob(
        params=ExampleGenParams(format="voc", split_by_ratio=ratios, source="train"),
        data_format="voc",
        root=str(make_voc({"train": [f"{index:03d}" for index in range(300)]})),
        subfolders=("",),
        sources={"": "train"},
        examples=str(tmp_path / "out"),
        output_splits=tuple(ratios),
    )


def test_all_stages_are_followed_to_their_ends(job, monkeypatch, without_beam):
    shown: list[list[object]] = []

    @contextlib.contextmanager
    def show(name, total, unit):
        def advance(number):
            shown[-1][3] += number

        shown.append([name, total, unit, 0])
        yield SimpleNamespace(advance=advance)

    monkeypatch.setattr(follow_progress, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(follow_progress, "show_progress", show)
    num_chunks, _ = list_chunks(job)
    ingest._run(job, num_chunks, dict)
    follow_progress._follow(job, num_chunks, threading.Event())
    assert shown == ALL_STAGES


def test_nothing_is_shown_after_the_end(job, monkeypatch):
    stop = threading.Event()
    stop.set()
    follow_progress._follow(job, 2, stop)
    assert not job.staging.exists(job.plan_file)
