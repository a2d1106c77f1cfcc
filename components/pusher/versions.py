"""What there is to know of the versions in a push folder, read from it alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.components.pusher.destination import Destination
from detloom.components.pusher.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from detloom.components.pusher.push_record import MAX_RECORD_BYTES, RECORD_FILE, parse_records
from detloom.schemas.errors import InputError


@dataclass(frozen=True, kw_only=True)
class VersionState:
    """One version.

    Attributes:
        is_served: whether a server that takes the highest complete version takes this one.
        push: its line of the push record, as its manifest holds it; empty where nobody knows.
        problems: a line for each file that is not as pushed; None for a version without a manifest.
    """

    version: int
    is_served: bool
    push: Mapping[str, Any]
    problems: tuple[str, ...] | None

    @property
    def is_blessed(self) -> bool | None:
        """None where no evaluation was asked, as in a push by hand."""
        blessing = self.push.get("blessing")
        value = blessing.get("blessed") if isinstance(blessing, dict) else None
        return value if isinstance(value, bool) else None

    def metric(self, name: str) -> float | None:
        metrics = self.push.get("metrics")
        value = metrics.get(name) if isinstance(metrics, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "is_served": self.is_served,
            "is_intact": None if self.problems is None else not self.problems,
            "problems": list(self.problems or ()),
            **{key: value for key, value in self.push.items() if key != "version"},
        }


def describe_versions(destination: Destination) -> list[VersionState]:
    """Ascending; every file is read and compared with its manifest."""
    served = max(complete_versions(destination), default=None)
    states = []
    for version in destination.versions():
        manifest = read_version_manifest(destination, version)
        states.append(
            VersionState(
                version=version,
                is_served=version == served,
                push=manifest.push if manifest else {},
                problems=tuple(verify_version(destination, version)) if manifest else None,
            )
        )
    return states


def complete_versions(destination: Destination) -> list[int]:
    """What a server may take: where a number may stand for something half written, only what has a manifest."""
    if destination.requires_manifest:
        return list(pushed_versions(destination))
    return destination.versions()


def pushed_versions(destination: Destination) -> dict[int, Manifest]:
    """The versions with a manifest, ascending."""
    found = {version: read_version_manifest(destination, version) for version in destination.versions()}
    return {version: manifest for version, manifest in found.items() if manifest is not None}


def read_version_manifest(destination: Destination, version: int) -> Manifest | None:
    """None for a version that detloom has not pushed, or not to the end."""
    data = destination.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
    return None if data is None or len(data) > MAX_MANIFEST_BYTES else parse_manifest(data)


def verify_version(destination: Destination, version: int) -> list[str]:
    """What is wrong with a version, a line for each file; empty if it is what was pushed."""
    if version not in destination.versions():
        return [f"{version}: there is no such version"]
    manifest = read_version_manifest(destination, version)
    if manifest is None:
        return [f"{MANIFEST_FILE}: is missing or cannot be read"]
    try:
        return manifest.differences_from(destination.measure(version))
    except InputError as error:
        return [str(error)]
    except OSError as error:
        return [f"{version}: cannot be read ({error.strerror or error})"]


def find_previous_version(destination: Destination, version: int) -> int | None:
    """The one that was served when this one was pushed, as its manifest says; None where nobody knows."""
    manifest = read_version_manifest(destination, version)
    previous = manifest.push.get("previous_version") if manifest else None
    return previous if isinstance(previous, int) else None


def read_push_record(destination: Destination) -> list[dict[str, Any]]:
    """Its lines, oldest first, without one that a crash cut off."""
    return parse_records(destination.read(RECORD_FILE, MAX_RECORD_BYTES) or b"")
