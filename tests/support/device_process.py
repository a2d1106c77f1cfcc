"""Run a script in processes of their own, each with several logical CPUs and with `three_layer_backbone`.

python device_process.py NUM_CPUS SCRIPT ARGUMENT...
"""

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MAX_SECONDS = 300


def start_on_devices(
    script: Path, *arguments: object, num_cpus: int = 1, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    path = os.pathsep.join(map(str, (ROOT, Path(__file__).parent, script.parent)))
    return subprocess.Popen(
        [sys.executable, __file__, str(num_cpus), str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_success(*processes: "subprocess.Popen[str]") -> None:
    try:
        outputs = [process.communicate(timeout=_MAX_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)[-5000:]


def environments_of_workers(ports: Sequence[int]) -> list[dict[str, str]]:
    """Return the environments of workers on this machine, one for each port."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return [{"DETLOOM_HOSTS": hosts, "DETLOOM_HOST_INDEX": str(index)} for index in range(len(ports))]


def main(num_cpus: str, script: str, *arguments: str) -> None:
    import tensorflow as tf
    from three_layer_backbone import three_layer_backbone

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(num_cpus))
    sys.argv = [script, *arguments]
    with three_layer_backbone():
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
