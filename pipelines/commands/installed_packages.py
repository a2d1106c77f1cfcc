"""Compare the installed packages with detloom's requirements; read only metadata, import none of the packages."""

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

import detloom

PROJECT = "detloom"
TFX_LINES = ("1.16", "1.21")  # the TFX lines that constraints/ pins


@dataclass(frozen=True)
class Installed:
    """An installed distribution: its version, and its requirements as in its metadata."""

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackageFault:
    """A package that is missing or of the wrong version.

    Attributes:
        found: the installed version, or "missing".
        wanted: the right versions, and the package that requires them.
    """

    status: Literal["warning", "error"]
    name: str
    found: str
    wanted: str
    next_step: str


Packages = Mapping[str, Installed]  # by canonical name


def read_installed() -> dict[str, Installed]:
    """Return all distributions that this interpreter finds; of several with one name, the one that is imported."""
    packages: dict[str, Installed] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:
            found = Installed(distribution.version, tuple(distribution.requires or ()))
            packages.setdefault(canonicalize_name(name), found)
    return packages


def read_project() -> tuple[str, tuple[str, ...]]:
    """Return detloom's `Requires-Python` and requirements, from its metadata or, in a checkout, from pyproject.toml.

    Raises:
        OSError: if neither exists.
        ModuleNotFoundError: if no TOML reader is installed.
    """
    try:
        metadata = importlib.metadata.metadata(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        project = _parse_toml(_checkout_file("pyproject.toml").read_text(encoding="utf-8"))["project"]
        return project["requires-python"], tuple(project["dependencies"])
    return metadata["Requires-Python"], tuple(metadata.get_all("Requires-Dist") or ())


def tfx_line(packages: Packages) -> str:
    """Return the major and minor version of the installed TFX, such as "1.16"; empty without TFX."""
    return ".".join(packages["tfx"].version.split(".")[:2]) if "tfx" in packages else ""


def unmet_requirements(requirements: Iterable[str], packages: Packages) -> list[PackageFault]:
    """Return the missing and wrong packages among the requirements and their requirements in turn."""
    faults = []
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(text, PROJECT, frozenset[str]()) for text in requirements]
    while waiting:
        text, wanted_by, extras = waiting.pop(0)
        requirement = _parse_requirement(text)
        if requirement is None or not _applies(requirement, extras):
            continue
        name = canonicalize_name(requirement.name)
        package = packages.get(name)
        found = package.version if package else "missing"
        if package is None or not _is_in(package.version, requirement):
            faults.append(_unmet(requirement, found, wanted_by, packages))
        key = (name, frozenset(requirement.extras))
        if package is not None and key not in seen:
            seen.add(key)
            waiting += [(below, name, key[1]) for below in package.requires]
    return list(dict.fromkeys(faults))


def differences_from_pins(packages: Packages, pins: str, *, may_lack: bool = False) -> list[str]:
    """Return "name installed (pinned)" for each package that differs from a constraints file.

    Args:
        may_lack: ignore missing packages. The file also pins development tools, which images do not contain.
    """
    differences = []
    for line in pins.splitlines():
        requirement = _parse_requirement(line.partition(" #")[0].strip())
        if requirement is None or not _applies(requirement, frozenset()):
            continue
        package = packages.get(canonicalize_name(requirement.name))
        pinned = str(requirement.specifier).removeprefix("==")
        if package is None:
            differences += [] if may_lack else [f"{requirement.name} missing ({pinned})"]
        elif not _is_in(package.version, requirement):
            differences.append(f"{requirement.name} {package.version} ({pinned})")
    return differences


def pins_file(line: str) -> Path | None:
    """Return the constraints file of a TFX line; None if it does not exist or detloom runs outside of a checkout."""
    file = _checkout_file(f"constraints/tfx-{line}.txt")
    return file if file.is_file() else None


_SLOW_IMPORT = "with later releases the import of TFX takes 22 to 44 s instead of 7"
# Versions that pip installs with TFX 1.16 without a warning. constraints/tfx-1.16.in gives the reasons.
_KNOWN_BAD_WITH_1_16: tuple[tuple[str, Literal["warning", "error"], str], ...] = (
    ("setuptools<81", "error", "TFX 1.16 imports pkg_resources, which later releases drop"),
    ("google-api-core<2.28", "warning", _SLOW_IMPORT),
    ("google-auth<2.42", "warning", _SLOW_IMPORT),
    ("google-cloud-aiplatform<1.72", "warning", _SLOW_IMPORT),
)


def known_bad(packages: Packages) -> Iterator[PackageFault]:
    """Yield combinations that the packages' metadata allows, but that do not work or work badly."""
    line = tfx_line(packages)
    if line == "1.16":
        for text, status, reason in _KNOWN_BAD_WITH_1_16:
            requirement = Requirement(text)
            package = packages.get(requirement.name)
            if package is not None and not _is_in(package.version, requirement):
                yield PackageFault(
                    status=status,
                    name=requirement.name,
                    found=package.version,
                    wanted=f"{requirement.specifier}: {reason}",
                    next_step=_pip_install(text, packages),
                )
        if "dill" not in packages:
            beam = packages.get("apache-beam")
            yield PackageFault(
                status="error",
                name="dill",
                found=f"missing beside apache-beam {beam.version if beam else '(missing)'}",
                wanted="any: tfx-bsl 1.16 imports it, and only Beam before 2.65 installs it",
                next_step=_pip_install("apache-beam==2.61.0", packages),
            )
    if line and line not in TFX_LINES:
        yield PackageFault(
            status="warning",
            name="tfx",
            found=packages["tfx"].version,
            wanted=f"{' or '.join(TFX_LINES)}, the versions that detloom is tested with",
            next_step=f"pip install -c constraints/tfx-{TFX_LINES[0]}.txt 'tfx=={TFX_LINES[0]}.0' in a new environment",
        )


def _checkout_file(name: str) -> Path:
    return Path(detloom.__file__).resolve().parent.parent / name


def _parse_toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _parse_requirement(text: str) -> Requirement | None:
    if not text or text.startswith(("#", "-")):
        return None
    try:
        return Requirement(text)
    except InvalidRequirement:  # old packages use a syntax that pip rejects; pip skips it as well
        return None


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""}))


def _is_in(version: str, requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # the version cannot be compared


def _unmet(requirement: Requirement, found: str, wanted_by: str, packages: Packages) -> PackageFault:
    wanted = str(requirement.specifier) or "any version"
    return PackageFault(
        status="error",
        name=requirement.name,
        found=found,
        wanted=f"{wanted}, required by {wanted_by}",
        next_step=_pip_install(f"{requirement.name}{requirement.specifier}", packages),
    )


def _pip_install(requirement: str, packages: Packages) -> str:
    line = tfx_line(packages)
    constraints = f"-c constraints/tfx-{line if line in TFX_LINES else TFX_LINES[0]}.txt"
    return f"pip install {constraints} '{requirement}'"
