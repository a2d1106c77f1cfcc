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


@pytest.mark.parametrize("environment", ["EXTERNAL", "beam:env:harness_subprocess_python:v1"])
def test_separate_workers_write_the_same_bytes(data_folder, tmp_path, job_endpoint, worker_pool, environment):
    workers = {"EXTERNAL": worker_pool}.get(
        environment, f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
    )
    here = ingested(data_folder, tmp_path / "here", ["--direct_running_mode=in_memory"])
    beam_args = ["--runner=PortableRunner", f"--job_endpoint={job_endpoint}", f"--environment_type={environment}"]
    assert ingested(data_folder, tmp_path / "there", [*beam_args, f"--environment_config={workers}"]) == here
    assert sum("data_tfrecord" in name for name in here) > 3
