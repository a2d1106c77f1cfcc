import os

import pytest

from detloom.trainer_module.runtime.host_devices import usable_cpus


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"proc/self/cgroup": "0::/pod/box", "sys/fs/cgroup/pod/cpu.max": "150000 100000"}, 2),  # 1.5, rounded up
        ({"proc/self/cgroup": "0::/pod", "sys/fs/cgroup/pod/cpu.max": "max 100000"}, 8),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/box",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "9900000 100000"}, 8),  # 99 CPUs, but the process has 8
        ({}, 8),
    ],
)
def test_the_lower_of_affinity_and_quota(tmp_path, monkeypatch, files, cpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_cpus(tmp_path) == cpus
