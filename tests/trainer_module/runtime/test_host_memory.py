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


V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
NO_LIMIT = "9223372036854771712"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/pod/box", f"{V2}/pod/memory.max": "4000", f"{V2}/pod/box/memory.max": "max"}, 4000),
        (
            {
                "proc/self/cgroup": "7:cpu:/\n4:memory:/box",
                f"{V1}/memory.limit_in_bytes": NO_LIMIT,
                f"{V1}/box/memory.limit_in_bytes": "2000",
            },
            2000,
        ),
        ({"proc/self/cgroup": "0::/host/only/path", f"{V2}/memory.max": "3000"}, 3000),  # only the top of the mount
        ({"proc/self/cgroup": "0::/", f"{V2}/memory.max": "max"}, None),
        ({"proc/self/cgroup": "0::/", f"{V2}/memory.max": NO_LIMIT}, None),
        ({}, None),
    ],
)
def test_limit_of_cgroups_of_both_versions(tmp_path, files, limit):
    assert cgroup_limit_bytes(write(tmp_path, files)) == limit


def test_usable_memory_is_capped_by_the_cgroup_limit_and_includes_memory_in_use(monkeypatch):
    monkeypatch.setattr(host_memory, "cgroup_limit_bytes", lambda: 5000)
    assert usable_bytes() == 5000
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
