"""Data that arrives over time: ingestion and its downstream node, on TFX's local runner with metadata in SQLite."""

import json

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb
from tfx import v1 as tfx
from tfx.orchestration.local.local_dag_runner import LocalDagRunner

from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.resolvers.strategies import REPORT, build_previous_report_resolver

pytestmark = pytest.mark.nightly  # five runs of a TFX pipeline


@pytest.fixture
def run_pipeline(tmp_path):
    """Run ingestion and validation of `span-{SPAN}`; return the states of the newest executions by node."""
    metadata = tmp_path / "metadata.sqlite"

    def run(num_spans=1):
        splits = {"train": "train", "eval": "val"}
        folder = str(tmp_path / "span-{SPAN}")
        example_gen = DetectionExampleGen(folder, ExampleGenParams(format="voc", splits=splits, num_spans=num_spans))
        previous = build_previous_report_resolver(example_gen.outputs["examples"])
        validator = DatasetValidator(
            examples=example_gen.outputs["examples"],
            previous_report=previous.outputs[REPORT],
            required_splits=("train", "eval"),
        )
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="spans",
            pipeline_root=str(tmp_path / "artifacts"),
            components=[example_gen, previous, validator],
            enable_cache=True,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(str(metadata)),
            beam_pipeline_args=["--direct_running_mode=in_memory"],
        )
        LocalDagRunner().run(pipeline)
        config = pb.ConnectionConfig()
        config.sqlite.filename_uri = str(metadata)
        store = mlmd.MetadataStore(config)
        newest = max(store.get_contexts_by_type("pipeline_run"), key=lambda context: context.id)
        states = {}
        for execution in store.get_executions_by_context(newest.id):
            type_name = store.get_execution_types_by_id([execution.type_id])[0].name.rsplit(".", 1)[-1]
            states[type_name] = pb.Execution.State.Name(execution.last_known_state)
        return states

    return run


def newest(tmp_path, pattern):
    return json.loads(max(tmp_path.glob(pattern), key=lambda path: path.stat().st_mtime_ns).read_text())


def test_a_new_span_runs_all_nodes_and_an_unchanged_one_uses_the_cache(make_voc, tmp_path, run_pipeline):
    lists = {"train": ["a", "b", "c"], "val": ["d"]}
    make_voc(lists, name="span-1")
    first = run_pipeline()
    assert (first["DetectionExampleGen"], first["DatasetValidator"]) == ("COMPLETE", "COMPLETE")
    assert run_pipeline()["DatasetValidator"] == "CACHED"
    make_voc(lists, {"a": [("dog", 1, 1, 9, 9)]}, name="span-2")
    second = run_pipeline()
    assert (second["DetectionExampleGen"], second["DatasetValidator"]) == ("COMPLETE", "COMPLETE")
    again = run_pipeline()
    assert (again["DetectionExampleGen"], again["DatasetValidator"]) == ("CACHED", "CACHED")
    drift = next(
        check for check in newest(tmp_path, "artifacts/**/report/*/report.json")["checks"] if "drift" in check["check"]
    )
    assert drift["value"] is not None  # compared with span 1


def test_a_rolling_window_merges_the_latest_spans(make_voc, tmp_path, run_pipeline):
    for span in (1, 2, 3):
        make_voc({"train": [f"a{span}"], "val": [f"z{span}"]}, name=f"span-{span}")
    run_pipeline(num_spans=2)
    report = newest(tmp_path, "artifacts/**/rejects/*/report.json")
    assert (report["subfolders"], report["num_written"]) == (["span-2", "span-3"], 4)
    make_voc({"train": ["a4"], "val": ["z4"]}, name="span-4")
    assert run_pipeline(num_spans=2)["DetectionExampleGen"] == "COMPLETE"
    assert newest(tmp_path, "artifacts/**/rejects/*/report.json")["subfolders"] == ["span-3", "span-4"]
    assert run_pipeline(num_spans=2)["DetectionExampleGen"] == "CACHED"
