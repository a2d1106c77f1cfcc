"""Our own checkpoints: the keys are the paths of `variable_names.py`, so that other class counts can restore them."""

import shutil
from pathlib import Path

import keras
import tensorflow as tf

from detloom.schemas import detections as names
from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.label_map import write_label_map
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.variable_names import variables_by_path

CHECKPOINTS_DIR = "checkpoints"  # of a run: what it goes on from
WEIGHTS_DIR = "Format-Checkpoint"  # beside Format-Serving in a model artifact
WEIGHTS_FILE = "ckpt"  # in it: the weights as they were evaluated


def weights_by_path(network: keras.Model) -> dict[str, tf.Variable]:
    """To be tracked by a `tf.train.Checkpoint` as `network`."""
    return {path: variable.value for path, variable in variables_by_path(network).items()}


def write_weights(detector: Detector, config: TrainEvalConfig, model_dir: Path) -> Path:
    """Write `Format-Checkpoint/` into a model's folder, whole or not at all: weights, label map, configuration."""
    folder = model_dir / WEIGHTS_DIR
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tf.train.Checkpoint(network=weights_by_path(detector.network)).write(str(partial / WEIGHTS_FILE))
    write_label_map(partial / names.ASSET_LABEL_MAP, detector.label_map)
    (partial / names.ASSET_CONFIG).write_text(to_canonical_json(config), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder
