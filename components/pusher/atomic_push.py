"""Put a model where a server looks for versions, so that a version is there whole or not at all.

Layout of the push folder, as TensorFlow Serving reads it (it ignores every name that is not a number):

    1760000000/                            one version: the SavedModel as exported
        assets.extra/push_manifest.json    sizes and SHA-256 of its files; SavedModel keeps this folder for extras
    push_record.jsonl                      one line a push: time, version, model, manifest hash, previous version
    .push-1760000001/                      a copy in the making; a killed push leaves it, the next one removes it
    .push.lock                             held while pushing; the system releases it when its owner dies

The manifest lies inside the version, so that one rename makes both visible.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from detloom.schemas.errors import InputError

MANIFEST_FILE = "assets.extra/push_manifest.json"
RECORD_FILE = "push_record.jsonl"
_LOCK_FILE = ".push.lock"
_TEMPORARY_PREFIX = ".push-"
_MODEL_FILE = "saved_model.pb"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Size in bytes and SHA-256 of every file, by its path relative to the model; sorted."""

    files: dict[str, tuple[int, str]]

    @property
    def digest(self) -> str:
        """SHA-256 that names the model's content."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode("utf-8")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PushResult:
    """`is_new` is false when the latest version was this model already."""

    version: int
    path: Path
    digest: str
    previous_version: int | None
    is_new: bool


def push_model(model_dir: Path, push_dir: Path, *, model_uri: str, now: Callable[[], float] = time.time) -> PushResult:
    """Copy the SavedModel to a temporary folder in `push_dir`, verify the copy, rename it to the next version.

    The version is the time in seconds, or one more than the highest there is, so it always grows. If the highest one
    has the same content already, nothing is copied. Whenever this stops, the versions in `push_dir` are complete ones.

    Args:
        model_uri: where the model came from, for the record.

    Raises:
        InputError: `model_dir` is no SavedModel, or `push_dir` cannot be written.
        OSError: the copy failed or differs from the original; nothing was changed.
    """
    if not (model_dir / _MODEL_FILE).is_file():
        raise InputError(f"{model_dir}: no SavedModel to push ({_MODEL_FILE} is missing).")
    try:
        push_dir.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(push_dir)
    except OSError as error:
        raise InputError(f"{push_dir}: models cannot be pushed here ({error.strerror}).") from None
    with lock:
        _remove_leftovers(push_dir)
        manifest = build_manifest(model_dir)
        latest = max(list_versions(push_dir), default=None)
        if latest is not None and _is_intact(push_dir / str(latest), manifest):
            previous = _record_once(push_dir, latest, manifest, model_uri, now())
            return PushResult(
                version=latest,
                path=push_dir / str(latest),
                digest=manifest.digest,
                previous_version=previous,
                is_new=False,
            )
        version = max(int(now()), (latest or 0) + 1)
        _place_version(model_dir, push_dir, version, manifest)
        _append_record(push_dir, version, manifest, model_uri, latest, now())
    return PushResult(
        version=version,
        path=push_dir / str(version),
        digest=manifest.digest,
        previous_version=latest,
        is_new=True,
    )


def list_versions(push_dir: Path) -> list[int]:
    """Ascending; every one is complete, because only a rename makes one."""
    return sorted(int(path.name) for path in push_dir.iterdir() if path.name.isdecimal() and path.is_dir())


def build_manifest(model_dir: Path) -> Manifest:
    """Read every file of the model; a manifest that an earlier push left in it is not part of it."""
    paths = sorted(path for path in model_dir.rglob("*") if path.is_file())
    names = {path.relative_to(model_dir).as_posix(): path for path in paths}
    return Manifest(files={name: _size_and_hash(path) for name, path in names.items() if name != MANIFEST_FILE})


def read_manifest(version_dir: Path) -> Manifest | None:
    """The manifest inside a version; None for a version that was not pushed by this module."""
    try:
        files = json.loads((version_dir / MANIFEST_FILE).read_text(encoding="utf-8"))["files"]
        return Manifest(files={name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_records(push_dir: Path) -> list[dict[str, Any]]:
    """The push record, oldest first, without a line that a crash cut off."""
    try:
        lines = (push_dir / RECORD_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):
            records.append(json.loads(line))
    return records


def _open_lock(push_dir: Path) -> IO[str]:
    """Wait for other pushers; closing the file lets the next one in."""
    file = open(push_dir / _LOCK_FILE, "w", encoding="utf-8")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _remove_leftovers(push_dir: Path) -> None:
    for path in push_dir.glob(f"{_TEMPORARY_PREFIX}*"):
        shutil.rmtree(path)


def _is_intact(version_dir: Path, manifest: Manifest) -> bool:
    return read_manifest(version_dir) == manifest and build_manifest(version_dir) == manifest


def _place_version(model_dir: Path, push_dir: Path, version: int, manifest: Manifest) -> None:
    temporary = push_dir / f"{_TEMPORARY_PREFIX}{version}"
    try:
        temporary.mkdir()  # not mkdtemp: its folders are closed to the server's user
        for name in manifest.files:
            target = temporary / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model_dir / name, target)
            _sync(target)
        _write_manifest(temporary / MANIFEST_FILE, manifest)
        for folder in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
            _sync(folder)
        copied = build_manifest(temporary)
        if copied != manifest:
            wrong = sorted(name for name in manifest.files if copied.files.get(name) != manifest.files[name])
            raise OSError(errno.EIO, f"the copy differs from the original in {wrong[:3]}", str(temporary))
        os.rename(temporary, push_dir / str(version))
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(push_dir)


def _write_manifest(path: Path, manifest: Manifest) -> None:
    files = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in manifest.files.items()}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"digest": manifest.digest, "files": files}, indent=1) + "\n", encoding="utf-8")
    _sync(path)


def _record_once(push_dir: Path, version: int, manifest: Manifest, model_uri: str, now: float) -> int | None:
    """The version before `version`; writes the line of a push that was killed between its rename and its record."""
    for record in read_records(push_dir):
        if record.get("version") == version:
            previous = record.get("previous_version")
            return None if previous is None else int(previous)
    previous = max((other for other in list_versions(push_dir) if other < version), default=None)
    _append_record(push_dir, version, manifest, model_uri, previous, now)
    return previous


def _append_record(
    push_dir: Path, version: int, manifest: Manifest, model_uri: str, previous: int | None, now: float
) -> None:
    record = {
        "time": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
        "version": version,
        "model_uri": model_uri,
        "manifest_sha256": manifest.digest,
        "previous_version": previous,
    }
    path = push_dir / RECORD_FILE
    is_cut_off = path.exists() and path.read_bytes()[-1:] not in (b"\n", b"")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * is_cut_off + json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _size_and_hash(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
