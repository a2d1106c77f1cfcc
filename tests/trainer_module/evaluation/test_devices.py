"""The same evaluation of two checkpoints on one device, on several replicas, and on several processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import detloom
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.run_state.run_folder import write_settings
from detloom.trainer_module.training.follow_checkpoints import EVAL_LOG_FILE
from detloom.trainer_module.weights.own_checkpoint import weights_by_path

ROOT = Path(detloom.__file__).parents[1]
LABEL_MAP = LabelMap.from_names(["red", "green"])
NUM_IMAGES, BATCH_SIZE = 11, 2


@pytest.fixture
def evaluate(tmp_path, small_config, changed, make_example, write_records):
    """Return a function that starts a process for each environment and returns what they found, and the logs."""
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 0.4, (NUM_IMAGES, 2))
    images = [
        make_example([(y, x, y + 0.5, x + 0.5)] * (i % 3), [1 + i % 2] * (i % 3), name=f"{i}")
        for i, (y, x) in enumerate(corners)
    ]
    file = write_records(tmp_path / "data", images)
    config = changed(small_config, {"eval.batch_size": BATCH_SIZE, "eval.use_moving_averages": False})
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_settings(run_dir, config, LABEL_MAP, data="")
    for step in (1, 2):
        keras.utils.set_random_seed(step)
        network = weights_by_path(build_detector(config.model, LABEL_MAP).network)
        tf.train.Checkpoint(network=network).write(str(run_dir / "checkpoints" / f"ckpt-{step}"))

    def run(num_cpus, *environments):
        outs = [tmp_path / f"{num_cpus}-{len(environments)}-{i}" for i in range(len(environments))]
        script = Path(__file__).with_name("evaluate_process.py")
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(run_dir), str(file), str(out), str(num_cpus)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for out, environment in zip(outs, environments, strict=True)
        ]
        try:
            texts = [process.communicate(timeout=300)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)[-5000:]
        assert [(out / "eval" / EVAL_LOG_FILE).exists() for out in outs] == [True] + [False] * (len(outs) - 1)
        return [json.loads((out / "found.json").read_text(encoding="utf-8")) for out in outs]

    return run


def workers(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    hosts = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    for each in sockets:
        each.close()
    return [{"DETLOOM_HOSTS": hosts, "DETLOOM_HOST_INDEX": str(index)} for index in range(count)]


@pytest.mark.slow
def test_numbers_are_those_of_one_device_to_the_last_digit(evaluate):
    """Eleven images in batches of two: the last batch has one image, and the last round has fewer than four batches."""
    (alone,) = evaluate(1, {})
    assert list(alone) == ["1", "2"]
    assert alone["1"] != alone["2"]
    assert alone["1"]["num_images"] == NUM_IMAGES
    assert alone["1"]["metrics"]["AP50"] > 0
    for num_cpus in (2, 4):
        assert evaluate(num_cpus, {"DETLOOM_STRATEGY": "mirrored"}) == [alone]
    assert evaluate(1, *workers(2)) == [alone] * 2
    assert evaluate(2, *workers(2)) == [alone] * 2
