import subprocess
from types import SimpleNamespace

import pytest

from detloom.pipelines import tfx_line
from detloom.pipelines.doctor import packages
from detloom.pipelines.doctor.packages import check_packages


@pytest.fixture
def install(monkeypatch):
    """Return a function that pretends that other packages are installed, and what `pip check` says about them."""

    def pretend(problems="", **versions):
        done = SimpleNamespace(returncode=int(bool(problems)), stdout=problems, stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        monkeypatch.setattr(packages, "_version", versions.get)

    return pretend


@pytest.mark.slow  # `pip check` of this environment
def test_the_packages_of_this_environment_are_right():
    assert [result.status for result in check_packages()] == ["ok"]


def test_each_problem_of_pip_is_an_error(install):
    install("x 1 requires y, which is not installed.\nz 1 has requirement y<2, but you have y 3.\n", tfx="1.21.0")
    one, other = check_packages()
    assert (one.status, other.status, one.detail) == ("error", "error", "x 1 requires y, which is not installed.")


@pytest.mark.parametrize(("has_library", "status"), [(True, "ok"), (False, "error")])
def test_libtpu_as_a_library_replaces_its_package(install, monkeypatch, tmp_path, has_library, status):
    install("tensorflow-tpu 2.16.2 requires libtpu, which is not installed.\n", tfx="1.21.0")
    monkeypatch.setattr(tfx_line, "LIBTPU", str(tmp_path if has_library else tmp_path / "libtpu.so"))
    assert [result.status for result in check_packages()] == [status]


def test_an_environment_without_pip_is_a_warning(install, monkeypatch):
    install(tfx="1.21.0")
    done = SimpleNamespace(returncode=1, stdout="", stderr="a warning\npython: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (result,) = check_packages()
    assert (result.status, "No module named pip" in result.detail) == ("warning", True)
    assert result.next_step.endswith(" -m ensurepip")


@pytest.mark.parametrize(
    ("versions", "details"),
    [
        ({"tfx": "1.16.0", "setuptools": "80.10.2", "dill": "0.3.1.1"}, []),
        ({"tfx": "1.16.0", "setuptools": "81.0.0", "dill": "0.3.1.1"}, ["setuptools 81.0.0, required <81"]),
        ({"tfx": "1.16.0", "setuptools": "80.10.2"}, ["dill missing, "]),
        ({"tfx": "1.21.0", "setuptools": "82.0"}, []),
        ({}, []),
    ],
)
def test_packages_that_break_the_import_of_tfx_are_errors(install, versions, details):
    install(**versions)
    errors = [result.detail for result in check_packages() if result.status == "error"]
    assert len(errors) == len(details)
    assert all(error.startswith(detail) for error, detail in zip(errors, details, strict=True))
