"""Ingestion with a full or read-only disk, a lost lock and a jumping clock."""

import json

import pytest
import tensorflow as tf
from faults import read_visible

from detloom.components.example_gen import ingest as ingest_module
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.errors import InputError

SPLITS = {"train": ["a", "b", "c"], "val": ["e"]}


@pytest.mark.reliability("full disk", "ingest")
@pytest.mark.parametrize("free_bytes", [0, 12_288, 32_768])
def test_full_disk_leaves_no_report_and_the_next_ingestion_succeeds(make_voc, tmp_path, run_ingest, disk, free_bytes):
    data, out = make_voc(SPLITS), disk.folder / "out"
    run_ingest(data, tmp_path / "whole")
    disk.fill(free_bytes)
    with pytest.raises((OSError, InputError, tf.errors.ResourceExhaustedError), match="No space left on device"):
        run_ingest(data, out)
    assert not (out / "rejects/report.json").exists()
    assert not list(out.glob("Split-*/data_tfrecord-*"))
    disk.empty()
    run_ingest(data, out)
    assert read_visible(out) == read_visible(tmp_path / "whole")


@pytest.mark.reliability("read-only", "ingest")
def test_data_on_a_read_only_disk_are_ingested_and_an_output_there_is_refused_and_unchanged(
    make_voc, tmp_path, run_ingest, disk
):
    data = make_voc(SPLITS).rename(tmp_path / "data")
    (disk.folder / "data").mkdir()
    for path in sorted(data.rglob("*")):
        target = disk.folder / path.relative_to(tmp_path)
        target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    run_ingest(data, disk.folder / "out")
    before = read_visible(disk.folder / "out")
    disk.make_read_only()
    with pytest.raises(InputError, match=r"/out: .*Read-only file system"):
        run_ingest(data, disk.folder / "out")
    assert read_visible(disk.folder / "out") == before
    report = run_ingest(disk.folder / "data", tmp_path / "out")
    assert report["num_written"] == 4


@pytest.mark.reliability("lost lease", "ingest")
@pytest.mark.parametrize("step", ["list_chunks", "_clean"])
def test_ingestion_that_lost_its_lock_publishes_nothing(make_voc, tmp_path, run_ingest, monkeypatch, step):
    data, out = make_voc(SPLITS), tmp_path / "out"
    run_ingest(data, out)
    before, original = read_visible(out), getattr(ingest_module, step)

    def lose(*arguments):
        found = original(*arguments)
        (out / ".ingest.lock").unlink()
        with hold_output(str(out), ".ingest.lock", "ingestion"):
            return found

    monkeypatch.setattr(ingest_module, step, lose)
    with pytest.raises(OSError, match=r"\.ingest\.lock"):
        run_ingest(data, out)
    assert read_visible(out) == (before if step == "list_chunks" else {})


@pytest.mark.reliability("clock jump", "ingest")
@pytest.mark.usefixtures("jumping_clock")
def test_output_does_not_depend_on_the_clock(make_voc, tmp_path, run_ingest):
    data = make_voc(SPLITS)
    for name in ("one", "two"):
        run_ingest(data, tmp_path / name)
    assert read_visible(tmp_path / "one") == read_visible(tmp_path / "two")
    assert json.loads((tmp_path / "one/rejects/report.json").read_text())["num_written"] == 4
