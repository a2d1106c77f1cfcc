"""Load a trained detector from a training run, an exported model, or a checkpoint of any origin."""

import logging
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.detectors.supported import check_trainable
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
from detloom.trainer_module.training.follow_checkpoints import load_checkpoint
from detloom.trainer_module.weights.restore import find_trained, restore
from detloom.trainer_module.weights.stored_weights import find_in_folder

_LOGGER = logging.getLogger("detloom")


def load_trained(folder: Path) -> tuple[Detector, TrainEvalConfig]:
    """Load the detector of a training run (its best weights), an exported model, or a folder of versions.

    Raises:
        InputError: if the folder is none of them, or the weights do not fit the configuration.
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


def load_restored(config: TrainEvalConfig, checkpoint: str, label_map: LabelMap) -> tuple[Detector, TrainEvalConfig]:
    """Build the detector of a configuration and restore all of it from a checkpoint of any origin that restore reads.

    Raises:
        InputError: if the checkpoint cannot be read, or lacks a variable of the detector.
    """
    model = replace(config.model, num_classes=label_map.num_classes)
    train = replace(
        config.train,
        fine_tune_checkpoint=checkpoint,
        fine_tune_checkpoint_type="full",
        fine_tune_include=(),
        fine_tune_exclude=(),
        fine_tune_skip_mismatch=False,
        fine_tune_min_restored_share=1.0,
    )
    config = replace(config, model=model, train=train)
    check_trainable(config)
    detector = build_detector(model, label_map)
    _LOGGER.info("%s", restore(train, detector, find_trained(train, detector)).sentence())
    return detector, config


def _find(folder: Path) -> tuple[Path, Path]:
    """Return the folder of configuration and label map, and the path of the weights without suffix."""
    weights = Path(find_in_folder(str(folder)))
    above = weights.parent.parent
    for settings_dir in (weights.parent, above, above / "assets") if weights != folder else ():
        if (settings_dir / CONFIG_FILE).is_file():
            return settings_dir, weights
    raise InputError(
        f"{folder}: has neither a training run ({CONFIG_FILE} and best weights) nor an exported model of detloom."
    )
