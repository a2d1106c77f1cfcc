"""What a rollback goes back to: which version, whether that may be, and what the record says of it."""

from collections.abc import Mapping

from detloom.components.pusher.destination import Destination
from detloom.components.pusher.manifest import Manifest
from detloom.components.pusher.push_record import Origin
from detloom.components.pusher.versions import (
    complete_versions,
    pushed_versions,
    read_push_record,
    read_version_manifest,
    verify_version,
)
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact


def choose_target(destination: Destination) -> int:
    """As `find_target`, where no version is named.

    Raises:
        InputError: there is none.
    """
    target = find_target(destination)
    if target is None:
        raise InputError(
            f"{redact(destination.address)}: no earlier version is intact, of another model than version "
            f"{max(complete_versions(destination))}, and was not rolled back itself; name one with --to."
        )
    return target


def find_target(destination: Destination) -> int | None:
    """The newest intact version of another model than the served one, and of none that was rolled back."""
    pushed = pushed_versions(destination)
    served = max(complete_versions(destination))
    bad = _rolled_back(destination, pushed)
    if served in pushed:
        bad.add(pushed[served].digest)
    for version in sorted(pushed, reverse=True):
        if version < served and pushed[version].digest not in bad and not verify_version(destination, version):
            return version
    return None


def _rolled_back(destination: Destination, pushed: Mapping[int, Manifest]) -> set[str]:
    """Digests of the models that were rolled back and not pushed, or rolled back to, again after that."""
    # A push that was killed, or met a full disk, has its line in its manifest alone.
    lines = {version: manifest.push for version, manifest in pushed.items() if manifest.push.get("version") == version}
    records = {**lines, **{record["version"]: record for record in read_push_record(destination)}}
    bad: set[str] = set()
    for _, record in sorted(records.items()):
        replaced = record.get("previous_version")
        if record.get("action") == "rollback" and isinstance(replaced, int) and replaced in records:
            bad.add(str(records[replaced].get("manifest_sha256")))
        bad.discard(str(record.get("manifest_sha256")))
    return bad


def manifest_to_restore(destination: Destination, version: int) -> Manifest:
    """What the version held when it was pushed.

    Raises:
        InputError: nobody knows, or there is no such version.
    """
    manifest = read_version_manifest(destination, version)
    if manifest is None:
        pushed = ", ".join(map(str, pushed_versions(destination))) or "none"
        raise InputError(
            f"{redact(destination.address)}: got version {version}, which is not there or has no manifest to verify it "
            f"by; allowed: {pushed}. What lies there without one can be pushed with detloom push."
        )
    return manifest


def check_intact(destination: Destination, version: int, wrong: list[str]) -> None:
    """Raises InputError if there is a line in `wrong`, one for each file that is not as pushed."""
    if wrong:
        raise InputError(
            f"{redact(destination.address)}/{version}: is not what was pushed ({'; '.join(wrong[:3])}); choose another "
            "version with --to."
        )


def origin_of_rollback(manifest: Manifest, destination: Destination, version: int, reason: str) -> Origin:
    """Our word, the blessing and the numbers of the version that comes back."""
    push = manifest.push
    blessing, metrics = push.get("blessing"), push.get("metrics")
    return Origin(
        model_uri=str(push.get("model_uri") or f"{destination.address}/{version}"),
        reason=reason,
        blessing=blessing if isinstance(blessing, dict) else {},
        metrics=metrics if isinstance(metrics, dict) else {},
    )
