"""Detloom's own checkpoints: keys are the paths of `variable_names.py`, so other class counts can restore them."""

import json
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import parse_label_map, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.weights.variable_names import variables_by_path

CHECKPOINTS_DIR = "checkpoints"  # of a run: checkpoints for resuming
BEST_DIR = "best"  # of a run: the best weights
BEST_FILE = "best.json"  # in it: their list, best first, with their metrics
WEIGHTS_DIR = "Format-Checkpoint"  # beside Format-Serving in a model artifact
WEIGHTS_FILE = "ckpt"  # in it: the evaluated weights
SAVED_MODEL_WEIGHTS = "variables/variables"  # of an exported model; the same keys


def weights_by_path(network: keras.Model) -> dict[str, tf.Variable]:
    """Return the variables for a `tf.train.Checkpoint` under the key `network`."""
    return {path: variable.value for path, variable in variables_by_path(network).items()}


def write_weights(detector: Detector, config: TrainEvalConfig, model_dir: Path) -> Path:
    """Write `Format-Checkpoint/` into a model's folder atomically: weights, label map, configuration."""
    folder = model_dir / WEIGHTS_DIR
    model_dir.mkdir(parents=True, exist_ok=True)
    with replace_when_done(folder) as partial:
        partial.mkdir()
        tf.train.Checkpoint(network=weights_by_path(detector.network)).write(str(partial / WEIGHTS_FILE))
        write_label_map(partial / names.ASSET_LABEL_MAP, detector.label_map)
        (partial / names.ASSET_CONFIG).write_text(to_canonical_json(config), encoding="utf-8")
    return folder


def find_best_weights(run_dir: str) -> str:
    """Return the best existing weights of a run without suffix, according to `best.json`; empty if there are none."""
    best_dir = os.path.join(run_dir, BEST_DIR)
    stems = {name.removesuffix(".index") for name in tf.io.gfile.glob(f"{best_dir}/ckpt-*.index")}
    best = (os.path.join(best_dir, name) for name in _names_of_best(os.path.join(best_dir, BEST_FILE)))
    return next((stem for stem in best if stem in stems), "")


def _names_of_best(path: str) -> list[str]:
    """Return names, best first; empty if the file is missing or unreadable."""
    try:
        return [str(entry["path"]) for entry in json.loads(_read_text(path) or "{}").get("entries", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def evaluates_averages(path: str) -> bool:
    """Return True if the run of this checkpoint evaluates the moving average of its weights."""
    try:
        return bool(_read_config(_folder_above(path))["eval"]["use_moving_averages"])
    except (KeyError, TypeError):
        return False


def read_class_names(path: str) -> tuple[str, ...]:
    """Return the meaning of a checkpoint's class channels, including the background; empty if unknown."""
    for folder in (os.path.dirname(path), _folder_above(path), os.path.join(_folder_above(path), "assets")):
        try:
            text = _read_text(os.path.join(folder, names.ASSET_LABEL_MAP))
            classes = parse_label_map(text).names if text else ()
            has_background = classes and _read_config(folder)["model"].get("add_background_class", False)
        except (InputError, KeyError, TypeError, AttributeError):
            continue
        if classes:
            return ("background", *classes) if has_background else classes
    return ()


def _folder_above(path: str) -> str:
    """Return the folder above a file's folder; a path without a folder is in the working directory."""
    folder = os.path.dirname(path)
    return os.path.dirname(folder) if "://" in path else os.path.normpath(os.path.join(folder, ".."))


def _read_config(folder: str) -> Any:
    """Return the configuration in a folder as plain values; None if there is none."""
    try:
        return json.loads(_read_text(os.path.join(folder, names.ASSET_CONFIG)) or "null")
    except (ValueError, RecursionError):
        return None


def _read_text(path: str) -> str:
    """Return the text of a file; empty if it does not exist."""
    try:
        with tf.io.gfile.GFile(path) as opened:
            return str(opened.read())
    except (tf.errors.OpError, UnicodeDecodeError):
        return ""
