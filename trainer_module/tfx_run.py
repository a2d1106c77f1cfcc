"""Between TFX's Trainer and the training loop: file patterns and settings in, a model folder out. Imports no TFX."""

import logging
from pathlib import Path
from typing import Any

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
from detloom.schemas.typed_dict import from_json
from detloom.trainer_module.checkpoints.own_checkpoint import write_weights
from detloom.trainer_module.export import export_saved_model
from detloom.trainer_module.train_loop import train

CONFIG_KEY = "trainer_config"  # key of the canonical JSON of `TrainEvalConfig` in the Trainer's custom_config
_LOGGER = logging.getLogger("detloom")


def run(fn_args: Any) -> None:
    """Train and export; `fn_args` is TFX's `FnArgs`."""
    config = from_json(TrainEvalConfig, fn_args.custom_config[CONFIG_KEY])
    result = train(
        config,
        _label_map_of(fn_args.train_files),
        fn_args.train_files,
        fn_args.eval_files,
        out_dir=Path(fn_args.model_run_dir),
    )
    serving_dir = Path(fn_args.serving_model_dir)
    write_weights(result.detector, config, serving_dir.parent)
    export_saved_model(result.detector, config, serving_dir)


def _label_map_of(train_files: list[str]) -> LabelMap:
    """The label map at the root of the examples artifact, above the split's folder."""
    if not train_files:
        raise InputError("Trainer: no training files; is the examples artifact empty?")
    return read_label_map(Path(train_files[0]).parent.parent / LABEL_MAP_FILE)
