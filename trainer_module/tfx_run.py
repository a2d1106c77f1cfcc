"""Entry point of TFX's Trainer: read its arguments, train, and export the model. Imports no TFX."""

import dataclasses
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from detloom.schemas.contracts.detections import TFLITE_FOLDER, TFLITE_PROBLEM_FILE
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, label_map_of_examples
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.strategy import Strategy, effective_strategy
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.typed_dict import from_json
from detloom.schemas.run_file.tuner import apply_hyperparameters
from detloom.trainer_module.data.records import list_shards
from detloom.trainer_module.export.saved_model import export_saved_model
from detloom.trainer_module.export.tflite_export import export_tflite
from detloom.trainer_module.export.tflite_quantization import RangesError
from detloom.trainer_module.run_state.run_folder import data_fingerprint, run_key, unfinished_run
from detloom.trainer_module.runtime.strategies import build_strategy, is_chief
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.weights.own_checkpoint import write_weights

# Keys of the custom_config of Trainer and Tuner; each value is canonical JSON, a label map or a word.
CONFIG_KEY = "trainer_config"  # `TrainEvalConfig`
STRATEGY_KEY = "strategy"  # `Strategy`
WARM_START_KEY = "warm_start"  # `Trainer.warm_start` of the run file
TUNER_KEY = "tuner"  # `Tuner` of the run file
EXPORT_KEY = "export"  # `Export` of the run file
LABEL_MAP_KEY = "label_map"  # content of a label map, for examples without one

_TUNERS_OWN = "tuner/"  # prefix of names that KerasTuner's algorithms add to the values
_MAX_WAIT_SECONDS = 3600.0  # for the chief's export, in the other workers
_LOGGER = logging.getLogger("detloom")


def run(fn_args: Any) -> None:
    """Train and export; `fn_args`: TFX's `FnArgs`.

    Each of several workers runs this function, and the chief exports.
    """
    strategy = build_strategy(strategy_of(fn_args))  # first: machines have to connect before TensorFlow runs operations
    config = config_of(fn_args)
    label_map = label_map_of(fn_args)
    data = data_fingerprint(list_shards(fn_args.train_files), list_shards(fn_args.eval_files))
    serving_dir, chief = Path(fn_args.serving_model_dir), is_chief(strategy)
    settings = from_json(Export, fn_args.custom_config.get(EXPORT_KEY, "{}"))
    key = run_key(config, label_map, data)
    with unfinished_run(Path(fn_args.model_run_dir), key, is_chief=chief) as out_dir:
        result = train(config, label_map, fn_args.train_files, fn_args.eval_files, out_dir, strategy)
        if chief:
            write_weights(result.detector, result.config, serving_dir.parent)
            tflite_dir = serving_dir.parent / TFLITE_FOLDER
            try:
                export_tflite(result.detector, result.config, settings, list_shards(fn_args.train_files), tflite_dir)
            except RangesError as error:  # the Evaluator decides
                _LOGGER.warning("%s", error)
                tflite_dir.mkdir(parents=True, exist_ok=True)
                write_text_file(tflite_dir / TFLITE_PROBLEM_FILE, str(error))
            export_saved_model(result.detector, result.config, serving_dir, settings)
    if not chief:
        _wait_for_chief(serving_dir, out_dir)


def config_of(fn_args: Any) -> TrainEvalConfig:
    """Return the effective configuration, with the Tuner's hyperparameters and the model for a warm start.

    Raises:
        InputError: for a hyperparameter that the configuration does not have.
    """
    config = from_json(TrainEvalConfig, fn_args.custom_config[CONFIG_KEY])
    if fn_args.hyperparameters:
        values = _values(fn_args.hyperparameters)
        values = {key: value for key, value in values.items() if not key.startswith(_TUNERS_OWN)}
        _LOGGER.info("Hyperparameters: %s.", ", ".join(f"{key} {value:.4g}" for key, value in values.items()))
        config = apply_hyperparameters(config, values)
    return _warm_started(config, fn_args)


def strategy_of(fn_args: Any) -> Strategy:
    """Return the run file's strategy, which this machine's environment can override."""
    return effective_strategy(from_json(Strategy, fn_args.custom_config.get(STRATEGY_KEY, "{}")), os.environ)


def label_map_of(fn_args: Any) -> LabelMap:
    """Return the label map at the root of the examples artifact, above the split's folder, or of the custom_config."""
    if not fn_args.train_files:
        raise InputError("Trainer: no training files; is the examples artifact empty?")
    path = Path(fn_args.train_files[0]).parent.parent / LABEL_MAP_FILE
    content = path.read_bytes() if path.exists() else None
    return label_map_of_examples(str(path), content, fn_args.custom_config.get(LABEL_MAP_KEY, ""))


def _values(hyperparameters: Any) -> dict[str, Any]:
    """Return the values by name of a KerasTuner configuration as a dictionary or as JSON."""
    config = json.loads(hyperparameters) if isinstance(hyperparameters, str) else hyperparameters
    return dict(config["values"])


def _warm_started(config: TrainEvalConfig, fn_args: Any) -> TrainEvalConfig:
    """Replace the configured checkpoint by `base_model`, which TFX resolved, if there is one."""
    otherwise = config.train.fine_tune_checkpoint or "random weights"
    if not fn_args.base_model:
        if fn_args.custom_config.get(WARM_START_KEY, "none") != "none":
            _LOGGER.info("No model is blessed yet: training starts from %s.", otherwise)
        return config
    _LOGGER.info("Training starts from the model %s instead of %s.", fn_args.base_model, otherwise)
    start = {"fine_tune_checkpoint": str(fn_args.base_model), "fine_tune_checkpoint_type": "auto"}
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **start))  # type: ignore[arg-type]


def _wait_for_chief(serving_dir: Path, training_dir: Path) -> None:
    """Wait until the chief has exported the model and, as its last action, moved the folder of the training run.

    TFX treats a worker as failed if its model folder does not exist when it returns, and a cluster may end the chief
    when a worker is done.

    Raises:
        TimeoutError: if the chief is not done within an hour.
    """
    give_up = time.monotonic() + _MAX_WAIT_SECONDS
    while _is_listed(training_dir) or not _is_listed(serving_dir):
        if time.monotonic() > give_up:
            raise TimeoutError(
                f"{serving_dir}: after {_MAX_WAIT_SECONDS:g} s the chief has not exported the model and moved "
                f"{training_dir}; see the chief's log, and run again."
            )
        time.sleep(1)


def _is_listed(folder: Path) -> bool:
    """Return True if the folder exists.

    `exists` would not see that another machine has removed it: on large machines, mounts of Cloud Storage cache what
    exists without a time limit, but not lists of files
    (cloud.google.com/storage/docs/cloud-storage-fuse/automated-configurations).
    """
    try:
        return folder.name in os.listdir(folder.parent)
    except FileNotFoundError:
        return False
