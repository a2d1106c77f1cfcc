import os
from types import SimpleNamespace

import pytest

from detloom.pipelines.doctor import machine
from detloom.pipelines.doctor.machine import check_folder, check_memory, check_tensorflow, check_tfx


def only(results):
    (result,) = results
    return result


@pytest.mark.parametrize(
    ("has_gpu", "devices", "expected"),
    [
        (False, ["CPU:0"], ("ok", "has none")),
        (True, ["CPU:0", "GPU:0"], ("ok", "sees GPU:0")),
        (True, ["CPU:0"], ("warning", "sees none")),
    ],
)
def test_a_gpu_that_tensorflow_does_not_see_is_a_warning(monkeypatch, has_gpu, devices, expected):
    monkeypatch.setattr(machine, "has_nvidia_gpu", lambda: has_gpu)
    monkeypatch.setattr(machine, "run_probe", lambda code: {"version": "2.16.2", "devices": devices})
    tensorflow, gpu = check_tensorflow()
    assert (tensorflow.status, tensorflow.detail) == ("ok", f"2.16.2, devices {', '.join(devices)}")
    status, text = expected
    assert (gpu.name, gpu.status) == ("GPU", status)
    assert text in gpu.detail
    assert ("ACCELERATOR=gpu" in gpu.next_step and "and-cuda]==2.16.2" in gpu.next_step) == (status == "warning")


@pytest.mark.slow
def test_the_probes_import_tensorflow_and_tfx():
    assert next(check_tensorflow()).status == next(check_tfx()).status == "ok"


@pytest.mark.parametrize(("usable", "status"), [(3.9e9, "warning"), (4e9, "ok")])
def test_little_memory_is_a_warning(monkeypatch, usable, status):
    monkeypatch.setattr(machine, "usable_bytes", lambda: int(usable))
    monkeypatch.setattr(machine, "cgroup_limit_bytes", lambda: 4_000_000_000)
    result = only(check_memory())
    assert result.status == status
    assert result.detail.endswith("limit of the container 4 GB")


@pytest.mark.parametrize(("free", "status"), [(4_900_000_000, "warning"), (5_000_000_000, "ok")])
def test_a_full_disk_is_a_warning(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert only(check_folder("workspace", str(tmp_path))).status == status


def test_a_missing_folder_is_checked_in_its_parent_and_left_clean(tmp_path):
    result = only(check_folder("workspace", str(tmp_path / "a\x1b[2J\nb" / ("x" * 300))))
    assert result.detail.startswith(rf"{tmp_path}/a\x1b[2J\nb/xxx")
    assert f", to be made in {tmp_path}: " in result.detail
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    result = only(check_folder("push_to", str(tmp_path / "a" / "b")))
    assert result.status == "error"
    assert result.detail.endswith("Not a directory")
    assert "push_to" in result.next_step


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    assert only(check_folder("workspace", str(tmp_path))).detail.endswith("Permission denied")
