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
from detloom.components.pusher.manifest import Manifest, find_card, find_files, measure_files
from detloom.components.pusher.push_record import RECORD_FILE, Action, Origin, make_record
from detloom.components.pusher.rollback_target import (
    check_intact,
    choose_target,
    find_target,
    manifest_to_restore,
    origin_of_rollback,
)
from detloom.components.pusher.versions import (
    complete_versions,
    find_previous_version,
    pushed_versions,
    read_push_record,
    read_version_manifest,
    verify_version,
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
    if not pushed_versions(destination):
        raise InputError(f"{redact(destination.address)}: holds no version to go back to.")
    with destination.lock(lock_seconds, "") as check_held:
        version = _next_version(destination, now())
        destination.remove_leftovers()
        of_version = choose_target(destination) if to is None else to
        before = manifest_to_restore(destination, of_version)
        with destination.fetch(of_version) as folder:
            sources = find_files(folder)
            manifest = measure_files(sources)
            check_intact(destination, of_version, before.differences_from(manifest.files))
            origin = origin_of_rollback(before, destination, of_version, reason)
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


def read_records(push_dir: Address) -> list[dict[str, Any]]:
    """The push record, oldest first, without a line that a crash cut off."""
    return read_push_record(open_destination(push_dir))


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
            return self._result(latest, manifest, find_previous_version(self.destination, latest), is_new=False)
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


def _next_version(destination: Destination, now: float) -> int:
    """Asked before anything is removed: a number that a copy was given is not given again, whatever became of it."""
    return next_version(destination.names(), (record["version"] for record in read_push_record(destination)), now)


def _complete_record(destination: Destination) -> None:
    """Write the lines of pushes that were killed between their version and their line."""
    recorded = {record["version"] for record in read_push_record(destination)}
    for version, manifest in pushed_versions(destination).items():
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
        pushed = pushed_versions(destination)
        # Another number in the manifest: somebody has copied the version to here.
        ours = [version for version, manifest in pushed.items() if manifest.push.get("version", version) == version]
        old = [version for version in ours[:-keep_versions] if version not in always]
        spared = find_target(destination) if old else None
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
