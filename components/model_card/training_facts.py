"""How a model was trained: its configuration in a few lines, and what the training measured."""

import dataclasses
import datetime
import json
from typing import Any

import tensorflow as tf

from detloom.components.dataset_validator.model_input import ModelInput
from detloom.components.model_card.read_files import count, number, number_or_none, read_json, read_text, reading, text
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.model_config import Ssd
from detloom.schemas.redact import redact
from detloom.schemas.typed_dict import TYPE_KEY, from_dict, to_dict
from detloom.trainer_module.run_folder import CONFIG_FILE, DATA_FILE
from detloom.trainer_module.train_result import SUMMARY_FILE
from detloom.trainer_module.training_log import LOG_FILE

_SUMMARY = "the summary of a finished training"


def read_config(path: str) -> TrainEvalConfig:
    """The configuration that a model was trained with.

    Raises:
        InputError: with the file and the key, for anything else.
    """
    return from_dict(TrainEvalConfig, read_json(path, "the configuration of a training"), locate=lambda _: path)


def describe_config(config: TrainEvalConfig) -> dict[str, Any]:
    """The settings that one asks for first; `learning_rate` and `neck` are the classes of the configuration.

    `max_detections` is what the model returns of one picture at the most.
    """
    model, train = config.model, config.train
    network: dict[str, Any]
    if isinstance(model, Ssd):
        network = {
            "architecture": "Ssd",
            "backbone": model.feature_extractor.backbone,
            "neck": type(model.feature_extractor.neck).__name__,
            "max_detections": model.post_processing.batch_non_max_suppression.max_total_detections,
        }
    else:
        network = {
            "architecture": "CenterNet",
            "backbone": model.feature_extractor.backbone,
            "neck": None,
            "max_detections": model.object_center_params.max_box_predictions,
        }
    return {
        **network,
        "depth_multiplier": model.feature_extractor.depth_multiplier,
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
    """Class and settings on one line; lists are counted."""
    settings = [
        f"{key} {f'of {len(value)} steps' if isinstance(value, list) else value}"
        for key, value in rate.items()
        if key != TYPE_KEY
    ]
    return f"{rate[TYPE_KEY]}: {', '.join(settings)}"


def read_training(folder: str) -> dict[str, Any]:
    """What a finished training measured.

    Returns:
        `seconds` are those of the last process that trained; `is_resumed` says that there were others before it.
        `ended` is a time in UTC, None without a log.

    Raises:
        InputError: if the training has not finished, or the files are not those of a training.
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
    """The files that a training names, with their sizes and fingerprints."""
    return read_json(f"{folder}/{DATA_FILE}", "a list of files that were trained on")


def differing_sections(config: TrainEvalConfig, training_dir: str) -> list[str]:
    """Sections of a configuration that are not those in the folder of a training."""
    trained = read_config(f"{training_dir}/{CONFIG_FILE}")
    names = [field.name for field in dataclasses.fields(TrainEvalConfig)]
    return [name for name in names if getattr(config, name) != getattr(trained, name)]


def _read_end(path: str) -> str | None:
    """When the last whole line of the log was written, to the second."""
    if not tf.io.gfile.exists(path):
        return None
    for line in reversed(read_text(path, "the log of a training").splitlines()):
        try:
            seconds = number(json.loads(line)["time"])
            return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="seconds")
        except (ValueError, KeyError, TypeError, OverflowError, OSError, RecursionError):
            continue  # a killed training breaks off in the middle of a line
    return None
