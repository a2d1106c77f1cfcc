import os
from pathlib import Path

import pytest

from detloom.components.fingerprints import describe_code, package_fingerprint
from detloom.pipelines.commands import image_check, installed_packages
from detloom.pipelines.commands.doctor import Finding
from detloom.pipelines.commands.image_check import check_job_code, examine_image
from detloom.pipelines.commands.installed_packages import Installed

MODULE = "detloom.pipelines.container.time_limit"
OURS, OTHER = describe_code(MODULE), f"{MODULE}=fedcba9876543210"
GONE = "detloom.no_such_module=0123456789abcdef"


def only(findings) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def image(tmp_path, monkeypatch, cached_packages):
    """Replace /opt/detloom by a folder, and hide boot program, TPU library and storage of this machine."""
    monkeypatch.setattr(image_check, "IMAGE_FOLDER", tmp_path / "detloom")
    monkeypatch.setattr(image_check, "BEAM_BOOT", tmp_path / "boot")
    monkeypatch.setattr(image_check, "LIBTPU", tmp_path / "libtpu.so")
    monkeypatch.setattr(image_check, "STORAGE_FOLDERS", (str(tmp_path / "gcs"), str(tmp_path / "minio")))
    for name in ("dist", "constraints"):
        (tmp_path / "detloom" / name).mkdir(parents=True)
    return tmp_path


def install(monkeypatch, **versions: str) -> None:
    packages = {name.replace("_", "-"): Installed(version) for name, version in versions.items()}
    monkeypatch.setattr(installed_packages, "read_installed", lambda: packages)


def test_without_a_job_the_package_is_only_shown():
    finding = only(check_job_code())
    assert finding.status == "ok"
    assert package_fingerprint() in finding.found


def test_a_job_with_this_code_passes():
    assert only(check_job_code((OURS,))).status == "ok"


def test_only_tasks_with_other_code_are_named():
    finding = only(check_job_code((OURS, OTHER, GONE)))
    assert (finding.status, finding.wanted) == ("error", f"{OTHER}, {GONE}")


def test_a_package_changed_after_the_build_is_found(image, monkeypatch):
    (image / "detloom" / "constraints" / "tfx-1.16.txt").write_text("numpy==1.26.4\nmypy==2.4.1\n")
    install(monkeypatch, numpy="1.26.4")
    assert (only(image_check.check_pins()).status, only(image_check.check_pins()).found) == (
        "ok",
        "the versions of tfx-1.16.txt",
    )
    install(monkeypatch, numpy="2.0.0")
    finding = only(image_check.check_pins())
    assert (finding.status, finding.found) == ("error", "other versions: numpy 2.0.0 (1.26.4)")


def test_the_wheel_is_listed(image):
    assert only(image_check.check_wheel()).found.startswith("none")
    wheel = image / "detloom" / "dist" / "detloom-0.1.0-py3-none-any.whl"
    wheel.touch()
    assert only(image_check.check_wheel()).found == str(wheel)


@pytest.mark.parametrize(
    ("user", "boot", "status"), [(1000, False, "ok"), (0, False, "warning"), (0, True, "ok"), (1000660000, False, "ok")]
)
def test_root_is_a_warning_except_for_beam_workers(image, monkeypatch, user, boot, status):
    monkeypatch.setattr(os, "getuid", lambda: user)
    if boot:
        (image / "boot").touch()
    finding = only(image_check.check_user())
    assert finding.status == status
    assert finding.found.startswith(f"{user} (")


def test_only_existing_storage_folders_are_checked_and_unwritable_ones_warn(image, monkeypatch):
    monkeypatch.setenv("HOME", str(image))
    (image / "gcs").mkdir()

    def refuse(name: str, path: str):
        yield Finding(name=name, status="error" if path.endswith("gcs") else "ok", found=path)

    monkeypatch.setattr(image_check, "check_writable", refuse)
    findings = {finding.found: finding.status for finding in image_check.check_folders()}
    assert findings.pop(str(image)) == "ok"
    assert findings.pop(str(image / "gcs")) == "warning"
    assert list(findings.values()) == ["ok"]  # temporary files


def test_the_boot_program_must_be_executable(image):
    (image / "boot").touch(mode=0o644)
    assert only(image_check.check_beam()).found.startswith("none")
    (image / "boot").chmod(0o755)
    assert only(image_check.check_beam()).found == f"{image / 'boot'}: this image can be a Beam worker"


def test_a_tpu_without_its_library_is_a_warning(image, monkeypatch):
    install(monkeypatch, tensorflow="2.16.2")
    assert only(image_check.check_tpu()).found == "no devices, no TPU build of TensorFlow, no libtpu.so"
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [Path("/dev/accel0")] if pattern == "accel[0-9]*" else [])
    finding = only(image_check.check_tpu())
    assert (finding.status, finding.found) == (
        "warning",
        "devices /dev/accel0, no TPU build of TensorFlow, no libtpu.so",
    )
    (image / "libtpu.so").touch()
    install(monkeypatch, tensorflow="2.16.2", tensorflow_tpu="2.16.2")
    finding = only(image_check.check_tpu())
    assert (finding.status, finding.found) == (
        "ok",
        f"devices /dev/accel0, tensorflow-tpu 2.16.2, {image / 'libtpu.so'}",
    )


def test_a_failing_check_does_not_stop_the_others(image, monkeypatch):
    monkeypatch.setattr(image_check, "run_probe", lambda code: 1 / 0)
    findings = {finding.name: finding for finding in examine_image((OTHER,))}
    assert findings["TensorFlow"].status == "error"
    assert "ZeroDivisionError" in findings["TensorFlow"].found
    assert findings["code"].status == "error"
    assert {"platform", "Python", "versions", "packages", "user", "home", "TPU", "Beam boot program"} <= set(findings)
