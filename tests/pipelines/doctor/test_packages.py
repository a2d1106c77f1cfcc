import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import detloom
from detloom.pipelines.doctor import packages
from detloom.pipelines.doctor.packages import check_constraints, check_packages

PINS = "# a comment\na==1.0  # via b\nb==2.0 ; python_version >= '3'\nc==3.0 ; python_version < '3'\nd==4.0\n"


@pytest.fixture
def install(monkeypatch):
    """Return a function that pretends that other packages are installed, and what `pip check` says about them."""

    def pretend(problems="", **versions):
        done = SimpleNamespace(returncode=int(bool(problems)), stdout=problems, stderr="")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        monkeypatch.setattr(packages, "_version", versions.get)

    return pretend


@pytest.fixture
def pins(tmp_path):
    file = tmp_path / "tfx-9.txt"
    file.write_text(PINS)
    return file


@pytest.mark.slow  # `pip check` of this environment
def test_the_packages_of_this_environment_are_right():
    result, *constraints = check_packages()
    assert result.status == "ok"
    assert [each.name for each in constraints] in ([], ["constraints"])


def test_each_problem_of_pip_is_an_error(install):
    install("x 1 requires y, which is not installed.\nz 1 has requirement y<2, but you have y 3.\n", tfx="1.21.0")
    one, other, pins = check_packages()
    assert (one.status, other.status, one.detail) == ("error", "error", "x 1 requires y, which is not installed.")
    assert (pins.name, pins.status) == ("constraints", "warning")
    assert "missing" in pins.detail


def test_an_environment_without_pip_is_a_warning(install, monkeypatch):
    install(tfx="1.21.0")
    done = SimpleNamespace(returncode=1, stdout="", stderr="a warning\npython: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    result, _ = check_packages()
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


def test_versions_are_compared_with_the_pins(install, pins):
    install(a="1.0", b="2.1")
    result = check_constraints(pins)
    assert (result.status, result.expected) == ("warning", "the versions of tfx-9.txt")
    assert result.detail.endswith(": b 2.1 (2.0), d missing (4.0)")
    install(a="1.0", b="2.0", d="4.0")
    assert check_constraints(pins).status == "ok"


@pytest.mark.parametrize(("count", "end"), [(8, "p7 missing (1)"), (9, "p7 missing (1) and 1 more")])
def test_at_most_eight_differences_are_shown(install, tmp_path, count, end):
    (tmp_path / "pins.txt").write_text("".join(f"p{number}==1\n" for number in range(count)))
    install()
    assert check_constraints(tmp_path / "pins.txt").detail.endswith(end)


@pytest.mark.parametrize("line", ["1.16", "1.21"])
def test_the_constraints_of_each_line_can_be_read(line):
    file = Path(detloom.__file__).parents[1] / f"constraints/tfx-{line}.txt"
    assert "tested ones" in check_constraints(file).detail or check_constraints(file).status == "ok"
