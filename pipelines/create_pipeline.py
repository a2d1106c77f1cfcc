"""The one DAG. Runners only place it."""

import hashlib
import uuid
from pathlib import Path
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

import detloom.schemas
from detloom.components.baseline_resolver.strategy import build_baseline_resolver
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.model_input import ModelInput
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.evaluator.component import DetectionEvaluator
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.model_card.component import ModelCard
from detloom.components.model_card.params import ModelCardParams
from detloom.components.previous_report.strategy import REPORT, build_previous_report_resolver
from detloom.components.pusher.component import Pusher
from detloom.components.warm_start.resolver import build_warm_start_resolver
from detloom.pipelines.source_fingerprint import source_fingerprint
from detloom.schemas.example_keys import STATISTICS_KEYS
from detloom.schemas.run_file import RunFile
from detloom.schemas.text_file import write_text_file
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.tfx_run import CONFIG_KEY, EXPORT_KEY, STRATEGY_KEY, TUNER_KEY, WARM_START_KEY

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
        beam_pipeline_args=list(run.beam_args),
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
    previous_report = build_previous_report_resolver(examples) if has_spans(run) else None
    dataset_validator = _build_dataset_validator(run, examples, previous_report)
    tuner = _build_tuner(run, examples) if run.tuner else None
    warm_start = build_warm_start_resolver() if run.trainer.warm_start == "latest_blessed" else None
    trainer = _build_trainer(run, examples, tuner, warm_start)
    # DatasetValidator fails on bad data, and then nothing trains; ExampleValidator reports, and the summary shows it.
    (tuner or trainer).add_upstream_nodes([example_validator, dataset_validator])
    baseline = build_baseline_resolver(candidate=trainer.outputs["model"])
    evaluator = DetectionEvaluator(
        examples=examples,
        model=trainer.outputs["model"],
        baseline_model=baseline.outputs["model"],
        dataset_report=dataset_validator.outputs["report"],
        model_run=trainer.outputs["model_run"],
        params=EvaluatorParams(
            split=TEST,
            settings=run.evaluator,
            gates=run.gates,
            code_fingerprint=source_fingerprint("detloom.components.evaluator.component"),
        ),
    )
    model_card = ModelCard(
        trainer.outputs["model"],
        params=_model_card_params(run),
        examples=examples,
        evaluation=evaluator.outputs["evaluation"],
        blessing=evaluator.outputs["blessing"],
        dataset_report=dataset_validator.outputs["report"],
        model_run=trainer.outputs["model_run"],
        rejects=example_gen.outputs["rejects"],
    )
    pusher = _build_pusher(
        run, trainer.outputs["model"], evaluator.outputs["blessing"], model_card.outputs["model_card"]
    )
    return [
        example_gen,
        statistics_gen,
        schema_gen,
        example_validator,
        *([previous_report] if previous_report else []),
        dataset_validator,
        *(node for node in (tuner, warm_start) if node),
        trainer,
        baseline,
        evaluator,
        model_card,
        pusher,
    ]


def _build_example_gen(run: RunFile) -> DetectionExampleGen:
    data = run.data
    splits: dict[str, Any] = {}
    if data.splits is not None:
        splits["splits"] = {TRAIN: data.splits.train, EVAL: data.splits.eval, TEST: data.splits.test}
    elif data.split_by_ratio is not None:
        by_ratio = data.split_by_ratio
        splits = {
            "split_ratios": {TRAIN: by_ratio.train, EVAL: by_ratio.eval, TEST: by_ratio.test},
            "source": by_ratio.source,
            "split_group": by_ratio.group_by,
            "split_stratify": by_ratio.stratify,
            "split_seed": by_ratio.seed,
        }
    return DetectionExampleGen(
        input_base=data.path,
        params=ExampleGenParams(
            **splits,
            data_format=data.format,
            images_dir=data.images_dir,
            hierarchy_file=data.hierarchy_file,
            with_masks=data.masks,
            with_keypoints=data.keypoints,
            class_names=data.classes,
            unknown_class=data.unknown_class,
            shard_max_bytes=data.shard_max_bytes,
            gzip=data.gzip,
            max_pixels=data.max_pixels,
            max_image_bytes=data.max_image_bytes,
            max_boxes=data.max_boxes,
            decode_images=data.decode_images,
            exif_rotation=data.exif_rotation,
            num_spans=data.num_spans,
            max_reject_fraction=data.max_reject_fraction,
            code_fingerprint=source_fingerprint("detloom.components.example_gen.component"),
        ),
    )


def has_spans(run: RunFile) -> bool:
    """Whether data arrive span by span, so that there is an earlier one to compare with."""
    return "{" in run.data.path


def _build_dataset_validator(
    run: RunFile, examples: tfx.types.BaseChannel, previous_report: BaseNode | None
) -> DatasetValidator:
    return DatasetValidator(
        examples=examples,
        previous_report=previous_report.outputs[REPORT] if previous_report else None,
        params=DatasetValidatorParams(
            required_splits=(TRAIN, EVAL, TEST),
            train_split=TRAIN,
            checks=run.checks,
            model_input=ModelInput.of_model(run.model, run.train_input.max_number_of_boxes),
            max_pixels=run.data.max_pixels,
            code_fingerprint=source_fingerprint("detloom.components.dataset_validator.component"),
        ),
    )


def _build_tuner(run: RunFile, examples: tfx.types.BaseChannel) -> tfx.components.Tuner:
    assert run.tuner is not None
    return tfx.components.Tuner(
        tuner_fn="detloom.trainer_module.tuner_fn",
        examples=examples,
        train_args=tfx.proto.TrainArgs(splits=[TRAIN], num_steps=run.tuner.steps_per_trial),
        eval_args=tfx.proto.EvalArgs(splits=[EVAL]),
        custom_config={**_training_settings(run), TUNER_KEY: to_canonical_json(run.tuner)},
    )


def _build_trainer(
    run: RunFile, examples: tfx.types.BaseChannel, tuner: BaseNode | None, warm_start: BaseNode | None
) -> tfx.components.Trainer:
    return tfx.components.Trainer(
        run_fn="detloom.trainer_module.run_fn",
        examples=examples,
        hyperparameters=tuner.outputs["best_hyperparameters"] if tuner else None,
        base_model=warm_start.outputs["model"] if warm_start else None,
        train_args=tfx.proto.TrainArgs(splits=[TRAIN], num_steps=run.train.num_steps),
        eval_args=tfx.proto.EvalArgs(splits=[EVAL]),
        custom_config={
            **_training_settings(run),
            WARM_START_KEY: run.trainer.warm_start,
            EXPORT_KEY: to_canonical_json(run.export),
        },
    )


def _training_settings(run: RunFile) -> dict[str, str]:
    """What Tuner and Trainer are both told in their `custom_config`."""
    return {
        CONFIG_KEY: to_canonical_json(run.config),
        STRATEGY_KEY: to_canonical_json(run.trainer.strategy),
        FINGERPRINT_KEY: source_fingerprint("detloom.trainer_module"),
    }


def _model_card_params(run: RunFile) -> ModelCardParams:
    return ModelCardParams(
        name=run.name,
        split=TEST,
        stated=run.model_card,
        evaluator=run.evaluator,
        trainer_fingerprint=source_fingerprint("detloom.trainer_module"),
        code_fingerprint=source_fingerprint("detloom.components.model_card.component"),
    )


def _build_pusher(
    run: RunFile,
    model: tfx.types.BaseChannel,
    blessing: tfx.types.BaseChannel,
    card: tfx.types.BaseChannel | None = None,
) -> BaseNode:
    if run.push.vertex is not None:
        from detloom.components.pusher.vertex import VertexPusher, vertex_custom_config  # late: Google's clients

        # Answered from the cache where model and endpoint are the same: deploying again would add a second copy.
        return VertexPusher(
            model=model, model_blessing=blessing, custom_config=vertex_custom_config(run.push.vertex)
        ).with_id("Pusher")
    return Pusher(
        model=model,
        model_blessing=blessing,
        model_card=card,
        push_to=run.push_to,
        settings=run.push,
        custom_config={
            FINGERPRINT_KEY: source_fingerprint("detloom.components.pusher.executor"),
            # Never answered from the cache, which cannot see whether the served model is still there; pushing a model
            # that is served already takes the reading of its files and changes nothing.
            "run": uuid.uuid4().hex,
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
    text = _schema_file().read_text(encoding="utf-8")
    staged = workspace / "schema" / hashlib.sha256(text.encode()).hexdigest()[:16] / "schema.pbtxt"
    if not staged.is_file():
        staged.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(staged, text)
    return staged
