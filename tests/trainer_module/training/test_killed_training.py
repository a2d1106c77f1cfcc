"""A training run that is ended by a signal and resumed."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from device_process import ROOT

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE, TrainingLog
from detloom.trainer_module.runtime.preemption import Preempted
from detloom.trainer_module.training.loop import train

pytestmark = pytest.mark.slow

LABEL_MAP = LabelMap.from_names(["red", "green"])
SIGNAL_STEP, LAST_STEP = 9, 16
# Trains in a process that kills itself at a step.
SCRIPT = f"""
import os, signal, sys
from pathlib import Path
from three_layer_backbone import three_layer_backbone
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.run_state.train_log_and_tensorboard import TrainingLog
from detloom.trainer_module.training.loop import train

log_steps = TrainingLog.steps

def log_and_die(log, step, numbers):
    log_steps(log, step, numbers)
    if step >= {SIGNAL_STEP}:
        os.kill(os.getpid(), signal.SIGKILL)

TrainingLog.steps = log_and_die
data, out = map(Path, sys.argv[1:])
with three_layer_backbone():
    config = from_json(TrainEvalConfig, (data / "config.json").read_text())
    labels = LabelMap.from_names({LABEL_MAP.names!r})
    train(config, labels, [str(data / "train-*")], [str(data / "eval-*")], out)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_example, write_records):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def image_of(i):
        y, x = rng.uniform(0, 0.4, 2)
        return make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=str(i))

    for part in range(2):
        write_records(folder / f"train-{part}", [image_of(i) for i in range(part, 11, 2)])
    write_records(folder / "eval-0", [image_of(i) for i in range(2)])
    return folder


@pytest.fixture(scope="module")
def config(data, one_level_config, changed):
    """16 steps in which every random choice depends on the step."""
    settings = {
        "train.num_steps": LAST_STEP,
        "train.steps_per_call": 2,
        "train.checkpoint_every_n": 7,
        "eval.evaluate_every": 12,
        "train.deterministic": True,
    }
    config = changed(one_level_config, settings)
    (data / "config.json").write_text(to_canonical_json(config))
    return config


def run(config, data, out):
    return train(config, LABEL_MAP, [str(data / "train-*")], [str(data / "eval-*")], out)


@pytest.fixture(scope="module")
def whole(config, data, tmp_path_factory):
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    run(config, data, out)
    return out


def steps_of(out):
    rows = [json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]
    return [row["step"] for row in rows if row["kind"] == "train"]


def saved_steps(out):
    return sorted(int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("ckpt-*.index"))


def assert_same_result(one, other):
    readers = [tf.train.load_checkpoint(str(out / "checkpoints" / f"ckpt-{LAST_STEP}")) for out in (one, other)]
    names = [name for name in readers[0].get_variable_to_shape_map() if not name.startswith("_CHECKPOINTABLE")]
    assert len(names) > 30
    for name in names:
        np.testing.assert_array_equal(*[reader.get_tensor(name) for reader in readers], err_msg=name)
    summaries = [json.loads((out / "training_summary.json").read_text()) for out in (one, other)]
    assert summaries[0]["best"] == summaries[1]["best"]
    assert steps_of(other) == sorted(set(steps_of(other)))


@pytest.mark.reliability("kill", "train")
def test_killed_run_ends_bit_equal(config, data, whole, tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}"}
    process = subprocess.run([sys.executable, "-c", SCRIPT, str(data), str(tmp_path)], env=environment)
    assert process.returncode == -signal.SIGKILL
    assert (saved_steps(tmp_path)[-1], steps_of(tmp_path)[-1]) == (7, SIGNAL_STEP)
    run(config, data, tmp_path)
    assert_same_result(whole, tmp_path)


def test_sigterm_saves_and_the_next_start_resumes(config, data, whole, tmp_path, monkeypatch):
    log_steps = TrainingLog.steps

    def log_and_signal(log, step, numbers):
        log_steps(log, step, numbers)
        if step == SIGNAL_STEP:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLog, "steps", log_and_signal)
        with pytest.raises(Preempted, match="SIGTERM"):
            run(config, data, tmp_path)
    assert saved_steps(tmp_path)[-1] == steps_of(tmp_path)[-1] < LAST_STEP
    run(config, data, tmp_path)
    assert_same_result(whole, tmp_path)
