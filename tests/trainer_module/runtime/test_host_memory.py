from pathlib import Path

import pytest

from detloom.trainer_module.runtime import host_memory
from detloom.trainer_module.runtime.host_memory import cgroup_limit_bytes, format_bytes, process_bytes, usable_bytes


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_limit_of_cgroup_version_2_and_of_its_parent(tmp_path):
    files = {
        "proc/self/cgroup": "0::/pod/box",
        "sys/fs/cgroup/pod/memory.max": "4000",
        "sys/fs/cgroup/pod/box/memory.max": "max",
    }
    assert cgroup_limit_bytes(write(tmp_path, files)) == 4000


def test_limit_of_cgroup_version_1(tmp_path):
    files = {
        "proc/self/cgroup": "7:cpu:/\n4:memory:/box",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "2000",
    }
    assert cgroup_limit_bytes(write(tmp_path, files)) == 2000


def test_container_that_sees_only_the_top_of_the_mount(tmp_path):
    files = {"proc/self/cgroup": "0::/host/only/path", "sys/fs/cgroup/memory.max": "3000"}
    assert cgroup_limit_bytes(write(tmp_path, files)) == 3000


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_no_limit_is_none(tmp_path, text):
    files = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": text}
    assert cgroup_limit_bytes(write(tmp_path, files)) is None


def test_no_limit_without_cgroups(tmp_path):
    assert cgroup_limit_bytes(tmp_path) is None


def test_usable_memory_is_capped_by_the_cgroup_limit(monkeypatch):
    monkeypatch.setattr(host_memory, "cgroup_limit_bytes", lambda: 5000)
    assert usable_bytes() == 5000


def test_usable_memory_includes_memory_in_use(monkeypatch):
    monkeypatch.setattr(host_memory, "cgroup_limit_bytes", lambda: None)
    assert usable_bytes() > process_bytes() > 0


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_940_000_000, "1.94 GB"),
        (999_600, "1 MB"),
        (12_300_000, "12.3 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_bytes_are_formatted_with_three_digits(num_bytes, text):
    assert format_bytes(num_bytes) == text
