"""Ingestion through Beam's portable job service with separate worker processes, as on Flink and Spark."""

import sys
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams

pytestmark = pytest.mark.nightly  # a job service and worker processes


@pytest.fixture
def data_folder(make_voc) -> Path:
    folder = make_voc({"train": [f"a{number}" for number in range(40)], "eval": ["b1", "b2"]})
    (folder / "JPEGImages/a7.jpg").write_bytes(b"not an image")
    (folder / "Annotations/a9.xml").write_text("<annotation>")
    return folder


def ingested(data_folder: Path, out: Path, beam_args: Sequence[str]) -> dict[str, bytes]:
    """Return all files of the output."""
    params = ExampleGenParams(
        format="voc",
        splits={"train": "train", "eval": "eval"},
        shard_max_bytes=10_000,
        max_reject_fraction=0.5,
    )
    ingest(
        data_folder,
        params,
        IngestFolders(str(out), str(out / "rejects")),
        lambda: beam.Pipeline(options=PipelineOptions(list(beam_args))),
    )
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def check_same_as_here(data_folder: Path, tmp_path: Path, beam_args: Sequence[str]) -> None:
    here = ingested(data_folder, tmp_path / "here", ["--direct_running_mode=in_memory"])
    there = ingested(data_folder, tmp_path / "there", beam_args)
    assert sum("data_tfrecord" in name for name in here) > 3
    assert there == here


def test_an_external_worker_pool_writes_the_same_bytes(data_folder, tmp_path, job_endpoint, worker_pool):
    check_same_as_here(
        data_folder,
        tmp_path,
        [
            "--runner=PortableRunner",
            f"--job_endpoint={job_endpoint}",
            "--environment_type=EXTERNAL",
            f"--environment_config={worker_pool}",
        ],
    )


def test_a_worker_subprocess_writes_the_same_bytes(data_folder, tmp_path, job_endpoint):
    check_same_as_here(
        data_folder,
        tmp_path,
        [
            "--runner=PortableRunner",
            f"--job_endpoint={job_endpoint}",
            "--environment_type=beam:env:harness_subprocess_python:v1",
            f"--environment_config={sys.executable} -m apache_beam.runners.worker.sdk_worker_main",
        ],
    )


def test_a_user_error_is_reported_without_a_traceback(data_folder, tmp_path, job_endpoint, worker_pool):
    from detloom.schemas.errors import InputError

    (data_folder / "JPEGImages/b1.jpg").unlink()
    (data_folder / "JPEGImages/b2.jpg").unlink()
    beam_args = ["--runner=PortableRunner", f"--job_endpoint={job_endpoint}", "--environment_type=EXTERNAL"]
    with pytest.raises(InputError, match=r"split 'eval' .*is empty"):
        ingested(data_folder, tmp_path / "out", [*beam_args, f"--environment_config={worker_pool}"])
