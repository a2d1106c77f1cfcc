"""The one DAG. Runners only place it."""

import hashlib
import uuid
from pathlib import Path

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec

import detloom.schemas
from detloom.components.baseline_resolver.strategy import build_baseline_resolver
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.evaluator.component import DetectionEvaluator
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.pusher.executor import Executor as PusherExecutor
from detloom.pipelines.source_fingerprint import source_fingerprint
from detloom.schemas.example_keys import STATISTICS_KEYS
from detloom.schemas.run_file import RunFile
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.tfx_run import CONFIG_KEY

TRAIN, EVAL, TEST = "train", "eval", "test"  # split names inside the pipeline
FINGERPRINT_KEY = "code_fingerprint"  # in the custom_config of stock components
_EXAMPLE_SCHEMA = "example_schema.pbtxt"


def create_pipeline(run: RunFile) -> tfx.dsl.Pipeline:
    """The pipeline of a run file whose paths are absolute (`read_run_file`)."""
    workspace = Path(run.workspace)
    return tfx.dsl.Pipeline(
        pipeline_name=run.name,
        pipeline_root=str(workspace / "artifacts"),
        components=_build_nodes(run),
        enable_cache=True,
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(
            str(workspace / "metadata.sqlite")
        ),
        beam_pipeline_args=["--direct_running_mode=in_memory"],
    )


def _build_nodes(run: RunFile) -> list[BaseNode]:
    example_gen = _build_example_gen(run)
    examples = example_gen.outputs["examples"]
    statistics_gen = tfx.components.StatisticsGen(
        examples=examples,
        # Image bytes say nothing there. Filtered by schema while reading, they do not even pass through memory; a
        # feature_allowlist would filter later, or, as paths, not survive TFX's JSON.
        stats_options=tfdv.StatsOptions(schema=_statistics_schema(), experimental_filter_read_paths=True),
    )
    schema_gen = tfx.components.ImportSchemaGen(schema_file=str(_stage_schema(Path(run.workspace))))
    example_validator = tfx.components.ExampleValidator(
        statistics=statistics_gen.outputs["statistics"], schema=schema_gen.outputs["schema"]
    )
    dataset_validator = DatasetValidator(
        examples=examples,
        params=DatasetValidatorParams(
            required_splits=(TRAIN, EVAL, TEST),
            min_examples_per_split=run.data.min_examples,
            code_fingerprint=source_fingerprint("detloom.components.dataset_validator.component"),
        ),
    )
    trainer = _build_trainer(run, examples)
    # DatasetValidator fails on bad data, and then nothing trains; ExampleValidator reports, and the summary shows it.
    trainer.add_upstream_nodes([example_validator, dataset_validator])
    baseline = build_baseline_resolver(candidate=trainer.outputs["model"])
    evaluator = DetectionEvaluator(
        examples=examples,
        model=trainer.outputs["model"],
        baseline_model=baseline.outputs["model"],
        params=EvaluatorParams(
            split=TEST,
            batch_size=run.evaluator.batch_size,
            num_pictures=run.evaluator.num_pictures,
            gates=run.gates,
            code_fingerprint=source_fingerprint("detloom.components.evaluator.component"),
        ),
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=run.push_to)
        ),
        custom_config={
            FINGERPRINT_KEY: source_fingerprint("detloom.components.pusher.executor"),
            # Never answered from the cache, which cannot see whether the served model is still there; pushing a model
            # that is served already takes milliseconds and changes nothing.
            "run": uuid.uuid4().hex,
        },
        custom_executor_spec=ExecutorClassSpec(PusherExecutor),
    )
    return [
        example_gen,
        statistics_gen,
        schema_gen,
        example_validator,
        dataset_validator,
        trainer,
        baseline,
        evaluator,
        pusher,
    ]


def _build_example_gen(run: RunFile) -> DetectionExampleGen:
    return DetectionExampleGen(
        input_base=run.data.path,
        params=ExampleGenParams(
            data_format=run.data.format,
            splits={TRAIN: run.data.splits.train, EVAL: run.data.splits.eval, TEST: run.data.splits.test},
            images_dir=run.data.images_dir,
            class_names=run.data.classes,
            unknown_class=run.data.unknown_class,
            max_reject_fraction=run.data.max_reject_fraction,
            code_fingerprint=source_fingerprint("detloom.components.example_gen.component"),
        ),
    )


def _build_trainer(run: RunFile, examples: tfx.types.BaseChannel) -> tfx.components.Trainer:
    return tfx.components.Trainer(
        run_fn="detloom.trainer_module.run_fn",
        examples=examples,
        train_args=tfx.proto.TrainArgs(splits=[TRAIN], num_steps=run.train.num_steps),
        eval_args=tfx.proto.EvalArgs(splits=[EVAL]),
        custom_config={
            CONFIG_KEY: to_canonical_json(run.config),
            FINGERPRINT_KEY: source_fingerprint("detloom.trainer_module"),
        },
    )


def _schema_file() -> Path:
    return next(file for folder in detloom.schemas.__path__ if (file := Path(folder) / _EXAMPLE_SCHEMA).is_file())


def _statistics_schema() -> schema_pb2.Schema:
    """The features that statistics are made of, with their types only."""
    types = {feature.name: feature.type for feature in tfdv.load_schema_text(str(_schema_file())).feature}
    return schema_pb2.Schema(feature=[schema_pb2.Feature(name=key, type=types[key]) for key in STATISTICS_KEYS])


def _stage_schema(workspace: Path) -> Path:
    """The schema under a name that changes with its content: ImportSchemaGen's cache sees the path alone."""
    text = _schema_file().read_bytes()
    staged = workspace / "schema" / hashlib.sha256(text).hexdigest()[:16] / "schema.pbtxt"
    if not staged.is_file():
        staged.parent.mkdir(parents=True, exist_ok=True)
        partial = staged.with_suffix(".partial")
        partial.write_bytes(text)
        partial.replace(staged)
    return staged
