"""Build the nodes that read, describe and check the data."""

import hashlib
from pathlib import Path

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

import detloom.schemas.contracts
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.resolvers.strategies import REPORT
from detloom.schemas.contracts.example_keys import STATISTICS_KEYS
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.run_file.run_file import Place, RunFile

TRAIN, EVAL, TEST = "train", "eval", "test"  # split names inside the pipeline
_EXAMPLE_SCHEMA = "example_schema.pbtxt"
# pipelines/container resolves it inside the image
_PACKAGED_SCHEMA = f"package://detloom.schemas.contracts/{_EXAMPLE_SCHEMA}"


def has_spans(run: RunFile) -> bool:
    """Return whether data arrives in spans, so that an earlier span can be compared with."""
    return "{" in run.data.path


def build_example_gen(run: RunFile) -> DetectionExampleGen:
    params = ExampleGenParams.from_run_file(run.data, run.checks.near_duplicates.max_distance)
    return DetectionExampleGen(run.data.path, params)


def build_statistics_gen(examples: tfx.types.BaseChannel) -> tfx.components.StatisticsGen:
    return tfx.components.StatisticsGen(
        examples=examples,
        # Images are left out of the statistics. A schema filters while reading, so that their bytes are never loaded;
        # a feature_allowlist would filter later and, given as paths, would not survive TFX's JSON.
        stats_options=tfdv.StatsOptions(schema=_statistics_schema(), experimental_filter_read_paths=True),
    )


def build_schema_gen(run: RunFile, place: Place) -> tfx.components.ImportSchemaGen:
    """Import the schema from a path that contains its digest, because TFX's cache key covers only the path."""
    text = _schema_file().read_text(encoding="utf-8")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if place != "local":
        return tfx.components.ImportSchemaGen(schema_file=f"{_PACKAGED_SCHEMA}?sha256={digest}")
    staged = Path(run.workspace) / "schema" / digest / "schema.pbtxt"
    if not staged.is_file():
        staged.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(staged, text)
    return tfx.components.ImportSchemaGen(schema_file=str(staged))


def build_dataset_validator(
    run: RunFile, examples: tfx.types.BaseChannel, previous_report: BaseNode | None, place: Place
) -> DatasetValidator:
    return DatasetValidator(
        examples=examples,
        previous_report=previous_report.outputs[REPORT] if previous_report else None,
        required_splits=(TRAIN, EVAL, TEST),
        train_split=TRAIN,
        checks=run.checks,
        model_input=ModelInput.of_model(run.model, run.train_input.max_number_of_boxes),
        max_pixels=run.data.max_pixels,
        history=_report_history(run) if place != "local" else "",
        evaluation=EvaluationRequirements.of_settings(run.evaluator, run.gates, TEST),
    )


def _report_history(run: RunFile) -> str:
    """Return a folder that keeps reports after a run: no Resolver finds earlier spans, and a pod's disk is lost."""
    kept = (run.retrain.records if run.retrain else "") or run.push_to
    if not kept:  # the model is deployed to an endpoint of Vertex AI
        assert run.vertex is not None
        kept = f"{run.vertex.pipeline_root.rstrip('/')}/{run.name}"
    return f"{kept.rstrip('/')}/dataset_reports/{run.name}"


def _schema_file() -> Path:
    return next(
        file for folder in detloom.schemas.contracts.__path__ if (file := Path(folder) / _EXAMPLE_SCHEMA).is_file()
    )


def _statistics_schema() -> schema_pb2.Schema:
    """Return a schema with the names and types of the features that statistics cover."""
    types = {feature.name: feature.type for feature in tfdv.load_schema_text(str(_schema_file())).feature}
    return schema_pb2.Schema(feature=[schema_pb2.Feature(name=key, type=types[key]) for key in STATISTICS_KEYS])
