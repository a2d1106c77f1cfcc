"""The nodes of the DAG that read, describe and check the data."""

import hashlib
from pathlib import Path
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

import detloom.schemas
from detloom.components.dataset_validator.component import DatasetValidator
from detloom.components.dataset_validator.model_input import ModelInput
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.example_gen.component import DetectionExampleGen
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.previous_report.strategy import REPORT
from detloom.pipelines.source_fingerprint import source_fingerprint
from detloom.schemas.example_keys import STATISTICS_KEYS
from detloom.schemas.run_file import Place, RunFile
from detloom.schemas.text_file import write_text_file

TRAIN, EVAL, TEST = "train", "eval", "test"  # split names inside the pipeline
_EXAMPLE_SCHEMA = "example_schema.pbtxt"
_PACKAGED_SCHEMA = f"package://detloom.schemas/{_EXAMPLE_SCHEMA}"  # pipelines/container finds the file in the image


def has_spans(run: RunFile) -> bool:
    """Whether data arrive span by span, so that there is an earlier one to compare with."""
    return "{" in run.data.path


def build_example_gen(run: RunFile) -> DetectionExampleGen:
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


def build_statistics_gen(examples: tfx.types.BaseChannel) -> tfx.components.StatisticsGen:
    return tfx.components.StatisticsGen(
        examples=examples,
        # Image bytes say nothing there. Filtered by schema while reading, they do not even pass through memory; a
        # feature_allowlist would filter later, or, as paths, not survive TFX's JSON.
        stats_options=tfdv.StatsOptions(schema=_statistics_schema(), experimental_filter_read_paths=True),
    )


def build_schema_gen(run: RunFile, place: Place) -> tfx.components.ImportSchemaGen:
    """From a path that changes with the schema's content: its cache sees the path alone."""
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
        params=DatasetValidatorParams(
            required_splits=(TRAIN, EVAL, TEST),
            train_split=TRAIN,
            checks=run.checks,
            model_input=ModelInput.of_model(run.model, run.train_input.max_number_of_boxes),
            max_pixels=run.data.max_pixels,
            history=_report_history(run) if place != "local" else "",
            code_fingerprint=source_fingerprint("detloom.components.dataset_validator.component"),
        ),
    )


def _report_history(run: RunFile) -> str:
    """Where reports outlive runs: no Resolver finds those of earlier spans, and a pod's disk goes with the pod."""
    kept = (run.retrain.records if run.retrain else "") or run.push_to
    if not kept:  # an endpoint instead of a folder of versions, on Vertex AI
        assert run.vertex is not None
        kept = f"{run.vertex.pipeline_root.rstrip('/')}/{run.name}"
    return f"{kept.rstrip('/')}/dataset_reports/{run.name}"


def _schema_file() -> Path:
    return next(file for folder in detloom.schemas.__path__ if (file := Path(folder) / _EXAMPLE_SCHEMA).is_file())


def _statistics_schema() -> schema_pb2.Schema:
    """The features that statistics are made of, with their types only."""
    types = {feature.name: feature.type for feature in tfdv.load_schema_text(str(_schema_file())).feature}
    return schema_pb2.Schema(feature=[schema_pb2.Feature(name=key, type=types[key]) for key in STATISTICS_KEYS])
