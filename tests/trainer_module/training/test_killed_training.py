"""Training in a separate process that is killed by a signal; each test trains three times."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE

pytestmark = pytest.mark.slow

_MAX_SECONDS = 600
_SCRIPT = """
import sys
from pathlib import Path
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.reading.typed_dict import from_json
from detloom.trainer_module.runtime.preemption import Preempted
from detloom.trainer_module.training.loop import train

data, out = map(Path, sys.argv[1:])
config = from_json(TrainEvalConfig, (data / "config.json").read_text())
try:
    train(config, read_label_map(data / "label_map.pbtxt"), [str(data / "train-*")], [str(data / "eval-*")], out)
except Preempted as error:
    print(error)
    sys.exit(128 + error.signal_number)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_example, write_records, small_config, changed):
    """Shards, label map and a configuration of 40 steps in which every random choice depends on the step."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)

    def image_of(i):
        y, x = rng.uniform(0, 0.4, 2)
        return make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=str(i))

    for part in range(2):
        write_records(folder / f"train-{part}", [image_of(i) for i in range(part, 11, 2)])
    write_records(folder / "eval-0", [image_of(i) for i in range(2)])
    write_label_map(folder / "label_map.pbtxt", LabelMap.from_names(["red", "green"]))
    settings = {
        "train.num_steps": 40,
        "train.steps_per_call": 3,
        "train.checkpoint_every_n": 7,
        "eval.evaluate_every": 15,
        "train.deterministic": True,
    }
    (folder / "config.json").write_text(to_canonical_json(changed(small_config, settings)))
    return folder


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    assert run(data, out).wait(_MAX_SECONDS) == 0
    return out


def run(data, out):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(data), str(out)], env=environment)


def signal_at(process, out, step, number):
    """Send a signal when the log contains the step."""
    started = time.monotonic()
    while max([0, *steps_of(out)]) < step:
        assert process.poll() is None, "training ended too soon"
        assert time.monotonic() - started < _MAX_SECONDS
        time.sleep(0.02)
    process.send_signal(number)
    return process.wait(_MAX_SECONDS)


def steps_of(out):
    path = out / LOG_FILE
    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [row["step"] for row in rows if row["kind"] == "train"]


def assert_same_result(one, other):
    readers = [tf.train.load_checkpoint(str(out / "checkpoints" / "ckpt-40")) for out in (one, other)]
    names = [name for name in readers[0].get_variable_to_shape_map() if not name.startswith("_CHECKPOINTABLE")]
    assert len(names) > 100
    for name in names:
        values = [reader.get_tensor(name) for reader in readers]
        np.testing.assert_array_equal(*values, err_msg=name)
    summaries = [json.loads((out / "training_summary.json").read_text()) for out in (one, other)]
    assert summaries[0]["best"] == summaries[1]["best"]
    steps = steps_of(other)
    assert steps == sorted(set(steps))
    assert steps[-1] == 40


@pytest.mark.reliability("kill", "train")
def test_run_killed_twice_ends_bit_equal(data, whole, tmp_path):
    for step in (9, 30):  # two steps after a checkpoint, and at an evaluation
        process = run(data, tmp_path)
        assert signal_at(process, tmp_path, step, signal.SIGKILL) == -signal.SIGKILL
    assert run(data, tmp_path).wait(_MAX_SECONDS) == 0
    assert_same_result(whole, tmp_path)


def test_sigterm_saves_and_the_next_start_resumes(data, whole, tmp_path):
    process = run(data, tmp_path)
    assert signal_at(process, tmp_path, 9, signal.SIGTERM) == 128 + signal.SIGTERM
    saved = max(int(path.stem.split("-")[1]) for path in (tmp_path / "checkpoints").glob("ckpt-*.index"))
    assert saved == max(steps_of(tmp_path))
    assert run(data, tmp_path).wait(_MAX_SECONDS) == 0
    assert_same_result(whole, tmp_path)
