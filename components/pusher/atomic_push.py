"""Put a model where a server looks for versions, so that a version is there whole or not at all.

Layout of the push folder, as TensorFlow Serving and KServe read it (they ignore every name that is not a number):

    1760000000/                            one version: the SavedModel as exported
        assets.extra/push_manifest.json    sizes and SHA-256 of its files, and who pushed it
        assets.extra/model_card.*          the model card, where there is one
    push_record.jsonl                      one line for each push and rollback
    .push-1760000001/                      a copy in the making; a killed push leaves it, the next one removes it
    .trash-1750000000/                     a version on its way out
    .push.lock                             held while pushing; the system releases it when its owner dies

The manifest lies inside the version, so that one rename makes both visible. It repeats the line of the record: one that
could not be written any more is written by the next push. `object_store.py` says what differs without rename.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detloom.components.pusher.destination import MODEL_FILE, SCHEME_MARK, Destination, next_version, open_destination
from detloom.components.pusher.load_check import LoadCheck, check_serves
from detloom.components.pusher.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Manifest,
    find_card,
    find_files,
    measure_files,
    parse_manifest,
)
from detloom.components.pusher.push_record import (
    MAX_RECORD_BYTES,
    RECORD_FILE,
    Action,
    Origin,
    make_record,
    parse_records,
)
from detloom.schemas.errors import InputError
from detloom.schemas.push_config import LOCK_SECONDS, check_keep_versions
from detloom.schemas.redact import redact

_LOGGER = logging.getLogger("detloom")
Address = Path | str


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """`is_new` is false when the latest version was this model already; `digest` names its content."""

    version: int
    address: str
    digest: str
    previous_version: int | None
    is_new: bool

    @property
    def path(self) -> Path:
        """Of a version on a file system."""
        return Path(self.address)


def push_model(
    model_dir: Path,
    push_dir: Address,
    *,
    origin: Origin | None = None,
    model_uri: str = "",
    card_dir: Path | None = None,
    keep_versions: int = 0,
    lock_seconds: float = LOCK_SECONDS,
    check: LoadCheck = check_serves,
    now: Callable[[], float] = time.time,
) -> PushResult:
    """Copy the SavedModel beside the versions, verify and load the copy, make it the next version in one step.

    The version is the time in seconds, or one more than any number before, so it always grows. If the highest version
    has the same content already, nothing is copied. Whenever this stops, the versions in `push_dir` are complete ones.

    Args:
        push_dir: a folder, or the address of one in a storage that TFX's filesystem layer knows.
        origin: for the record; `model_uri` alone is enough.
        card_dir: its model card goes along. A new card of the same model is no new version.
        keep_versions: complete versions that stay; 0 keeps all.
        lock_seconds: how long another push is waited for.
        check: raises InputError for a copy that cannot be served.

    Raises:
        InputError: `model_dir` is no SavedModel, cannot be served, `push_dir` cannot be written, or another push is
            under way there.
        OSError: the copy failed or differs from the original; nothing was changed.
    """
    check_keep_versions(keep_versions)
    if not (model_dir / MODEL_FILE).is_file():
        raise InputError(f"{model_dir}: no SavedModel to push ({MODEL_FILE} is missing).")
    if SCHEME_MARK not in str(push_dir) and Path(push_dir).resolve().is_relative_to(model_dir.resolve()):
        raise InputError(f"{push_dir}: lies in the model {model_dir}; push to a folder outside of it.")
    origin = origin or Origin(model_uri=model_uri or str(model_dir))
    destination = open_destination(push_dir)
    with destination.lock(lock_seconds, origin.run_id) as check_held:
        version = _next_version(destination, now())
        destination.remove_leftovers()
        sources = {**find_files(model_dir), **find_card(card_dir)}
        push = _Push(destination, version, sources, measure_files(sources), origin, "push", check, check_held, now)
        result = push.place()
        _remove_old(destination, keep_versions, (result.version, result.previous_version))
    return result


def roll_back(
    push_dir: Address,
    *,
    reason: str,
    to: int | None = None,
    remove_replaced: bool = False,
    lock_seconds: float = LOCK_SECONDS,
    check: LoadCheck = check_serves,
    now: Callable[[], float] = time.time,
) -> PushResult:
    """Serve an earlier version again: as a copy under the next number, for a server takes the highest.

    Args:
        to: version to go back to; by default the newest intact one with another model than the served one, of the
            models that were not themselves rolled back.
        remove_replaced: delete the version that is served now, afterwards.

    Raises:
        InputError: there is no such version, or it is not what its manifest says.
        OSError: as for `push_model`.
    """
    if not reason.strip():
        raise InputError("rollback: got no reason, needed: why, for the record.")
    destination = open_destination(push_dir)
    if not _pushed_versions(destination):
        raise InputError(f"{redact(destination.address)}: holds no version to go back to.")
    with destination.lock(lock_seconds, "") as check_held:
        version = _next_version(destination, now())
        destination.remove_leftovers()
        of_version = _choose_target(destination) if to is None else to
        before = _manifest_to_restore(destination, of_version)
        with destination.fetch(of_version) as folder:
            sources = find_files(folder)
            manifest = measure_files(sources)
            _refuse_damaged(destination, of_version, before.differences_from(manifest.files))
            origin = _origin_of(before, destination, of_version, reason)
            push = _Push(
                destination, version, sources, manifest, origin, "rollback", check, check_held, now, of_version
            )
            result = push.place()
        if result.is_new and remove_replaced and result.previous_version is not None:
            _remove(destination, result.previous_version)
    return result


def list_versions(push_dir: Address) -> list[int]:
    """Ascending; every one is complete."""
    return complete_versions(open_destination(push_dir))


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


def read_version_manifest(destination: Destination, version: int) -> Manifest | None:
    """None for a version that detloom has not pushed, or not to the end."""
    data = destination.read(f"{version}/{MANIFEST_FILE}", MAX_MANIFEST_BYTES)
    return None if data is None or len(data) > MAX_MANIFEST_BYTES else parse_manifest(data)


def read_manifest(version_dir: Path) -> Manifest | None:
    """The manifest inside a version's folder."""
    try:
        return parse_manifest((version_dir / MANIFEST_FILE).read_bytes())
    except OSError:
        return None


def read_records(push_dir: Address) -> list[dict[str, Any]]:
    """The push record, oldest first, without a line that a crash cut off."""
    return _records(open_destination(push_dir))


@dataclass
class _Push:
    """One push or rollback, while the lock is held; `version` is the number for what is new."""

    destination: Destination
    version: int
    sources: Mapping[str, Path]
    manifest: Manifest
    origin: Origin
    action: Action
    check: LoadCheck
    check_held: Callable[[], None]
    now: Callable[[], float]
    of_version: int | None = None

    def place(self) -> PushResult:
        """The version that holds the model: the latest, or a new one."""
        _complete_record(self.destination)
        manifest = self.manifest
        latest = max(complete_versions(self.destination), default=None)
        if latest is not None and self._holds(latest, manifest):
            return self._result(latest, manifest, _previous_of(self.destination, latest), is_new=False)
        version = self.version
        record = make_record(
            self.origin,
            action=self.action,
            now=self.now(),
            version=version,
            digest=manifest.digest,
            previous_version=latest,
            of_version=self.of_version,
        )
        manifest = replace(manifest, push=record)
        self.destination.place(version, self.sources, manifest, self.check, self.check_held)
        _append_record(self.destination, record)
        return self._result(version, manifest, latest, is_new=True)

    def _holds(self, version: int, manifest: Manifest) -> bool:
        """Whether the version is this model and intact."""
        there = read_version_manifest(self.destination, version)
        return there is not None and there.digest == manifest.digest and not verify_version(self.destination, version)

    def _result(self, version: int, manifest: Manifest, previous: int | None, *, is_new: bool) -> PushResult:
        return PushResult(
            version=version,
            address=f"{self.destination.address}/{version}",
            digest=manifest.digest,
            previous_version=previous,
            is_new=is_new,
        )


def _pushed_versions(destination: Destination) -> dict[int, Manifest]:
    """The versions with a manifest, ascending."""
    found = {version: read_version_manifest(destination, version) for version in destination.versions()}
    return {version: manifest for version, manifest in found.items() if manifest is not None}


def complete_versions(destination: Destination) -> list[int]:
    """What a server may take: where a number may stand for something half written, only what has a manifest."""
    if destination.requires_manifest:
        return list(_pushed_versions(destination))
    return destination.versions()


def _next_version(destination: Destination, now: float) -> int:
    """Asked before anything is removed: a number that a copy was given is not given again, whatever became of it."""
    return next_version(destination.names(), (record["version"] for record in _records(destination)), now)


def _records(destination: Destination) -> list[dict[str, Any]]:
    return parse_records(destination.read(RECORD_FILE, MAX_RECORD_BYTES) or b"")


def _previous_of(destination: Destination, version: int) -> int | None:
    manifest = read_version_manifest(destination, version)
    previous = manifest.push.get("previous_version") if manifest else None
    return previous if isinstance(previous, int) else None


def _complete_record(destination: Destination) -> None:
    """Write the lines of pushes that were killed between their version and their line."""
    recorded = {record["version"] for record in _records(destination)}
    for version, manifest in _pushed_versions(destination).items():
        if version not in recorded and manifest.push.get("version") == version:
            _append_record(destination, manifest.push)


def _append_record(destination: Destination, record: Mapping[str, Any]) -> None:
    try:
        destination.append_record(json.dumps(record))
    except OSError as error:  # the version is there, and its manifest holds the line
        _LOGGER.warning(
            "%s: %s could not be written (%s); the next push writes the line of version %s.",
            redact(destination.address),
            RECORD_FILE,
            error.strerror or error,
            record["version"],
        )


def _remove_old(destination: Destination, keep_versions: int, always: tuple[int | None, ...]) -> None:
    """Remove the oldest versions that were pushed here, but for the one that a rollback would take."""
    if not keep_versions:
        return
    try:
        pushed = _pushed_versions(destination)
        # Another number in the manifest: somebody has copied the version to here.
        ours = [version for version, manifest in pushed.items() if manifest.push.get("version", version) == version]
        old = [version for version in ours[:-keep_versions] if version not in always]
        spared = _find_target(destination) if old else None
    except (OSError, InputError) as error:  # as below
        _LOGGER.warning("%s: old versions could not be looked for (%s).", redact(destination.address), error)
        return
    for version in old:
        if version != spared:
            _remove(destination, version)


def _remove(destination: Destination, version: int) -> None:
    where = redact(destination.address)
    try:
        destination.remove_version(version)
        _LOGGER.info("%s: removed version %d.", where, version)
    except OSError as error:  # the push itself is done
        _LOGGER.warning("%s: version %d could not be removed (%s).", where, version, error.strerror or error)


def _choose_target(destination: Destination) -> int:
    target = _find_target(destination)
    if target is None:
        raise InputError(
            f"{redact(destination.address)}: no earlier version is intact, of another model than version "
            f"{max(complete_versions(destination))}, and was not rolled back itself; name one with --to."
        )
    return target


def _find_target(destination: Destination) -> int | None:
    """The newest intact version of another model than the served one, and of none that was rolled back."""
    pushed = _pushed_versions(destination)
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
    records = {**lines, **{record["version"]: record for record in _records(destination)}}
    bad: set[str] = set()
    for _, record in sorted(records.items()):
        replaced = record.get("previous_version")
        if record.get("action") == "rollback" and isinstance(replaced, int) and replaced in records:
            bad.add(str(records[replaced].get("manifest_sha256")))
        bad.discard(str(record.get("manifest_sha256")))
    return bad


def _manifest_to_restore(destination: Destination, version: int) -> Manifest:
    manifest = read_version_manifest(destination, version)
    if manifest is None:
        pushed = ", ".join(map(str, _pushed_versions(destination))) or "none"
        raise InputError(
            f"{redact(destination.address)}: got version {version}, which is not there or has no manifest to verify it "
            f"by; allowed: {pushed}. What lies there without one can be pushed with detloom push."
        )
    return manifest


def _refuse_damaged(destination: Destination, version: int, wrong: list[str]) -> None:
    if wrong:
        raise InputError(
            f"{redact(destination.address)}/{version}: is not what was pushed ({'; '.join(wrong[:3])}); choose another "
            "version with --to."
        )


def _origin_of(manifest: Manifest, destination: Destination, version: int, reason: str) -> Origin:
    """Of a rollback: our word, the blessing and the numbers of the version that comes back."""
    push = manifest.push
    blessing, metrics = push.get("blessing"), push.get("metrics")
    return Origin(
        model_uri=str(push.get("model_uri") or f"{destination.address}/{version}"),
        reason=reason,
        blessing=blessing if isinstance(blessing, dict) else {},
        metrics=metrics if isinstance(metrics, dict) else {},
    )
