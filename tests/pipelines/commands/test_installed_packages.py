from pathlib import Path

import pytest

from detloom.pipelines.commands import installed_packages
from detloom.pipelines.commands.installed_packages import (
    Installed,
    differences_from_pins,
    known_bad,
    read_installed,
    read_project,
    tfx_line,
    unmet_requirements,
)

TFX_1_16 = {"tfx": Installed("1.16.0"), "dill": Installed("0.3.1.1"), "apache-beam": Installed("2.61.0")}


def test_installed_requirements_have_no_fault():
    packages = {"a": Installed("2.0", ("b[extra]>=1",)), "b": Installed("1.5", ("c; extra == 'extra'",))}
    assert unmet_requirements(["a>=1"], {**packages, "c": Installed("3")}) == []


def test_a_missing_package_is_listed_with_its_dependent():
    (fault,) = unmet_requirements(["tfx>=1.16"], {})
    assert (fault.name, fault.status, fault.found) == ("tfx", "error", "missing")
    assert fault.wanted == ">=1.16, required by detloom"
    assert fault.next_step == "pip install -c constraints/tfx-1.16.txt 'tfx>=1.16'"


def test_a_wrong_version_of_an_indirect_requirement_is_found():
    packages = {
        "tfx": Installed("1.16.0", ("tensorflow-data-validation",)),
        "tensorflow-data-validation": Installed("1.16.1", ("protobuf<4,>=3.20.3",)),
        "protobuf": Installed("5.29.0"),
    }
    (fault,) = unmet_requirements(["tfx"], packages)
    assert (fault.name, fault.found) == ("protobuf", "5.29.0")
    assert fault.wanted == "<4,>=3.20.3, required by tensorflow-data-validation"


def test_requirements_of_unrequested_extras_are_ignored():
    assert unmet_requirements(["a"], {"a": Installed("1", ("missing; extra == 'test'",))}) == []


def test_requirements_for_other_python_versions_are_ignored():
    assert unmet_requirements(["missing; python_version < '3'"], {}) == []


def test_cyclic_requirements_end():
    packages = {"a": Installed("1", ("b",)), "b": Installed("1", ("a",))}
    assert unmet_requirements(["a"], packages) == []


def test_names_are_normalized_as_in_pip():
    assert unmet_requirements(["Faster_COCO.eval"], {"faster-coco-eval": Installed("1.8.0")}) == []


def test_a_release_candidate_meets_a_requirement():
    assert unmet_requirements(["a>=1"], {"a": Installed("2.0rc1")}) == []


def test_requirements_that_pip_cannot_read_are_skipped():
    assert unmet_requirements(["a"], {"a": Installed("1", ("b (>=1.0.*",))}) == []


def test_differences_from_pins():
    pins = "# a comment\na==1.0\nb==2.0 ; python_version >= '3'\nc==3.0 ; python_version < '3'\nd==4.0\n"
    packages = {"a": Installed("1.0"), "b": Installed("2.1")}
    assert differences_from_pins(packages, pins) == ["b 2.1 (2.0)", "d missing (4.0)"]
    assert differences_from_pins(packages, pins, may_lack=True) == ["b 2.1 (2.0)"]


def test_the_constraints_file_of_a_tfx_line_is_in_the_checkout():
    file = installed_packages.pins_file("1.16")
    assert file is not None
    assert "tfx==1.16.0" in file.read_text(encoding="utf-8")
    assert installed_packages.pins_file("0.1") is None


def test_the_tfx_line_comes_from_the_installed_tfx():
    assert tfx_line(TFX_1_16) == "1.16"
    assert tfx_line({}) == ""


def test_supported_versions_with_tfx_1_16_have_no_fault():
    assert list(known_bad({**TFX_1_16, "setuptools": Installed("80.10.2")})) == []


def test_setuptools_without_pkg_resources_is_an_error_with_tfx_1_16():
    (fault,) = known_bad({**TFX_1_16, "setuptools": Installed("81.0.0")})
    assert (fault.name, fault.status, fault.found) == ("setuptools", "error", "81.0.0")
    assert fault.next_step == "pip install -c constraints/tfx-1.16.txt 'setuptools<81'"


def test_beam_without_dill_is_an_error_with_tfx_1_16():
    (fault,) = known_bad({"tfx": Installed("1.16.0"), "apache-beam": Installed("2.66.0")})
    assert (fault.name, fault.status, fault.found) == ("dill", "error", "missing beside apache-beam 2.66.0")


def test_packages_that_slow_down_imports_are_warnings():
    (fault,) = known_bad({**TFX_1_16, "google-auth": Installed("2.43.0")})
    assert (fault.name, fault.status) == ("google-auth", "warning")


def test_tfx_1_21_accepts_all_of_these():
    packages = {"tfx": Installed("1.21.0"), "setuptools": Installed("82.0"), "google-auth": Installed("2.50")}
    assert list(known_bad(packages)) == []


def test_another_tfx_line_is_a_warning():
    (fault,) = known_bad({"tfx": Installed("1.17.3")})
    assert (fault.name, fault.status, fault.found) == ("tfx", "warning", "1.17.3")
    assert fault.wanted.startswith("1.16 or 1.21")


def test_this_environment_is_read():
    packages = read_installed()
    assert packages["pytest"].version == pytest.__version__
    assert "packaging" in " ".join(packages["pytest"].requires)


def test_the_projects_requirements_are_read():
    requires_python, requirements = read_project()
    assert ">=3.10" in requires_python
    assert any(requirement.startswith("tfx>=1.16") for requirement in requirements)


def test_without_a_checkout_the_metadata_is_read(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(installed_packages, "PROJECT", "no-such-project")
    monkeypatch.setattr(installed_packages, "_checkout_file", lambda name: tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_project()
