"""Runs of a small pipeline on real metadata: spans arrive, and each is compared with the one before, or not at all."""

import json
from pathlib import Path

import pytest
from tfx.dsl.component.experimental.annotations import OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base import base_node
from tfx.orchestration import metadata
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.pipeline import Pipeline
from tfx.types import Channel, artifact_utils
from tfx.types.standard_artifacts import Examples

from detloom.components.artifact_types import DatasetReport
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.previous_report.strategy import (
    NODE_ID,
    PreviousReportStrategy,
    build_previous_report_resolver,
)
from detloom.schemas.label_map import LabelMap, write_label_map


@component
def StubExampleGen(span: Parameter[int], record: Parameter[str], examples: OutputArtifact[Examples]):
    import tensorflow as tf

    examples.split_names = artifact_utils.encode_split_names(["train"])
    examples.set_int_custom_property("span", span)
    folder = Path(examples.uri) / "Split-train"
    folder.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "data_tfrecord-00000-of-00001")) as writer:
        writer.write(bytes.fromhex(record))
    write_label_map(Path(examples.uri) / "label_map.pbtxt", LabelMap.from_names(["cat", "dog"]))


@pytest.fixture
def run(tmp_path, make_example):
    """Runs the pipeline on one image of a class; returns the drift of each report written so far, by execution."""

    # Made once: protobuf may write the same features in another order the next time.
    records = {class_id: make_example([(0.1, 0.1, 0.6, 0.6)], [class_id]).hex() for class_id in (1, 2)}

    def call(span, class_id):
        generator = StubExampleGen(span=span, record=records[class_id])
        resolver = build_previous_report_resolver(generator.outputs["examples"])
        validator = DatasetValidator(
            generator.outputs["examples"],
            DatasetValidatorParams(required_splits=("train",)),
            resolver.outputs["report"],
        )
        LocalDagRunner().run(
            Pipeline(
                pipeline_name="p",
                pipeline_root=str(tmp_path / "root"),
                components=[generator, resolver, validator],
                enable_cache=True,
                metadata_connection_config=metadata.sqlite_metadata_connection_config(str(tmp_path / "m.sqlite")),
                beam_pipeline_args=["--direct_running_mode=in_memory"],
            )
        )
        reports = sorted(
            (tmp_path / "root/DatasetValidator/report").glob("*/report.json"), key=lambda path: int(path.parent.name)
        )
        drifts = [json.loads(path.read_text())["drift"] for path in reports]
        return [
            drift["reason"] or (drift["previous_span"], drift["splits"]["train"]["class_distance"]) for drift in drifts
        ]

    return call


def test_a_span_is_compared_with_the_one_before_and_an_unchanged_one_is_cached(run):
    assert run(1, 1) == ["no earlier span"]
    assert run(1, 1) == ["no earlier span"]  # no second report: the cache answered
    assert run(2, 2) == ["no earlier span", (1, 1.0)]
    assert run(2, 2) == ["no earlier span", (1, 1.0)]


def make_artifact(kind, artifact_id, span=None):
    artifact = kind()
    artifact.id = artifact_id
    if span is not None:
        artifact.set_int_custom_property("span", span)
    return artifact


def resolve(examples, *reports):
    inputs = {"examples": [examples], "report": list(reports)}
    resolved = PreviousReportStrategy().resolve_artifacts(None, inputs)
    assert inputs == {"examples": [examples], "report": list(reports)}
    assert resolved["examples"] == [examples]
    return [report.id for report in resolved["report"]]


def test_of_several_reports_on_one_span_the_newest_counts():
    reports = [make_artifact(DatasetReport, number, span) for number, span in ((2, 1), (7, 3), (9, 3), (8, 2), (10, 4))]
    assert resolve(make_artifact(Examples, 1, 4), *reports) == [9]


def test_without_an_earlier_span_there_is_none():
    assert resolve(make_artifact(Examples, 1, 3), make_artifact(DatasetReport, 2, 3)) == []
    assert resolve(make_artifact(Examples, 1, 3)) == []


def test_artifacts_without_a_span_are_left_alone():
    assert resolve(make_artifact(Examples, 1), make_artifact(DatasetReport, 2, 0)) == []
    assert resolve(make_artifact(Examples, 1, 3), make_artifact(DatasetReport, 2)) == []


def test_the_resolver_is_a_node_that_offers_the_report():
    resolver = build_previous_report_resolver(Channel(type=Examples))
    assert isinstance(resolver, base_node.BaseNode)
    assert resolver.id == NODE_ID
    assert resolver.outputs["report"].type is DatasetReport
