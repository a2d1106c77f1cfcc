"""The same evaluation of two checkpoints on one device and on two processes with two replicas each."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from device_process import environments_of_workers, start_on_devices, wait_for_success

from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.files.strict_json import to_strict_json
from detloom.trainer_module.run_state.run_folder import write_settings
from detloom.trainer_module.training.follow_checkpoints import (
    EVAL_LOG_FILE,
    EvalSet,
    WatchOptions,
    evaluate_checkpoints,
)
from detloom.trainer_module.weights.own_checkpoint import weights_by_path

LABEL_MAP = LabelMap.from_names(["red", "green"])
NUM_IMAGES, BATCH_SIZE = 11, 2


@pytest.fixture
def run(tmp_path_factory, one_level_config, changed, make_example, write_records):
    """The folder of a run with two checkpoints, and the file to evaluate them on."""
    folder = tmp_path_factory.mktemp("run")
    corners = np.random.default_rng(0).uniform(0, 0.4, (NUM_IMAGES, 2))
    images = [
        make_example([(y, x, y + 0.5, x + 0.5)] * (i % 3), [1 + i % 2] * (i % 3), name=f"{i}")
        for i, (y, x) in enumerate(corners)
    ]
    config = changed(one_level_config, {"eval.batch_size": BATCH_SIZE, "eval.use_moving_averages": False})
    write_settings(folder, config, LABEL_MAP, data="")
    for step in (1, 2):
        keras.utils.set_random_seed(step)
        network = weights_by_path(build_detector(config.model, LABEL_MAP).network)
        tf.train.Checkpoint(network=network).write(str(folder / "checkpoints" / f"ckpt-{step}"))
    return folder, write_records(folder / "data", images)


@pytest.mark.nightly
def test_numbers_are_those_of_one_device_to_the_last_digit(run, tmp_path, free_ports):
    """Eleven images in batches of two: the last batch has one image, and the last round has fewer than four batches."""
    folder, file = run
    result = evaluate_checkpoints(folder, [EvalSet("eval", (str(file),))], tmp_path / "alone", WatchOptions())
    alone = {str(row.step): {**row.evaluation.to_dict(), "seconds": None} for row in result.evaluations}
    assert list(alone) == ["1", "2"]
    assert alone["1"] != alone["2"]
    assert alone["1"]["num_images"] == NUM_IMAGES
    assert alone["1"]["metrics"]["AP50"] > 0

    out, script = tmp_path / "out", Path(__file__).with_name("evaluate_process.py")
    out.mkdir()
    workers = [
        start_on_devices(script, folder, file, out, num_cpus=2, environment=environment)
        for environment in environments_of_workers(free_ports(2))
    ]
    wait_for_success(*workers)
    for worker in range(2):
        assert (out / f"numbers-{worker}.json").read_text() == to_strict_json(alone)
    assert len((out / "eval" / EVAL_LOG_FILE).read_text().splitlines()) == 2  # the chief's only
