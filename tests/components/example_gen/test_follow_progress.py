"""The stages of an ingestion that the progress display shows."""

import contextlib
import threading
from types import SimpleNamespace

from detloom.components.example_gen import follow_progress
from detloom.components.example_gen import ingest as ingest_module
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.read_annotations import list_chunks


def test_all_stages_are_followed_to_their_ends(make_voc, tmp_path, without_beam, monkeypatch):
    shown = []

    @contextlib.contextmanager
    def show(name, total, unit):
        shown.append([name, total, unit, 0])
        yield SimpleNamespace(advance=lambda number: shown[-1].__setitem__(3, shown[-1][3] + number))

    monkeypatch.setattr(follow_progress, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(follow_progress, "show_progress", show)
    ratios = {"train": 0.5, "eval": 0.5}
    job = IngestJob(
        params=ExampleGenParams(data_format="voc", split_ratios=ratios, source="train"),
        data_format="voc",
        root=str(make_voc({"train": [f"{index:03d}" for index in range(300)]})),
        subfolders=("",),
        sources={"": "train"},
        examples=str(tmp_path / "out"),
        output_splits=tuple(ratios),
    )
    num_chunks = list_chunks(job).num_chunks
    ingest_module._run(job, num_chunks, dict)
    follow_progress._follow(job, num_chunks, threading.Event())
    # 300 records are two chunks of at most 256 names, and each of them is one block.
    assert shown == [["Annotations", 2, "parts", 2], ["Comparison", 2, "parts", 2], ["Ingestion", 300, "images", 300]]
