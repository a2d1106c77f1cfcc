"""Train on the devices that the environment selects; `device_process.py` runs this script.

ARGUMENTS: CONFIG.json TRAIN_PATTERN EVAL_PATTERN OUT_DIR
"""

import logging
import os
import sys
from pathlib import Path

import numpy as np

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.runtime.strategies import build_strategy, is_chief
from detloom.trainer_module.training.loop import train


def main(config_file: str, train_pattern: str, eval_pattern: str, out_dir: str) -> None:
    logging.basicConfig(level=logging.INFO)
    strategy = build_strategy()
    config = from_json(TrainEvalConfig, Path(config_file).read_text(encoding="utf-8"))
    labels = LabelMap.from_names(["red", "green"])
    result = train(config, labels, [train_pattern], [eval_pattern], Path(out_dir), strategy)
    assert result.num_steps == config.train.num_steps
    if is_chief(strategy):
        weights = {variable.path: variable.numpy() for variable in result.detector.network.weights}
        np.savez(os.path.join(out_dir, "weights.npz"), **weights)


main(*sys.argv[1:])
