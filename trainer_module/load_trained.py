"""A trained detector in memory again, from what a training or an export left."""

import contextlib
import logging
from pathlib import Path

import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, read_label_map
from detloom.schemas.text_file import read_text_file
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module.checkpoints.own_checkpoint import (
    SAVED_MODEL_WEIGHTS,
    WEIGHTS_DIR,
    WEIGHTS_FILE,
    find_best_weights,
)
from detloom.trainer_module.detector import Detector, build_detector
from detloom.trainer_module.predict import find_saved_model
from detloom.trainer_module.run_folder import CONFIG_FILE
from detloom.trainer_module.watch import load_checkpoint

_LOGGER = logging.getLogger("detloom")


def load_trained(folder: Path) -> tuple[Detector, TrainEvalConfig]:
    """The detector of a training's folder (its best weights), an exported model, or a folder of versions.

    Raises:
        InputError: it is none of them, or its weights do not fit its configuration.
    """
    settings_dir, weights = _find(folder)
    _LOGGER.info("Weights: %s.", weights)
    config = from_json(TrainEvalConfig, read_text_file(settings_dir / CONFIG_FILE))
    detector = build_detector(config.model, read_label_map(settings_dir / LABEL_MAP_FILE))
    try:
        load_checkpoint(detector, weights, use_averages=False)
    except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:
        raise InputError(f"{weights}: the weights cannot be loaded ({str(error).splitlines()[0][:200]}).") from None
    return detector, config


def _find(folder: Path) -> tuple[Path, Path]:
    """Where configuration and label map lie, and the weights without ending."""
    best = find_best_weights(str(folder))
    if best and (folder / CONFIG_FILE).is_file():
        return folder, Path(best)
    with contextlib.suppress(InputError):  # the message below says more
        saved_model = find_saved_model(folder)
        return saved_model / "assets", saved_model / SAVED_MODEL_WEIGHTS
    for each in (folder / WEIGHTS_DIR, folder):
        if (each / f"{WEIGHTS_FILE}.index").is_file():
            return each, each / WEIGHTS_FILE
    raise InputError(
        f"{folder}: holds neither a training ({CONFIG_FILE} and best weights) nor a model that detloom exported."
    )
