"""Push a model into the folder that a model server watches. A server loads complete versions only.

Layout of the push folder. TensorFlow Serving and KServe ignore every name that is not a number:

    1760000000/                            one version: the SavedModel as exported
        assets.extra/push_manifest.json    sizes and SHA-256 of its files, and who pushed it
        assets.extra/model_card.*          the model card, if there is one
    push_record.jsonl                      one line for each push and rollback
    config.pbtxt                           for NVIDIA Triton, once a version with model.onnx was pushed
    .push-1760000001/                      an unfinished copy; the next push removes what a killed push left
    .trash-1750000000/                     a version that is being deleted
    .push.lock                             locked while a push runs; the system releases it when its owner dies

The manifest is inside the version, so that one rename publishes both. It contains the line of the push record as well:
if a push could not write that line, the next push does. See `push_to_bucket.py` for storages without rename.
"""

import json
import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detloom.components.pusher.destination import MODEL_FILE, Destination, next_version
from detloom.components.pusher.load_check import LoadCheck, check_serves
from detloom.components.pusher.manifest import (
    RECORD_FILE,
    Action,
    Manifest,
    Origin,
    check_is_evaluated,
    find_card,
    find_files,
    make_record,
    measure_files,
)
from detloom.components.pusher.triton_config import format_triton_config, write_triton_config
from detloom.components.pusher.versions import (
    check_intact,
    choose_target,
    complete_versions,
    find_class_change,
    find_previous_version,
    find_target,
    manifest_to_restore,
    open_destination,
    origin_of_rollback,
    pushed_versions,
    read_push_record,
    read_version_manifest,
    rolled_back_identities,
    verify_version,
)
from detloom.components.storage.storage import is_address
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape, redact, show_address
from detloom.schemas.run_file.push import LOCK_SECONDS, ClassChange, check_kept, is_remote

_LOGGER = logging.getLogger("detloom")
Address = Path | str


class NotPushedError(InputError):
    """The model may not replace the one that serves without a person's decision."""


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """Result of a push or rollback.

    Attributes:
        digest: identifies the content of the model.
        is_new: False if the latest version already was this model.
    """

    version: int
    address: str
    digest: str
    previous_version: int | None
    is_new: bool

    @property
    def path(self) -> Path:
        """Return the folder of the version, if it is on a file system."""
        return Path(self.address)


def push_model(
    model_dir: Path,
    push_dir: Address,
    *,
    origin: Origin | None = None,
    card_dir: Path | None = None,
    keep_versions: int = 0,
    allow_class_change: ClassChange = "none",
    allow_rolled_back: bool = True,
    expected_digest: str = "",
    lock_seconds: float = LOCK_SECONDS,
    check: LoadCheck = check_serves,
    now: Callable[[], float] = time.time,
) -> PushResult:
    """Copy the SavedModel, verify and load the copy, then publish it next to the versions.

    The version number is the Unix time in seconds, or the highest number so far plus one, so it always increases. If
    the highest version already has the same content, nothing is copied. The versions in `push_dir` are complete at any
    point at which this function may be interrupted.

    Args:
        push_dir: a folder, or an address in a bucket.
        origin: for the push record.
        card_dir: folder of a model card to store with the model. A changed card alone makes no new version.
        keep_versions: number of complete versions to keep; 0 keeps all.
        allow_class_change: label maps that may replace that of the version that serves now.
        allow_rolled_back: False refuses a model that was rolled back here, and neither pushed nor restored since.
        expected_digest: `Manifest.digest` of the files that were evaluated; empty if there was no evaluation.
        lock_seconds: how long to wait for another push.
        check: raises InputError for a copy that cannot be served.

    Raises:
        NotPushedError: see `allow_class_change` and `allow_rolled_back`.
        InputError: the files are not those that were evaluated, `model_dir` is not a SavedModel or cannot be served,
            `push_dir` cannot be written or was changed by the model, or another push is running there.
        OSError: the copy failed or differs from the original; nothing was changed.
    """
    check_kept("keep_versions", keep_versions)
    if not (model_dir / MODEL_FILE).is_file():
        raise InputError(f"{model_dir}: not a SavedModel ({MODEL_FILE} is missing).")
    if not is_address(str(push_dir)) and Path(push_dir).resolve().is_relative_to(model_dir.resolve()):
        raise InputError(f"{push_dir}: is inside the model {model_dir}; push to a folder outside of it.")
    origin = origin or Origin(model_uri=str(model_dir))
    destination = open_destination(push_dir)
    with destination.lock(lock_seconds, origin.run_id) as check_held:
        version = _next_version(destination, now())
        destination.remove_leftovers()
        sources = {**find_files(model_dir), **find_card(card_dir)}
        manifest = measure_files(sources)
        check_is_evaluated(manifest, expected_digest, origin.model_uri)
        if change := find_class_change(destination, model_dir, allow_class_change):
            card = None if is_address(origin.model_uri) else card_dir  # else it is a temporary copy
            how = _how_to_push(origin.model_uri, destination.address, card, allow_class_change=True)
            raise NotPushedError(f"{change}. The push's setting allow_class_change permits it. {how}")
        rolled_back = rolled_back_identities(destination, pushed_versions(destination))
        if not allow_rolled_back and manifest.identity in rolled_back:
            raise NotPushedError(
                f"{redact(destination.address)}: this model was served before and was rolled back, so it is not pushed "
                f"again. {_how_to_push(origin.model_uri, destination.address)}"
            )
        push = _Push(destination, version, sources, manifest, origin, "push", check, check_held, now)
        result = push.place()
        _remove_old(destination, keep_versions, (result.version, result.previous_version), check_held)
    return result


def _how_to_push(model: str, push_to: str, card: Path | None = None, *, allow_class_change: bool = False) -> str:
    """Return how a person pushes a model; one at an address is pushed from another machine than this one."""
    steps = f" on a machine that has {push_to}," if is_address(model) and not is_address(push_to) else ""
    if is_address(model) and not is_remote(model):
        steps, model = f"{steps} copy {show_address(model)} to a folder MODEL,", "MODEL"
    command = format_push_command(model, push_to, card, allow_class_change=allow_class_change)
    return f"To push it nevertheless,{steps} with your reason: {command}"


def format_push_command(
    model: str, push_to: str, card: Path | str | None = None, *, allow_class_change: bool = False
) -> str:
    """Return the command with which a person pushes a model."""
    with_card = [] if card is None or is_address(str(card)) else ["--card", str(card)]
    with_classes = ["--allow-class-change"] if allow_class_change else []
    command = ["detloom", "push", show_address(model), "--to", show_address(push_to), *with_card, *with_classes]
    return shlex.join([*command, "--reason", "..."])


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
    """Serve an earlier version again. It is copied under the next number, because a server takes the highest number.

    Args:
        to: version to restore; by default the newest intact version whose model differs from the served one and was
            not rolled back itself.
        remove_replaced: afterwards delete the version that is served now.

    Raises:
        InputError: the version does not exist, or its files differ from its manifest.
        OSError: as in `push_model`.
    """
    if not reason.strip():
        raise InputError("rollback: --reason is empty; the push record needs one.")
    destination = open_destination(push_dir)
    if not pushed_versions(destination):
        raise InputError(f"{redact(destination.address)}: contains no pushed version to restore.")
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
            _remove(destination, result.previous_version, check_held)
    return result


def list_versions(push_dir: Address) -> list[int]:
    """Return the numbers of the complete versions, ascending."""
    return complete_versions(open_destination(push_dir))


def read_records(push_dir: Address) -> list[dict[str, Any]]:
    """Return the push record, oldest line first, without lines that a crash truncated."""
    return read_push_record(open_destination(push_dir))


@dataclass
class _Push:
    """A push or rollback that holds the lock; `version` is the number of a new version."""

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
        """Return the latest version if it is this model, else publish a new version; describe it to Triton."""
        config = format_triton_config(self.sources)
        result = self._publish()
        write_triton_config(self.destination, config, self.check_held)
        return result

    def _publish(self) -> PushResult:
        _complete_record(self.destination, self.check_held)
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
            manifest=manifest,
            previous_version=latest,
            of_version=self.of_version,
        )
        manifest = replace(manifest, push=record)
        self.destination.place(version, self.sources, manifest, self._check_alone, self.check_held)
        _append_record(self.destination, record, self.check_held)
        return self._result(version, manifest, latest, is_new=True)

    def _check_alone(self, folder: Path) -> None:
        """Load the copy, and raise InputError if anything else in the push folder changes meanwhile."""
        before = self.destination.state()
        self.check(folder)
        self.check_held()  # another owner of the lock may change the folder
        after = self.destination.state()
        names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        if names:
            changes = ", ".join(escape(name) for name in names[:3])
            raise InputError(
                f"{redact(self.destination.address)}: changed while the model was loaded and tested ({changes}); "
                "nothing was pushed. Remove what nobody put there, because servers may load it. A model is a program "
                "that can write files: find out where this one comes from."
            )

    def _holds(self, version: int, manifest: Manifest) -> bool:
        """Return True if the version is this model and intact."""
        found = read_version_manifest(self.destination, version)
        return found is not None and found.digest == manifest.digest and not verify_version(self.destination, version)

    def _result(self, version: int, manifest: Manifest, previous: int | None, *, is_new: bool) -> PushResult:
        return PushResult(
            version=version,
            address=f"{self.destination.address}/{version}",
            digest=manifest.digest,
            previous_version=previous,
            is_new=is_new,
        )


def _next_version(destination: Destination, now: float) -> int:
    """Return a number that was never used. Call it before leftovers are removed, because their numbers count too."""
    return next_version(destination.names(), (record["version"] for record in read_push_record(destination)), now)


def _complete_record(destination: Destination, check_held: Callable[[], None]) -> None:
    """Write the record lines of pushes that were killed after they published their version."""
    recorded = {record["version"] for record in read_push_record(destination)}
    for version, manifest in pushed_versions(destination).items():
        if version not in recorded and manifest.push.get("version") == version:
            _append_record(destination, manifest.push, check_held)


def _append_record(destination: Destination, record: Mapping[str, Any], check_held: Callable[[], None]) -> None:
    try:
        check_held()
        destination.append_record(json.dumps(record))
    except OSError as error:  # the version is published, and its manifest contains the line
        _LOGGER.warning(
            "%s: %s could not be written (%s); the next push will write the line for version %s.",
            redact(destination.address),
            RECORD_FILE,
            error.strerror or error,
            record["version"],
        )


def _remove_old(
    destination: Destination, keep_versions: int, always: tuple[int | None, ...], check_held: Callable[[], None]
) -> None:
    """Remove the oldest versions that were pushed here, except the one that a rollback would restore."""
    if not keep_versions:
        return
    try:
        pushed = pushed_versions(destination)
        # A version whose manifest has another number was copied here by somebody; it is kept.
        ours = [version for version, manifest in pushed.items() if manifest.push.get("version", version) == version]
        old = [version for version in ours[:-keep_versions] if version not in always]
        spared = find_target(destination) if old else None
    except (OSError, InputError) as error:  # the push itself has succeeded
        _LOGGER.warning("%s: old versions could not be listed (%s).", redact(destination.address), error)
        return
    for version in old:
        if version != spared:
            _remove(destination, version, check_held)


def _remove(destination: Destination, version: int, check_held: Callable[[], None]) -> None:
    where = redact(destination.address)
    try:
        check_held()
        destination.remove_version(version)
        _LOGGER.info("%s: removed version %d.", where, version)
    except OSError as error:  # the push itself has succeeded
        _LOGGER.warning("%s: version %d could not be removed (%s).", where, version, error.strerror or error)
