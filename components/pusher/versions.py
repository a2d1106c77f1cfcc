"""What there is to know of the versions in a push folder, read from it alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.components.pusher.atomic_push import complete_versions, read_version_manifest, verify_version
from detloom.components.pusher.destination import Destination


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
