"""Read the facts about a model: its configuration, the results of its training run, and its export."""

import dataclasses
import datetime
from typing import Any

import tensorflow as tf

from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.evaluator.report.page_parts import measured
from detloom.components.model_card.read_files import reading_json
from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.typed_dict import from_dict
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE

_SUMMARY_KEYS = ("detector", "num_steps", "best_step", "stopped_early", "num_boxes_dropped", "num_incidents")


def read_config(path: str) -> TrainEvalConfig:
    """Read the configuration of a training run.

    Raises:
        InputError: with file and key, if it is invalid.
    """
    with reading_json(path, "the configuration of a training run") as content:
        return from_dict(TrainEvalConfig, content, locate=lambda _: path)


def describe_config(config: TrainEvalConfig) -> dict[str, Any]:
    """Return what a reader of the full configuration would have to derive from it.

    `neck` is a class name of the configuration, and `max_detections` the maximum number of detections per image.
    """
    model, train = config.model, config.train
    return {
        **family_of(model).summary(),
        "input": ModelInput.of_model(model, config.train_input.max_number_of_boxes).describe(),
        "augmentations": [type(each).__name__ for each in train.augmentations],
        "fine_tune_checkpoint": redact(train.fine_tune_checkpoint),
        "moving_average": train.moving_average is not None and config.eval.use_moving_averages,
    }


def read_training(folder: str) -> dict[str, Any]:
    """Read the results of a finished training run.

    Returns:
        `seconds` is the time of the last training process; `is_resumed` is True if there were earlier ones.

    Raises:
        InputError: if training has not finished, or the files are invalid.
    """
    with reading_json(f"{folder}/{SUMMARY_FILE}", "the summary of a finished training run") as summary:
        speed, best, parts = summary["performance"], summary["best"], summary["trained"]
        in_steps = speed["first_call_seconds"] + speed["step_seconds_total"]
        facts = {key: summary[key] for key in _SUMMARY_KEYS}
        facts |= {key: speed[key] for key in ("images_per_second", "peak_host_bytes", "peak_device_bytes")}
        return facts | {
            "best_AP": measured(best["AP"]),
            "best_AP50": measured(best["AP50"]),
            "num_eval_images": best["num_images"],
            "seconds": in_steps + sum(speed["phase_seconds"].values()),
            "is_resumed": speed["num_steps"] < summary["num_steps"],
            "num_parameters": sum(part["num_parameters"] for part in parts),
            "num_trained_parameters": sum(part["num_trained_parameters"] for part in parts),
        }


def check_same_settings(config: TrainEvalConfig, training_dir: str) -> None:
    """Raise InputError that names the sections of a configuration that differ from those of a training run."""
    trained = read_config(f"{training_dir}/{CONFIG_FILE}")
    names = [field.name for field in dataclasses.fields(TrainEvalConfig)]
    if different := [name for name in names if getattr(config, name) != getattr(trained, name)]:
        raise InputError(
            f"{training_dir}: the training run's settings differ from the model's ({', '.join(different)}); give the "
            "folder of the run that exported the model."
        )


def describe_export(model_dir: str, tflite_dir: str | None) -> dict[str, Any]:
    """Describe signatures, versions, TFLite variants and the ONNX file of an export.

    Returns:
        `signatures` and `outputs` are those of the serving contract. `created` is the time of the SavedModel's file
        (UTC).

    Raises:
        InputError: if there is no SavedModel, or its contract cannot be read.
    """
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    if not tf.io.gfile.exists(path):
        raise InputError(f"{path}: no such file, needed for the model card: an exported model.")
    created = datetime.datetime.fromtimestamp(tf.io.gfile.stat(path).mtime_nsec / 1e9, datetime.timezone.utc)
    variants = sorted(tf.io.gfile.glob(f"{tflite_dir}/*{names.TFLITE_SUFFIX}")) if tflite_dir else []
    onnx = f"{model_dir}/{names.ONNX_FILE}"
    contract_path = f"{model_dir}/assets/{names.ASSET_CONTRACT}"
    with reading_json(contract_path, "the contract of an exported model") as contract:
        return {
            "created": created.isoformat(timespec="seconds"),
            "versions": contract["versions"],
            "box_units": contract["box_units"],
            "signatures": {name: facts["input"] for name, facts in contract["signatures"].items()},
            "outputs": contract["outputs"],
            "tflite": [
                {"name": path.rpartition("/")[2].removesuffix(names.TFLITE_SUFFIX), "bytes": _bytes_of(path)}
                for path in variants
            ],
            "onnx_bytes": _bytes_of(onnx) if tf.io.gfile.exists(onnx) else None,
        }


def _bytes_of(path: str) -> int:
    return int(tf.io.gfile.stat(path).length)
