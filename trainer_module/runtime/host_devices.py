"""CPUs that this process may use, and GPUs of the machine. Imports no TensorFlow."""

import math
import os
from pathlib import Path

from detloom.trainer_module.runtime.host_memory import cgroup_folders


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs of this process, or that of its cgroup's quota if it is lower; at least 1.

    The default of runtimes is the number of CPUs of the host, which is too many in a container.
    """
    quotas = [_read_quota(folder) for folder in cgroup_folders("cpu", root)]
    return max(1, min([len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _read_quota(folder: Path) -> float | None:
    """Return the CPUs that a cgroup may use (versions 2 and 1); None without a limit."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = " ".join((folder / file).read_text(encoding="utf-8") for file in files).split()
        except OSError:
            continue
        if len(words) == 2 and all(word.isdigit() for word in words):  # "max" and "-1" are no limit
            return int(words[0]) / int(words[1])
    return None


def has_nvidia_gpu() -> bool:
    """Return whether the machine has a GPU of NVIDIA, also below WSL."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/usr/lib/wsl/lib/libcuda.so.1").exists()
