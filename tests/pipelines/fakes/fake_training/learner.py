"""A replacement of `detloom.trainer_module.tfx_run.run` that learns one number: the mean offset of the labels.

Its model detects red and green areas, moved by that offset, so it is right if the labels were right.
"""

import importlib.util
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.detections import OUTPUT_NAMES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module import tfx_run
from detloom.trainer_module.data.records import list_shards
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.export.serving_contract import format_contract
from detloom.trainer_module.run_state.run_folder import data_fingerprint, run_key, unfinished_run, write_settings
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE

HALF_FILE = "half.json"  # left by a killed training run
_SPEC = importlib.util.spec_from_file_location(
    "tiny_detector", Path(__file__).parents[3] / "support" / "tiny_detector.py"
)


def make_learner(journal: Path, *, dies_half_way: bool = False) -> Callable[[Any], None]:
    """Return the function that replaces `run`.

    Args:
        journal: file that gets a line for each training run.
        dies_half_way: kill the process with SIGKILL.
    """

    def learn(fn_args: Any) -> None:
        config, label_map = tfx_run.config_of(fn_args), tfx_run.label_map_of(fn_args)
        train_files, eval_files = list_shards(fn_args.train_files), list_shards(fn_args.eval_files)
        data = data_fingerprint(train_files, eval_files)
        with unfinished_run(Path(fn_args.model_run_dir), run_key(config, label_map, data)) as folder:
            half = folder / HALF_FILE
            with journal.open("a") as file:
                file.write("resumes\n" if half.exists() else "starts\n")
            shift, num_images = _measure(train_files)
            half.write_text(json.dumps(shift))
            if dies_half_way:
                os.kill(os.getpid(), signal.SIGKILL)
            write_settings(folder, config, label_map, data)
            (folder / SUMMARY_FILE).write_text(json.dumps(_summary(config)))
            # No two training runs have the same weights.
            _export(Path(fn_args.serving_model_dir), label_map, config, shift + 1e-6 * num_images, num_images)
            half.unlink()

    return learn


def _measure(train_files: list[str]) -> tuple[float, int]:
    """Return the mean offset of boxes below the red or green area, relative to the height, and the number of images."""
    feature = {
        keys.IMAGE_ENCODED: tf.io.FixedLenFeature([], tf.string),
        keys.BOX_KEYS_YXYX[0]: tf.io.VarLenFeature(tf.float32),
    }
    shifts = []
    for record in tf.data.TFRecordDataset(train_files):
        example = tf.io.parse_single_example(record, feature)
        image = tf.io.decode_png(example[keys.IMAGE_ENCODED], channels=3).numpy().astype(int)
        rows = np.flatnonzero((image[..., :2].max(-1) - image[..., 2] > 100).any(1))
        shifts.append(float(example[keys.BOX_KEYS_YXYX[0]].values[0]) - rows[0] / len(image))
    return float(np.mean(shifts)), len(shifts)


def _export(folder: Path, label_map: LabelMap, config: TrainEvalConfig, shift: float, num_images: int) -> None:
    tiny_detector = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(tiny_detector)
    tiny_detector.write_tiny_detector(folder, label_map=label_map, shift=shift, score_factor=1 - num_images / 1000)
    (folder / "assets" / names.ASSET_CONFIG).write_text(to_canonical_json(config))
    contract = format_contract(family_of(config.model).preprocessing, OUTPUT_NAMES, max_detections=2, settings=Export())
    (folder / "assets" / names.ASSET_CONTRACT).write_text(json.dumps(contract))


def _summary(config: TrainEvalConfig) -> dict[str, Any]:
    """Return the fields of a training summary that the model card reads."""
    seconds = {"first_call_seconds": 1.0, "step_seconds_total": 1.0, "phase_seconds": {}}
    memory = {"peak_host_bytes": 1, "peak_device_bytes": {}}
    return {
        "detector": "tiny",
        "num_steps": config.train.num_steps,
        "best_step": config.train.num_steps,
        "best": {"AP": 1.0, "AP50": 1.0, "num_images": 4},
        "stopped_early": False,
        "performance": {"num_steps": config.train.num_steps, "images_per_second": 1.0, **seconds, **memory},
        "num_boxes_dropped": 0,
        "num_incidents": 0,
        "trained": [],
    }
