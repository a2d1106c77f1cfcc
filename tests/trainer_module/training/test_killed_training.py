"""A training run that is ended by a signal and resumed."""

import json
import os
import signal
import subprocess
import sys

import pytest
import training_parts as parts
from device_process import ROOT

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.run_state.train_log_and_tensorboard import TrainingLog
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
def data(tmp_path_factory, make_squares, write_records):
    folder, images = tmp_path_factory.mktemp("data"), make_squares(11)
    for part in range(2):
        write_records(folder / f"train-{part}", images[part::2])
    write_records(folder / "eval-0", images[:2])
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
    return [row["step"] for row in parts.rows_of(out)]


def assert_same_result(one, other):
    assert parts.saved_steps(one)[-1] == LAST_STEP
    parts.assert_same_arrays(parts.newest_state(one), parts.newest_state(other))
    summaries = [json.loads((out / "training_summary.json").read_text()) for out in (one, other)]
    assert summaries[0]["best"] == summaries[1]["best"]
    assert steps_of(other) == sorted(set(steps_of(other)))


@pytest.mark.reliability("kill", "train")
def test_killed_run_ends_bit_equal(config, data, whole, tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}"}
    process = subprocess.run([sys.executable, "-c", SCRIPT, str(data), str(tmp_path)], env=environment)
    assert process.returncode == -signal.SIGKILL
    assert (parts.saved_steps(tmp_path)[-1], steps_of(tmp_path)[-1]) == (7, SIGNAL_STEP)
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
    assert parts.saved_steps(tmp_path)[-1] == steps_of(tmp_path)[-1] < LAST_STEP
    run(config, data, tmp_path)
    assert_same_result(whole, tmp_path)
