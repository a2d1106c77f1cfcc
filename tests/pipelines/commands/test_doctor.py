import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from detloom.pipelines.commands import doctor, doctor_data, installed_packages
from detloom.pipelines.commands.doctor import (
    check_cpus,
    check_disk,
    check_glibc,
    check_kubeflow,
    check_memory,
    check_packages,
    check_python,
    check_tensorflow,
    check_tfx,
    check_writable,
    examine,
)
from detloom.pipelines.commands.doctor_data import check_data
from detloom.pipelines.commands.findings import Finding, Probe, format_findings, run_probe
from detloom.pipelines.commands.installed_packages import Installed
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import to_dict
from detloom.schemas.run_file.data import Data, Splits
from detloom.schemas.run_file.kubeflow import Kubeflow, Volume
from detloom.schemas.run_file.nodes import NodeSettings
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.runtime import host_memory

ROOT = Path(__file__).parents[3]


def only(findings: Iterator[Finding]) -> Finding:
    (finding,) = findings
    return finding


def a_run(tmp_path: Path) -> RunFile:
    config = find_preset("efficientdet_d0").config
    data = Data(format="coco", path=str(tmp_path), splits=Splits(train="a", eval="b", test="c"))
    return RunFile(
        name="cells",
        data=data,
        model=config.model,
        train=config.train,
        eval=config.eval,
        train_input=config.train_input,
        eval_input=config.eval_input,
        workspace=str(tmp_path / "runs" / "cells"),
        push_to=str(tmp_path / "models"),
    )


@pytest.fixture
def no_probes(monkeypatch: pytest.MonkeyPatch, cached_packages: None) -> None:
    """Replace the probes, because importing TensorFlow and TFX takes 13 s."""
    answer = {"version": "0.0", "devices": ["CPU:0"]}
    monkeypatch.setattr(doctor, "run_probe", lambda code: Probe(answer))
    sample = {"error": "", "data_format": "coco", "first": "", "reasons": {}}
    sample |= {f"num_{what}": 0 for what in ("records", "records_refused", "boxes", "boxes_refused")}
    monkeypatch.setattr(doctor_data, "run_probe", lambda *arguments, **options: Probe(sample))


# --- all together ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_probes")
def test_the_doctor_checks_all_parts_of_a_run(tmp_path):
    names = {finding.name for finding in examine(a_run(tmp_path))}
    machine = {"Python", "glibc", "TensorFlow", "TFX", "memory", "CPUs"}
    folders = {"disk of the workspace", "disk of temporary files", "workspace", "push_to", "data.path", "data sample"}
    assert machine | folders <= names


@pytest.mark.usefixtures("no_probes")
def test_without_a_run_the_doctor_checks_no_data():
    names = {finding.name for finding in examine()}
    assert "workspace" in names
    assert not {"data.path", "push_to"} & names


@pytest.mark.usefixtures("no_probes")
def test_a_failing_check_becomes_a_finding(monkeypatch):
    def fail():
        raise ModuleNotFoundError("No module named 'packaging'")

    monkeypatch.setattr(doctor, "check_packages", fail)
    finding = next(finding for finding in examine() if finding.name == "packages")
    assert finding.status == "error"
    assert "ModuleNotFoundError: No module named 'packaging'" in finding.found


@pytest.mark.usefixtures("no_probes")
def test_findings_can_be_written_as_json(tmp_path):
    findings = examine(a_run(tmp_path))
    plain = json.loads(json.dumps([to_dict(finding) for finding in findings]))
    assert [set(each) for each in plain] == [{"name", "status", "found", "wanted", "next_step"}] * len(findings)


@pytest.mark.usefixtures("no_probes")
def test_no_value_of_the_environment_is_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    assert "hunter2" not in format_findings(examine(a_run(tmp_path)))


def test_a_problem_is_followed_by_its_next_step():
    wrong = Finding(name="glibc", status="error", found="glibc 2.36", wanted="2.38", next_step="use Debian 13")
    text = format_findings((Finding(name="CPUs", status="ok", found="2", wanted="1"), wrong))
    assert text == (
        "  ok       CPUs   2\n"
        "  error    glibc  glibc 2.36\n"
        "                  wanted: 2.38\n"
        "                  next step: use Debian 13\n"
        "\n"
        "1 error"
    )


def test_errors_and_warnings_are_counted():
    statuses = ("error", "warning", "ok", "warning")
    text = format_findings(tuple(Finding(name="x", status=status, found="y") for status in statuses))
    assert text.endswith("\n1 error, 2 warnings")


def test_a_healthy_machine_reports_no_problems():
    text = format_findings((Finding(name="x", status="ok", found="y"),))
    assert text.endswith("\nNo problems found.")


# --- Python and packages --------------------------------------------------------------------------------------------


def test_the_current_python_passes():
    assert only(check_python()).status == "ok"


def test_an_unsupported_python_is_an_error(monkeypatch):
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.18")
    finding = only(check_python())
    assert finding.status == "error"
    assert ">=3.10" in finding.wanted


def test_wrong_packages_are_listed_before_the_constraints(monkeypatch):
    packages = {"tfx": Installed("1.16.0"), "dill": Installed("0.3.1.1")}
    monkeypatch.setattr(installed_packages, "read_installed", lambda: packages)
    monkeypatch.setattr(installed_packages, "read_project", lambda: (">=3.10", ("tfx>=1.16", "numpy")))
    missing, pins = check_packages()
    assert (missing.name, missing.status, missing.found) == ("package numpy", "error", "missing")
    assert (pins.name, pins.status) == ("constraints", "warning")
    assert "absl-py missing (1.4.0)" in pins.found


def test_correct_packages_are_one_finding(monkeypatch, tmp_path):
    pins = tmp_path / "tfx-1.21.txt"
    pins.write_text("tfx==1.21.0\n")
    monkeypatch.setattr(installed_packages, "read_installed", lambda: {"tfx": Installed("1.21.0")})
    monkeypatch.setattr(installed_packages, "read_project", lambda: (">=3.10", ("tfx>=1.16",)))
    monkeypatch.setattr(installed_packages, "pins_file", lambda line: pins)
    assert [(finding.name, finding.status) for finding in check_packages()] == [
        ("packages", "ok"),
        ("constraints", "ok"),
    ]


@pytest.mark.parametrize(
    ("tfx", "glibc", "status"),
    [
        ("1.16.0", "2.36", "ok"),
        ("1.21.0", "2.36", "error"),
        ("1.21.0", "2.38", "ok"),
        ("1.16.0", "2.5", "error"),
    ],
)
def test_each_tfx_line_requires_its_glibc(monkeypatch, tfx, glibc, status):
    monkeypatch.setattr(installed_packages, "read_installed", lambda: {"tfx": Installed(tfx)})
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", glibc))
    assert only(check_glibc()).status == status


def test_another_c_library_is_an_error(monkeypatch):
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("", ""))
    finding = only(check_glibc())
    assert (finding.status, finding.found) == ("error", "no glibc")


# --- TensorFlow and TFX ---------------------------------------------------------------------------------------------


def test_a_probe_parses_its_last_line():
    assert run_probe("print('chatter'); print('{\"version\": \"1.0\"}')") == Probe({"version": "1.0"})


def test_a_hanging_probe_is_ended():
    probe = run_probe("import time; time.sleep(60)", seconds=0.2)
    assert probe.failure == "its import did not end within 0 s"


def test_a_failing_probe_returns_the_last_line_of_its_error():
    probe = run_probe("import no_such_module_at_all")
    assert probe.failure == "its import failed (ModuleNotFoundError: No module named 'no_such_module_at_all')"


def test_a_killed_probe_reports_the_signal():
    probe = run_probe("import os; os.abort()")
    assert probe.failure == "its import failed (killed by signal 6)"


def test_devices_are_listed(monkeypatch):
    monkeypatch.setattr(doctor, "_has_nvidia_gpu", lambda: False)
    finding = only(check_tensorflow(Probe({"version": "2.16.2", "devices": ["CPU:0"]})))
    assert (finding.status, finding.found) == ("ok", "2.16.2, devices CPU:0")


def test_a_gpu_that_tensorflow_cannot_use_is_a_warning(monkeypatch):
    monkeypatch.setattr(doctor, "_has_nvidia_gpu", lambda: True)
    _, gpu = check_tensorflow(Probe({"version": "2.16.2", "devices": ["CPU:0"]}))
    assert (gpu.name, gpu.status) == ("GPU", "warning")
    assert "pip install 'tensorflow[and-cuda]==2.16.2'" in gpu.next_step


def test_a_gpu_that_tensorflow_can_use_passes(monkeypatch):
    monkeypatch.setattr(doctor, "_has_nvidia_gpu", lambda: True)
    assert only(check_tensorflow(Probe({"version": "2.16.2", "devices": ["CPU:0", "GPU:0"]}))).status == "ok"


@pytest.mark.parametrize("check", [check_tensorflow, check_tfx])
def test_a_broken_import_is_an_error(check):
    finding = only(check(Probe({}, "its import failed (ImportError: x)")))
    assert (finding.status, finding.found) == ("error", "its import failed (ImportError: x)")


@pytest.mark.slow
def test_tensorflow_and_tfx_probes_import_the_real_packages():
    statuses = {finding.name: finding.status for finding in examine()}
    assert statuses["TensorFlow"] == statuses["TFX"] == "ok"


# --- machine and folders --------------------------------------------------------------------------------------------


def test_little_memory_is_a_warning(monkeypatch):
    monkeypatch.setattr(host_memory, "usable_bytes", lambda: 2_000_000_000)
    monkeypatch.setattr(host_memory, "cgroup_limit_bytes", lambda: 2_000_000_000)
    finding = only(check_memory())
    assert finding.status == "warning"
    assert finding.found.startswith("2 GB usable of ")
    assert finding.found.endswith("limit of the container 2 GB")


def test_a_limit_on_cpus_is_shown(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert only(check_cpus()).found == "2 of 64"


@pytest.mark.parametrize(("free", "status"), [(4_900_000_000, "warning"), (5_000_000_000, "ok")])
def test_a_full_disk_is_a_warning(monkeypatch, tmp_path, free, status):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    finding = only(check_disk("disk", tmp_path / "not" / "made"))
    assert finding.status == status
    assert finding.found.endswith(f" free at {tmp_path}")


def test_a_missing_folder_is_checked_in_its_parent_and_left_clean(tmp_path):
    finding = only(check_writable("workspace", str(tmp_path / "a" / "b")))
    assert (finding.status, finding.found) == ("ok", f"{tmp_path}/a/b, to be made in {tmp_path}: writable")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "a").write_text("")
    finding = only(check_writable("push_to", str(tmp_path / "a" / "b")))
    assert finding.status == "error"
    assert finding.found.endswith("Not a directory")
    assert "push_to" in finding.next_step


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    assert only(check_writable("workspace", str(tmp_path))).found.endswith("Permission denied")


def test_a_folder_with_control_characters_is_one_line(tmp_path):
    finding = only(check_writable("push_to", f"{tmp_path}/a\x1b[2J\nb"))
    assert finding.found == rf"{tmp_path}/a\x1b[2J\nb, to be made in {tmp_path}: writable"


def test_an_existing_data_folder_is_readable(tmp_path):
    (tmp_path / "annotations").mkdir()
    assert only(check_data(str(tmp_path))).status == "ok"


def test_an_empty_data_folder_is_a_warning(tmp_path):
    assert only(check_data(str(tmp_path))).status == "warning"


def test_an_unreadable_data_folder_is_an_error(monkeypatch, tmp_path):
    def scandir(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor_data.os, "scandir", scandir)
    finding = only(check_data(str(tmp_path)))
    assert (finding.status, finding.found) == ("error", f"{tmp_path}: Permission denied")


def test_the_parent_folder_of_a_span_pattern_is_checked(tmp_path):
    (tmp_path / "span-1").mkdir()
    assert only(check_data(str(tmp_path / "span-{SPAN}" / "v"))).found == f"{tmp_path}: readable"


def test_a_span_pattern_in_a_folder_that_is_missing_is_an_error(tmp_path):
    finding = only(check_data(str(tmp_path / "none" / "{SPAN}")))
    assert (finding.status, finding.found) == ("error", f"{tmp_path}/none: No such file or directory")


def test_the_embedded_data_always_exist():
    assert only(check_data("embedded:digits")).status == "ok"


def on_kubeflow(tmp_path: Path, **settings: object) -> RunFile:
    volume = Volume(claim="cells", mount_path="/volume-of-the-cluster")
    kubeflow = Kubeflow(image="x/detloom:1", volumes=(volume,), **settings)
    return replace(a_run(tmp_path), kubeflow=kubeflow, push_to="/volume-of-the-cluster/models")


def test_paths_in_containers_are_not_missing_on_this_machine(tmp_path, no_probes):
    run = on_kubeflow(tmp_path)
    run = replace(run, data=replace(run.data, path="/volume-of-the-cluster/cells/{SPAN}"))
    found = {finding.name: finding for finding in examine(run)}
    assert [(found[name].status, "the claim cells" in found[name].found) for name in ("push_to", "data.path")] == [
        ("ok", True),
        ("ok", True),
    ]
    other = {finding.name: finding for finding in examine(replace(run, push_to="/nowhere/models"))}
    assert "claim" not in other["push_to"].found


def test_the_retry_settings_of_the_cluster_are_checked(tmp_path, cluster):
    run = on_kubeflow(tmp_path, host=cluster.host)
    assert only(check_kubeflow(run)).status == "ok"
    run = replace(run, nodes=(NodeSettings(node="*", max_retries=2),))
    assert "no earlier run shows" in only(check_kubeflow(run)).found
    strategy = {"limit": "0", "retryPolicy": "Always"}
    cluster.workflows[cluster.add_run("cells-1").run_id] = {"spec": {"templateDefaults": {"retryStrategy": strategy}}}
    assert only(check_kubeflow(run)).status == "ok"


def test_an_unreachable_cluster_is_a_warning(tmp_path, cluster):
    cluster.token = "needed"
    assert "could not read" in only(check_kubeflow(on_kubeflow(tmp_path, host=cluster.host))).found
