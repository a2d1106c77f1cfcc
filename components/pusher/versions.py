"""Read the state of the versions in a push folder, and choose the version that a rollback restores."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detloom.components.pusher.destination import MODEL_FILE, Destination
from detloom.components.pusher.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_RECORD_BYTES,
    RECORD_FILE,
    Manifest,
    Origin,
    is_finite,
    parse_manifest,
    parse_records,
)
from detloom.components.pusher.push_to_bucket import PushBucket
from detloom.components.pusher.push_to_folder import PushFolder
from detloom.components.storage.bucket import BucketStorage
from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.storage import is_address, open_storage
from detloom.schemas.contracts.detections import ASSET_LABEL_MAP, MANIFEST_FILE
from detloom.schemas.contracts.label_map import describe_difference, keeps_ids, parse_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import MAX_BYTES, read_text_file
from detloom.schemas.run_file.push import ClassChange

LABEL_MAP_PATH = f"assets/{ASSET_LABEL_MAP}"  # in a SavedModel


def open_destination(address: "str | Path") -> Destination:
    """Open a local folder or a bucket."""
    storage = open_storage(address)
    return PushBucket(storage) if isinstance(storage, BucketStorage) else PushFolder(Path(address))


@dataclass(frozen=True, kw_only=True)
class VersionState:
    """State of one version.

    Attributes:
        is_served: True for the highest complete version, which servers take.
        push: its line of the push record, from its manifest; empty if unknown.
        problems: a line for each file that differs from the manifest; None for a version without a manifest.
    """

    version: int
    is_served: bool
    push: Mapping[str, Any]
    problems: tuple[str, ...] | None

    @property
    def is_blessed(self) -> bool | None:
        """Return None if there was no evaluation, as in a manual push."""
        blessing = self.push.get("blessing")
        value = blessing.get("blessed") if isinstance(blessing, dict) else None
        return value if isinstance(value, bool) else None

    def metric(self, name: str) -> float | None:
        """Return a metric; None if it is missing or not a finite number, because a manifest may come from elsewhere."""
        metrics = self.push.get("metrics")
        value = metrics.get(name) if isinstance(metrics, dict) else None
        return float(value) if is_finite(value) else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "is_served": self.is_served,
            "is_intact": None if self.problems is None else not self.problems,
            "problems": list(self.problems or ()),
            **{key: value for key, value in self.push.items() if key != "version"},
        }


def describe_versions(destination: Destination) -> list[VersionState]:
    """Return the state of each version, ascending. Every file is read and compared with the manifest."""
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
    """Return the versions that a server may load: in an object store those with a manifest and `saved_model.pb`."""
    if destination.requires_manifest:
        return list(pushed_versions(destination))
    return destination.versions()


def pushed_versions(destination: Destination) -> dict[int, Manifest]:
    """Return the complete versions with a manifest, ascending."""
    found = {version: read_version_manifest(destination, version) for version in destination.versions()}
    return {
        version: manifest
        for version, manifest in found.items()
        if manifest is not None
        and not (destination.requires_manifest and destination.read(f"{version}/{MODEL_FILE}", 0) is None)
    }


def read_version_manifest(destination: Destination, version: int) -> Manifest | None:
    """Return the manifest, also that of a version that is being pushed or removed; None if there is none."""
    data = destination.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
    return None if data is None or len(data) > MAX_MANIFEST_BYTES else parse_manifest(data)


def verify_version(destination: Destination, version: int) -> list[str]:
    """Return a line for each file of a version that differs from its manifest; empty if the version is intact."""
    if version not in destination.versions():
        return [f"{version}: no such version"]
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
    """Return the version that was served when this one was pushed, from its manifest; None if unknown."""
    manifest = read_version_manifest(destination, version)
    previous = manifest.push.get("previous_version") if manifest else None
    return previous if isinstance(previous, int) else None


def read_push_record(destination: Destination) -> list[dict[str, Any]]:
    """Return the lines of the push record, oldest first, without those that a crash truncated."""
    return parse_records(destination.read(RECORD_FILE, MAX_RECORD_BYTES) or b"")


def choose_target(destination: Destination) -> int:
    """Return the version that `find_target` finds.

    Raises:
        InputError: there is none.
    """
    target = find_target(destination)
    if target is None:
        raise InputError(
            f"{redact(destination.address)}: there is no earlier version to roll back to: each one is damaged, was "
            f"rolled back, or is the model of version {max(complete_versions(destination))}; choose one with --to."
        )
    return target


def find_target(destination: Destination) -> int | None:
    """Return the newest intact version whose model differs from the served one and was never rolled back."""
    pushed = pushed_versions(destination)
    served = max(complete_versions(destination))
    bad = rolled_back_identities(destination, pushed)
    if served in pushed:
        bad.add(pushed[served].identity)
    for version in sorted(pushed, reverse=True):
        if version < served and pushed[version].identity not in bad and not verify_version(destination, version):
            return version
    return None


def rolled_back_identities(destination: Destination, pushed: Mapping[int, Manifest]) -> set[str]:
    """Return the identities of models that were rolled back, and neither pushed nor restored since.

    Args:
        pushed: the versions with a manifest, from `pushed_versions`.
    """
    # The line of a push that was killed, or found the disk full, is in the manifest only.
    lines = {version: manifest.push for version, manifest in pushed.items() if manifest.push.get("version") == version}
    records = {**lines, **{record["version"]: record for record in read_push_record(destination)}}

    def identity_of(version: int) -> str:
        manifest = pushed.get(version)  # lines of earlier detloom versions have no identity
        return manifest.identity if manifest is not None else str(records[version].get("identity"))

    bad: set[str] = set()
    for version, record in sorted(records.items()):
        replaced = record.get("previous_version")
        if record.get("action") == "rollback" and isinstance(replaced, int) and replaced in records:
            bad.add(identity_of(replaced))
        bad.discard(identity_of(version))
    return bad


def find_class_change(destination: Destination, model_dir: Path, allowed: ClassChange) -> str:
    """Return how the classes of a model differ from those of the version that serves; empty if that is allowed."""
    versions = sorted(complete_versions(destination), reverse=True)  # of a folder also those without a model
    served = next((each for each in versions if destination.read(f"{each}/{MODEL_FILE}", 0) is not None), None)
    if served is None:
        return ""
    content = destination.read(f"{served}/{LABEL_MAP_PATH}", MAX_BYTES)
    return describe_class_change(f"{redact(destination.address)}/{served}", content, model_dir, allowed)


def describe_class_change(where: str, content: bytes | None, model_dir: Path, allowed: ClassChange) -> str:
    """Return how the classes of a model differ from those that serve, as a sentence without a full stop.

    Args:
        where: address of the model that serves.
        content: its label map; None if it has none.

    Returns:
        An empty text if the model may replace it.
    """
    path = model_dir / LABEL_MAP_PATH
    if allowed == "any" or (content is None and not path.is_file()):  # without label maps, no client reads classes
        return ""
    if content is None:
        return f"{where}: the model that serves has no {LABEL_MAP_PATH}, so its classes are unknown"
    try:
        served = parse_label_map(content.decode("utf-8", errors="replace"), f"{where}/{LABEL_MAP_PATH}")
    except InputError as error:
        return f"{str(error).rstrip('.')}, so the classes that {where} serves are unknown"
    if not path.is_file():
        return f"{model_dir} has no {LABEL_MAP_PATH}, so its classes cannot be compared with those that {where} serves"
    now = parse_label_map(read_text_file(path), str(path))
    difference = describe_difference(served, now)
    if difference is None or (allowed == "grow" and keeps_ids(served, now)):
        return ""
    effect = "clients would get ids with another meaning"
    if keeps_ids(served, now):
        effect = "the classes that serve keep their ids, which allow_class_change: grow permits"
    return f"{where}: serves other classes than this model ({difference}); {effect}"


def manifest_to_restore(destination: Destination, version: int) -> Manifest:
    """Return the manifest of the version to restore.

    Raises:
        InputError: the version does not exist or has no manifest.
    """
    manifest = read_version_manifest(destination, version)
    if manifest is None:
        pushed = ", ".join(map(str, pushed_versions(destination))) or "none"
        raise InputError(
            f"{redact(destination.address)}: version {version} does not exist or has no manifest; allowed: {pushed}. A "
            "version without a manifest can be pushed with detloom push."
        )
    return manifest


def check_intact(destination: Destination, version: int, wrong: list[str]) -> None:
    """Raise InputError if `wrong`, a list of files that differ from the manifest, is not empty."""
    if wrong:
        raise InputError(
            f"{redact(destination.address)}/{version}: differs from what was pushed ({'; '.join(wrong[:3])}); choose "
            "another version with --to."
        )


def origin_of_rollback(manifest: Manifest, destination: Destination, version: int, reason: str) -> Origin:
    """Return the origin for the record: the given reason, and blessing and metrics of the restored version."""
    push = manifest.push
    blessing, metrics = push.get("blessing"), push.get("metrics")
    return Origin(
        model_uri=str(push.get("model_uri") or f"{destination.address}/{version}"),
        reason=reason,
        blessing=blessing if isinstance(blessing, dict) else {},
        metrics=metrics if isinstance(metrics, dict) else {},
    )


@contextlib.contextmanager
def local_model(address: str) -> Iterator[Path]:
    """Yield a local folder as it is, and a temporary copy of a model at an address, with its push manifest.

    Of a folder of versions, the highest complete version is copied. The copy has the name of the model's folder.

    Raises:
        InputError: the address names no file, or the copy does not fit on the disk.
        OSError: the storage does not respond.
    """
    version = max(complete_versions(open_destination(address)), default=None) if is_address(address) else None
    chosen = address if version is None else f"{address.rstrip('/')}/{version}"
    with local_folder(chosen) as folder:
        yield folder
