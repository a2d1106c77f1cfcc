"""Ingestion through Beam's portable job service with separate worker processes, as on Flink and Spark."""

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from faults import read_visible


@pytest.mark.nightly  # a job service and worker processes
def test_separate_workers_write_the_same_bytes(make_voc, run_ingest, tmp_path, portable_options):
    folder = make_voc({"train": [f"a{number}" for number in range(40)], "val": ["b1", "b2"]})
    (folder / "JPEGImages/a7.jpg").write_bytes(b"not an image")
    (folder / "Annotations/a9.xml").write_text("<annotation>")
    for name, options in (("here", ["--direct_running_mode=in_memory"]), ("there", portable_options)):
        pipeline = beam.Pipeline(options=PipelineOptions(options))
        run_ingest(folder, tmp_path / name, lambda it=pipeline: it, shard_max_bytes=10_000, max_reject_fraction=0.5)
    here = read_visible(tmp_path / "here")
    assert read_visible(tmp_path / "there") == here
    assert sum("data_tfrecord" in name for name in here) > 3
