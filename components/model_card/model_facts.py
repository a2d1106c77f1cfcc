"""Read the facts about a model: its configuration, the results of its training run, and its export."""

import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.model_card.read_files import (
    count,
    number,
    number_or_none,
    read_bytes,
    read_json,
    read_text,
    reading,
    text,
)
from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.typed_dict import TYPE_KEY, from_dict, to_dict
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE, DATA_FILE
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE

_SUMMARY = "the summary of a finished training run"
_CONTRACT = "the contract of an exported model"


def read_config(path: str) -> TrainEvalConfig:
    """Read the configuration of a training run.

    Raises:
        InputError: with file and key, if it is invalid.
    """
    return from_dict(TrainEvalConfig, read_json(path, "the configuration of a training run"), locate=lambda _: path)


def describe_config(config: TrainEvalConfig) -> dict[str, Any]:
    """Return the most important settings; `neck` and `learning_rate` contain class names of the configuration.

    `max_detections` is the maximum number of detections per image.
    """
    model, train = config.model, config.train
    return {
        **family_of(model).summary(),
        "input": ModelInput.of_model(model, config.train_input.max_number_of_boxes).describe(),
        "num_steps": train.num_steps,
        "batch_size": train.batch_size,
        "optimizer": type(train.optimizer).__name__,
        "learning_rate": to_dict(train.optimizer)["learning_rate"],
        "augmentations": [type(each).__name__ for each in train.augmentations],
        "fine_tune_checkpoint": redact(train.fine_tune_checkpoint),
        "precision": train.precision,
        "moving_average": train.moving_average is not None and config.eval.use_moving_averages,
        "seed": train.seed,
        "best_metric": config.eval.best_metric,
    }


def format_learning_rate(rate: dict[str, Any]) -> str:
    """Format class and settings on one line; lists are replaced by their lengths."""
    settings = [
        f"{key} {f'of {len(value)} steps' if isinstance(value, list) else value}"
        for key, value in rate.items()
        if key != TYPE_KEY
    ]
    return f"{rate[TYPE_KEY]}: {', '.join(settings)}"


def read_training(folder: str) -> dict[str, Any]:
    """Read the results of a finished training run.

    Returns:
        `seconds` is the time of the last training process; `is_resumed` is True if there were earlier ones. `ended` is
        a time in UTC, or None without a log.

    Raises:
        InputError: if training has not finished, or the files are invalid.
    """
    path = f"{folder}/{SUMMARY_FILE}"
    summary = read_json(path, _SUMMARY)
    with reading(path, _SUMMARY):
        speed, best = summary["performance"], summary["best"]
        phases = {str(name): number(value) for name, value in speed["phase_seconds"].items()}
        in_steps = number(speed["first_call_seconds"]) + number(speed["step_seconds_total"])
        facts = {
            "detector": text(summary["detector"]),
            "num_steps": count(summary["num_steps"]),
            "best_step": count(summary["best_step"]),
            "best_AP": number_or_none(best["AP"]),
            "best_AP50": number_or_none(best["AP50"]),
            "num_eval_images": count(best["num_images"]),
            "stopped_early": bool(summary["stopped_early"]),
            "seconds": in_steps + sum(phases.values()),
            "images_per_second": number(speed["images_per_second"]),
            "is_resumed": count(speed["num_steps"]) < count(summary["num_steps"]),
            "peak_host_bytes": count(speed["peak_host_bytes"]),
            "peak_device_bytes": {str(name): count(value) for name, value in speed["peak_device_bytes"].items()},
            "num_boxes_dropped": count(summary["num_boxes_dropped"]),
            "num_incidents": count(summary["num_incidents"]),
            "num_parameters": sum(count(part["num_parameters"]) for part in summary["trained"]),
            "num_trained_parameters": sum(count(part["num_trained_parameters"]) for part in summary["trained"]),
        }
    facts["ended"] = _read_end(f"{folder}/{LOG_FILE}")
    return facts


def read_trained_files(folder: str) -> Any:
    """Read the list of training files, with their sizes and fingerprints."""
    return read_json(f"{folder}/{DATA_FILE}", "the list of training files")


def differing_sections(config: TrainEvalConfig, training_dir: str) -> list[str]:
    """Return the sections of a configuration that differ from those in the folder of a training run."""
    trained = read_config(f"{training_dir}/{CONFIG_FILE}")
    names = [field.name for field in dataclasses.fields(TrainEvalConfig)]
    return [name for name in names if getattr(config, name) != getattr(trained, name)]


def _read_end(path: str) -> str | None:
    """Return the time of the last complete line of the log, to the second."""
    if not tf.io.gfile.exists(path):
        return None
    for line in reversed(read_text(path, "the log of a training run").splitlines()):
        try:
            seconds = number(json.loads(line)["time"])
            return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
        except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
            continue  # a killed training run can leave an incomplete line
    return None


def describe_export(model_dir: str, tflite_dir: str | None, onnx_dir: str | None = None) -> dict[str, Any]:
    """Describe signatures, versions, TFLite variants and the ONNX file of an export.

    Returns:
        `created` is the time of the SavedModel's file (UTC). Versions, `box_units` and meanings are None if the export
        does not contain them, as in models of versions without a serving contract.

    Raises:
        InputError: if there is no SavedModel, or its contract cannot be read.
    """
    graph = _read_graph(model_dir)
    path = f"{model_dir}/assets/{names.ASSET_CONTRACT}"
    contract = read_json(path, _CONTRACT) if tf.io.gfile.exists(path) else {"outputs": {}, "signatures": {}}
    versions = {"detloom": None, "tensorflow": graph.meta_info_def.tensorflow_version or None}
    with reading(path, _CONTRACT):
        versions |= {str(name): text(version) for name, version in contract.get("versions", {}).items()}
        box_units = text(contract["box_units"]) if "box_units" in contract else None
        outputs = {name: text(facts["is"]) for name, facts in contract["outputs"].items()}
        inputs = {name: text(facts["input"]["is"]) for name, facts in contract["signatures"].items()}
    with reading(f"{model_dir}/{names.SAVED_MODEL_FILE}", "a SavedModel"):
        signatures = [
            {
                "name": name,
                "inputs": [{**tensor, "meaning": inputs.get(name)} for tensor in _tensors(signature.inputs)],
                "outputs": [{**each, "meaning": outputs.get(each["name"])} for each in _tensors(signature.outputs)],
            }
            for name, signature in sorted(graph.signature_def.items())
            if not name.startswith("__")
        ]
    return {
        "created": _time_of(f"{model_dir}/{names.SAVED_MODEL_FILE}"),
        "versions": versions,
        "box_units": box_units,
        "signatures": signatures,
        "tflite": [
            {"name": path.rsplit("/", 1)[-1].removesuffix(names.TFLITE_SUFFIX), "bytes": tf.io.gfile.stat(path).length}
            for path in (sorted(tf.io.gfile.glob(f"{tflite_dir}/*{names.TFLITE_SUFFIX}")) if tflite_dir else ())
        ],
        "onnx_bytes": _bytes_of(f"{onnx_dir}/{names.ONNX_FILE}") if onnx_dir else None,
    }


def _time_of(path: str) -> str:
    seconds = tf.io.gfile.stat(path).mtime_nsec / 1e9
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")


def _bytes_of(path: str) -> int | None:
    return int(tf.io.gfile.stat(path).length) if tf.io.gfile.exists(path) else None


def _read_graph(model_dir: str) -> meta_graph_pb2.MetaGraphDef:
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    saved_model = saved_model_pb2.SavedModel()
    try:
        saved_model.ParseFromString(read_bytes(path, "an exported model", max_bytes=2**31 - 1))
    except DecodeError:
        raise InputError(f"{path}: not a SavedModel; export the model again.") from None
    for graph in saved_model.meta_graphs:
        if "serve" in graph.meta_info_def.tags:
            return graph
    raise InputError(f"{path}: the SavedModel has no graph with the tag 'serve'; export the model again.")


def _tensors(infos: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, type and shape of each tensor; None in a shape means any size, and a shape of None any shape."""
    return [
        {
            "name": name,
            "dtype": tf.dtypes.as_dtype(info.dtype).name,
            "shape": None
            if info.tensor_shape.unknown_rank
            else [None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim],
        }
        for name, info in sorted(infos.items())
    ]
