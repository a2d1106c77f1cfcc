"""The choice of a strategy; a training run on one device, on replicas, on two processes, and with data servers."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from device_process import ROOT, environments_of_workers, start_on_devices, wait_for_success
from training_parts import rows_of

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.optimizers import ConstantLearningRate, MomentumOptimizer
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.trainer_module.runtime import strategies
from detloom.trainer_module.runtime.strategies import (
    build_strategy,
    checkpoint_options,
    describe,
    is_chief,
    worker_out_dir,
)
from detloom.trainer_module.training.follow_checkpoints import EvalSet, WatchOptions, evaluate_checkpoints
from detloom.trainer_module.training.loop import train

TWO_MACHINES = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})


def test_one_cpu_is_one_device():
    strategy = build_strategy(environment={})
    assert strategy.num_replicas_in_sync == 1
    assert describe(strategy) == "1 device (CPU), OneDeviceStrategy"
    assert is_chief(strategy)
    alone = json.dumps({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}})
    assert type(build_strategy(environment={"TF_CONFIG": alone})) is tf.distribute.OneDeviceStrategy


@pytest.mark.parametrize(("requested", "message"), [("64", "requests 64"), ("two", "got 'two'")])
def test_a_machine_without_the_requested_gpus_is_refused(requested, message):
    with pytest.raises(InputError, match=f"DETLOOM_GPUS: .*{message}"):
        build_strategy(Strategy(kind="one_device"), {"DETLOOM_GPUS": requested})


def test_environment_selects_the_strategy_without_a_setting():
    environment = {"DETLOOM_STRATEGY": "{kind: mirrored, devices: ['CPU:0']}"}
    assert describe(build_strategy(environment=environment)) == "1 device (CPU), MirroredStrategy"
    requested = build_strategy(Strategy(kind="one_device"), environment)
    assert describe(requested) == "1 device (CPU), OneDeviceStrategy"


@pytest.mark.parametrize(
    ("config", "environment", "message"),
    [
        (Strategy(kind="mirrored", devices=("GPU:7",)), {}, r"strategy\.devices: got GPU:7, allowed: .*CPU:0"),
        (Strategy(kind="multi_worker"), {}, "got 'multi_worker'"),
        (Strategy(kind="one_device"), {"TF_CONFIG": TWO_MACHINES}, "got 'one_device'.* 2 machines"),
    ],
)
def test_unavailable_strategy_is_refused(config, environment, message):
    with pytest.raises(InputError, match=message):
        build_strategy(config, environment)


@pytest.mark.parametrize(
    ("environment", "kind"),
    [({"TPU_NAME": "local"}, "tpu"), ({"TF_CONFIG": TWO_MACHINES, "TPU_NAME": "local"}, "multi_worker")],
)
def test_auto_selects_the_strategy_of_the_environment(monkeypatch, environment, kind):
    """The real strategies cannot be built here: machines connect at the start of a process, and there is no TPU."""
    for name in ("multi_worker", "tpu"):
        builder = {"multi_worker": "_build_multi_worker", "tpu": "_connect_tpu"}[name]
        monkeypatch.setattr(strategies, builder, lambda *_, name=name: name)
    monkeypatch.setattr(strategies, "describe", str)
    assert build_strategy(environment=environment) == kind


def test_chief_writes_to_the_output_folder(tmp_path):
    with worker_out_dir(tf.distribute.OneDeviceStrategy("/cpu:0"), tmp_path) as folder:
        assert folder == tmp_path


def test_folder_of_another_worker_is_deleted_even_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(strategies, "is_chief", lambda strategy: False)
    with pytest.raises(KeyError), worker_out_dir(tf.distribute.OneDeviceStrategy("/cpu:0"), tmp_path) as folder:  # noqa: PT012
        assert folder != tmp_path
        (folder / "checkpoints").mkdir()
        raise KeyError
    assert not folder.exists()
    assert tmp_path.exists()


def test_with_a_tpu_this_machine_writes_the_checkpoints():
    tpu = object.__new__(tf.distribute.TPUStrategy)
    assert checkpoint_options(tpu).experimental_io_device == "/job:localhost"
    assert checkpoint_options(tf.distribute.OneDeviceStrategy("/cpu:0")).experimental_io_device is None


@pytest.fixture(scope="module")
def job(tmp_path_factory, one_level_config, changed, make_squares, write_records):
    """The arguments of train_process.py: two shards of four images; every step takes two images of each.

    Batch norm is frozen, because each replica sees only its own images. Momentum, because Adam amplifies small
    differences of gradients near 0.
    """
    folder, images = tmp_path_factory.mktemp("job"), make_squares(13)
    for name, rows in (("train/data-0", images[:4]), ("train/data-1", images[4:8]), ("eval/data-0", images[8:])):
        write_records(folder / f"Split-{name}", rows)
    rate = ConstantLearningRate(learning_rate=0.05)
    config = changed(
        one_level_config,
        {
            "model.freeze_batchnorm": True,
            "train.batch_size": 4,
            "train.num_steps": 4,
            "train.checkpoint_every_n": 2,
            "train.augmentations": (),
            "train.optimizer": MomentumOptimizer(learning_rate=rate, momentum=0.9),
            "train_input.shuffle": False,
        },
    )
    (folder / "config.json").write_text(to_canonical_json(config))
    return [folder / name for name in ("config.json", "Split-train/*", "Split-eval/*")]


def start(job, out_dir, num_cpus=1, **environment):
    out_dir.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).parents[1] / "training/train_process.py"
    return start_on_devices(script, *job, out_dir, num_cpus=num_cpus, environment=environment)


def weights_after(*processes, out_dir):
    """Return the weights that the processes wrote, by path."""
    wait_for_success(*processes)
    with np.load(out_dir / "weights.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def alone(job, tmp_path_factory):
    """The weights after training on one device."""
    config, train_files, eval_files = job
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    result = train(
        from_json(TrainEvalConfig, config.read_text()),
        LabelMap.from_names(["red", "green"]),
        [str(train_files)],
        [str(eval_files)],
        tmp_path_factory.mktemp("alone"),
        strategy,
    )
    weights = {variable.path: variable.numpy() for variable in result.detector.network.weights}
    assert np.abs(weights["head_classes/bias"] + 4.6).max() > 0.01  # the initial value is -4.6
    return weights


def assert_close(weights, expected):
    assert sorted(weights) == sorted(expected)
    for path, value in expected.items():  # the backbone changes by only 1e-5 in these steps
        np.testing.assert_allclose(weights[path], value, rtol=1e-6, atol=1e-7, err_msg=path)


@pytest.mark.slow
def test_workers_give_the_weights_and_the_evaluation_of_one_device(job, alone, tmp_path, free_ports):
    """Two workers with two replicas each train alike; the numbers of an evaluation are equal to the last digit."""
    workers = [start(job, tmp_path, 2, **environment) for environment in environments_of_workers(free_ports(2))]
    assert_close(weights_after(*workers, out_dir=tmp_path), alone)
    (shard,) = tf.io.gfile.glob(str(job[2]))
    result = evaluate_checkpoints(tmp_path, [EvalSet("eval", (shard,))], tmp_path / "again", WatchOptions())
    evaluation = result.evaluations[-1].evaluation
    (row,) = rows_of(tmp_path, "eval")
    assert evaluation.num_images == row["num_images"] == 5
    assert {name: row[name] for name in evaluation.numbers()} == evaluation.numbers()


@contextlib.contextmanager
def data_server(port, worker_port):
    """Run `detloom data-service` until it listens; kill it at the end."""
    command = [sys.executable, "-u", "-c", "from detloom.pipelines.cli import main; main()", "data-service"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [*command, "--port", str(port), "--worker-port", str(worker_port)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert f"DETLOOM_DATA_SERVICE=localhost:{port}" in process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.nightly
def test_data_servers_give_the_same_weights_also_when_one_is_killed_and_restarts(job, tmp_path, changed, free_ports):
    """The killed server forgets the stream: training ends with an error, and resumes."""
    config = from_json(TrainEvalConfig, job[0].read_text())
    more = {"train.deterministic": True, "train.num_steps": 3000, "train.checkpoint_every_n": 20}
    longer = tmp_path / "config.json"
    longer.write_text(to_canonical_json(changed(config, more)))
    job = [longer, *job[1:]]
    alone = weights_after(start(job, tmp_path / "alone"), out_dir=tmp_path / "alone")
    ports, out_dir = free_ports(4), tmp_path / "served"
    servers = f"localhost:{ports[0]},localhost:{ports[1]}"
    with data_server(ports[0], ports[2]), data_server(ports[1], ports[3]) as second:
        training = start(job, out_dir, DETLOOM_DATA_SERVICE=servers)
        try:
            until = time.monotonic() + 240
            while not any(path.name != "ckpt-0.index" for path in out_dir.glob("checkpoints/ckpt-*.index")):
                assert training.poll() is None, training.stdout.read()
                assert time.monotonic() < until, "no checkpoint after step 0"
                time.sleep(0.01)
            second.kill()
            second.wait()
            with data_server(ports[1], ports[3]):
                output = training.communicate(timeout=240)[0]
                assert training.returncode != 0, output
                assert "a server restarted" in output
                resumed = start(job, out_dir, DETLOOM_DATA_SERVICE=servers)
                weights = weights_after(resumed, out_dir=out_dir)
        finally:
            training.kill()
    assert sorted(weights) == sorted(alone)
    for path, expected in alone.items():
        np.testing.assert_array_equal(weights[path], expected, err_msg=path)


@pytest.mark.nightly
@pytest.mark.parametrize("num_cpus", [(1, 2), (2, 1)])
def test_run_resumes_on_another_number_of_devices(job, alone, tmp_path, num_cpus):
    """The second process finds the checkpoint of step 2; its weights are those of the first one at step 4."""

    def run(num_devices):
        kind = "mirrored" if num_devices > 1 else "one_device"
        return weights_after(start(job, tmp_path, num_devices, DETLOOM_STRATEGY=kind), out_dir=tmp_path)

    first, second = num_cpus
    run(first)
    checkpoints = tmp_path / "checkpoints"
    assert {path.name for path in checkpoints.glob("*.index")} >= {"ckpt-2.index", "ckpt-4.index"}
    for path in [*checkpoints.glob("ckpt-4.*"), tmp_path / "weights.npz"]:
        path.unlink()
    assert_close(run(second), alone)
    assert [row["step"] for row in rows_of(tmp_path)] == [2, 4]
