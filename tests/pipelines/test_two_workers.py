"""Run two processes on this machine with the command and the environment that a manifest gives its pods."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import detloom_command

from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.trainer_module.runtime.cluster import find_cluster

ROOT = Path(__file__).parents[2]
# All workers but the chief write to a temporary folder; this code keeps it.
KEEP_TEMPORARY_FOLDERS = """
import tempfile
tempfile.TemporaryDirectory.cleanup = lambda self: self._finalizer.detach()
"""


@pytest.fixture
def manifest(tmp_path, small_run, make_example, write_records):
    """Return the manifest of a job whose volume is a folder of this machine with examples."""
    rng = np.random.default_rng(0)
    for split, num_shards in (("train", 2), ("eval", 1)):
        for shard in range(num_shards):
            records = [
                make_example([(y, x, y + 0.5, x + 0.5)], [1 + i % 2], name=f"{split}-{shard}-{i}")
                for i, (y, x) in enumerate(rng.uniform(0, 0.4, (4, 2)))
            ]
            name = f"data_tfrecord-{shard:05}-of-{num_shards:05}"
            write_records(tmp_path / "examples" / f"Split-{split}" / name, records)
    write_label_map(tmp_path / "examples" / "label_map.pbtxt", LabelMap.from_names(["red", "green"]))
    section = f"kubeflow: {{image: r/detloom:1, volumes: [{{claim: shared, mount_path: {tmp_path}}}]}}\n"
    small_run.write_text(small_run.read_text().replace("name: small", "name: cells") + section)
    folders = ("--examples", tmp_path / "examples", "--out", tmp_path / "out")
    result = detloom_command("manifest", small_run, *folders, "-o", tmp_path / "m.yaml")
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all((tmp_path / "m.yaml").read_text()))


def environment_of(container, index):
    """Return the environment that Kubernetes gives to the pod with this index."""
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    return {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"cells-{index}", **variables}


def with_addresses(environment, addresses):
    """Replace host names of the cluster by addresses of this machine."""
    cluster = find_cluster(environment)
    task = {"type": cluster.task_type, "index": cluster.task_index}
    config = {"cluster": {"worker": [addresses[name] for name in cluster.worker]}, "task": task}
    return {**environment, "TF_CONFIG": json.dumps(config)}


def start(container, environment, tmp_path, index):
    command = [
        *container["command"],
        *(each.replace("/etc/detloom", str(tmp_path / "etc")) for each in container["args"]),
    ]
    (tmp_path / f"tmp-{index}").mkdir()
    return subprocess.Popen(
        command,
        env={
            **os.environ,
            **environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # for the command `python`
            "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'keep'}",
            "TMPDIR": str(tmp_path / f"tmp-{index}"),
            "CUDA_VISIBLE_DEVICES": "",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def saved_state(checkpoint):
    """Return weights, optimizer state and other saved values by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(checkpoint))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # about one minute on an idle machine
def test_two_workers_of_a_manifest_end_with_the_same_weights(manifest, tmp_path, free_ports):
    config, _, job = manifest
    (tmp_path / "etc").mkdir()
    for name, text in config["data"].items():
        (tmp_path / "etc" / name).write_text(text)
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "sitecustomize.py").write_text(KEEP_TEMPORARY_FOLDERS)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = [f"cells-{index}.cells:2222" for index in range(2)]
    addresses = dict(zip(names, (f"127.0.0.1:{port}" for port in free_ports(2)), strict=True))
    processes = [
        start(container, with_addresses(environment_of(container, index), addresses), tmp_path, index)
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=1000)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)[-6000:]
    assert "2 devices (CPU), CollectiveAllReduceStrategy" in outputs[0] + outputs[1]
    indices = sorted((tmp_path / "tmp-1").glob("tmp*/ckpt.index"), key=lambda path: path.stat().st_mtime)
    chief = saved_state(tmp_path / "out" / "checkpoints" / "ckpt-4")
    worker = saved_state(indices[-1].with_suffix(""))
    assert len(chief) > 50
    assert sorted(chief) == sorted(worker)
    for name, values in chief.items():
        np.testing.assert_array_equal(values, worker[name], err_msg=name)
    assert (tmp_path / "out" / "model").is_dir()  # the chief exported
    assert not list((tmp_path / "tmp-0").glob("detloom-worker-*"))
