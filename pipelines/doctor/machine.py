"""Checks of this machine: imports of TensorFlow and TFX, devices, memory, disk, folders that can be written."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detloom.pipelines.doctor.check_result import CheckResult, run_probe
from detloom.schemas.reading.redact import redact
from detloom.trainer_module.runtime.host_devices import has_nvidia_gpu
from detloom.trainer_module.runtime.host_memory import cgroup_limit_bytes, format_bytes, usable_bytes

_MIN_DISK_BYTES = 5e9  # the environment is 3.2 GB, a run on a small data set writes less than 1 GB
_MIN_MEMORY_BYTES = 4e9  # training FPNLite at 320 x 320, batch 8, used 2.7 GB; TFX and Beam add to that
_TENSORFLOW_PROBE = """
import json, tensorflow as tf
devices = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()]
print(json.dumps({"version": tf.__version__, "devices": devices}))
"""
_TFX_PROBE = "import json, tfx.v1 as tfx; print(json.dumps({'version': tfx.__version__}))"


def check_tensorflow() -> Iterator[CheckResult]:
    """Check that TensorFlow imports, and that it sees the machine's GPUs."""
    tensorflow = run_probe(_TENSORFLOW_PROBE)
    version, devices = tensorflow["version"], tensorflow["devices"]
    yield CheckResult(name="TensorFlow", status="ok", detail=f"{version}, devices {', '.join(devices)}")
    gpus = [device for device in devices if device.startswith("GPU")]
    if gpus:
        yield CheckResult(name="GPU", status="ok", detail=f"TensorFlow sees {', '.join(gpus)}")
    elif not has_nvidia_gpu():
        yield CheckResult(name="GPU", status="ok", detail="this machine has none; training uses the CPU")
    else:
        yield CheckResult(
            name="GPU",
            status="warning",
            detail="the machine has an NVIDIA GPU, TensorFlow sees none; training uses the CPU",
            next_step=f"`make venv ACCELERATOR=gpu` in a checkout, else pip install 'tensorflow[and-cuda]=={version}'; "
            "nvidia-smi shows whether the driver works, and CUDA_VISIBLE_DEVICES may hide the GPU",
        )


def check_tfx() -> Iterator[CheckResult]:
    """Check that TFX imports."""
    yield CheckResult(name="TFX", status="ok", detail=run_probe(_TFX_PROBE)["version"])


def check_memory() -> Iterator[CheckResult]:
    """Check the memory that a process may use: free memory, limited by its cgroup."""
    usable, limit = usable_bytes(), cgroup_limit_bytes()
    is_enough = usable >= _MIN_MEMORY_BYTES
    limited = f", limit of the container {format_bytes(limit)}" if limit is not None else ""
    yield CheckResult(
        name="memory",
        status="ok" if is_enough else "warning",
        detail=f"{format_bytes(usable)} usable{limited}",
        expected=f"{format_bytes(_MIN_MEMORY_BYTES)} or more",
        next_step="" if is_enough else "end other programs, raise the container's limit, or lower train.batch_size",
    )


def check_folder(name: str, path: str) -> Iterator[CheckResult]:
    """Create and remove a file in the folder, or in its nearest existing parent, and check the free space."""
    folder = _existing(Path(path))
    where = redact(path) if folder == Path(path) else f"{redact(path)}, to be made in {redact(str(folder))}"
    try:
        with tempfile.NamedTemporaryFile(prefix=".detloom-doctor-", dir=folder):
            pass
    except OSError as error:
        next_step = f"give this user write permission, or set {name} to another folder"
        yield CheckResult(name=name, status="error", detail=f"{where}: {error.strerror}", next_step=next_step)
        return
    free = shutil.disk_usage(folder).free
    is_enough = free >= _MIN_DISK_BYTES
    yield CheckResult(
        name=name,
        status="ok" if is_enough else "warning",
        detail=f"{where}: {format_bytes(free)} free",
        expected=f"{format_bytes(_MIN_DISK_BYTES)} or more",
        next_step="" if is_enough else "free some space, or choose another folder",
    )


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    # Path.exists raises for a name that is too long.
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))
