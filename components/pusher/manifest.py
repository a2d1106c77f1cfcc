"""The manifest of a version (sizes and SHA-256 of its files), and the push record (one JSON line per push or rollback).

The manifest is written last, inside the version, and contains the version's line of the push record. The push record is
a file next to the versions.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal, TypeGuard

from detloom.schemas.contracts.detections import MANIFEST_FILE, ONNX_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape, hide_secrets, show_address
from detloom.schemas.run_file.model_card import CARD_FILES
from detloom.trainer_module.files.folder_lock import find_user

EXTRAS_FOLDER = "assets.extra"  # SavedModel reserves this folder for files that TensorFlow does not read
MAX_MANIFEST_BYTES = 16 << 20  # enough for about a hundred thousand files
_CARD_NAMES = frozenset(f"{EXTRAS_FOLDER}/{name}" for name in CARD_FILES)
_GRAPH_NAMES = frozenset(("saved_model.pb", "fingerprint.pb", ONNX_FILE))
_WEIGHTS_FOLDER = "variables/"
_CHUNK_BYTES = 1 << 20

Files = Mapping[str, tuple[int, str]]
RECORD_FILE = "push_record.jsonl"
MAX_RECORD_BYTES = 256 << 20
Action = Literal["push", "rollback"]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of one version.

    Attributes:
        files: size in bytes and SHA-256 of every file by its path relative to the version; sorted.
        push: the line of the push record; empty for a model that is not pushed yet.
    """

    files: Files
    push: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return a SHA-256 that identifies the files of the model. The model card does not count."""
        return self._hash_without(_CARD_NAMES)

    @property
    def identity(self) -> str:
        """Return a SHA-256 that identifies the model also if it was trained again with the same result.

        The graphs do not count, unless they contain the only weights: names in them depend on what else their process
        did.
        """
        has_weights = any(name.startswith(_WEIGHTS_FOLDER) for name in self.files)
        return self._hash_without(_CARD_NAMES | _GRAPH_NAMES) if has_weights else self.digest

    def _hash_without(self, left_out: Set[str]) -> str:
        files = {name: facts for name, facts in self.files.items() if name not in left_out}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode("utf-8")).hexdigest()

    def differences_from(self, found: Files) -> list[str]:
        """Return a line for each file of the version that is missing, differs or is not in the manifest."""
        return [
            _difference(name, self.files, found)
            for name in sorted({*self.files, *found})
            if self.files.get(name) != found.get(name)
        ]

    def to_text(self) -> str:
        files = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in self.files.items()}
        return json.dumps({"digest": self.digest, "push": dict(self.push), "files": files}, indent=1) + "\n"


def parse_manifest(data: bytes) -> Manifest | None:
    """Parse a manifest; return None for anything else, such as a truncated one.

    Its names are only compared with those of existing files; no file is opened by them.
    """
    try:
        tree = json.loads(data)
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in tree["files"].items()}
        push = tree.get("push", {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return Manifest(files=dict(sorted(files.items())), push=push if isinstance(push, dict) else {})


def find_files(model_dir: Path) -> dict[str, Path]:
    """Return the files of a model by relative path, sorted, without the manifest of an earlier push.

    Raises:
        InputError: a link that points out of the folder, a link to a folder, or something that is not a file.
    """
    found: dict[str, Path] = {}
    inside = model_dir.resolve()
    for folder, subfolders, names in os.walk(model_dir, onerror=_raise):
        for name in sorted((*subfolders, *names)):
            path = Path(folder, name)
            is_link = path.is_symlink()
            if name in subfolders and not is_link:
                continue
            mode = path.stat().st_mode if path.exists() else 0
            if not stat.S_ISREG(mode) or (is_link and not path.resolve().is_relative_to(inside)):
                what = "a link that points elsewhere" if is_link else "a special file"
                raise InputError(f"{escape(str(path))}: got {what}, allowed in a model: files. Copy its target.")
            found[path.relative_to(model_dir).as_posix()] = path
    return {name: found[name] for name in sorted(found) if name != MANIFEST_FILE}


def find_card(card_dir: Path | None) -> dict[str, Path]:
    """Return the files of a model card by the path that they get in a version.

    Raises:
        InputError: a link that points out of the folder.
    """
    if card_dir is None:
        return {}
    paths = {f"{EXTRAS_FOLDER}/{name}": card_dir / name for name in CARD_FILES}
    found = {name: path for name, path in paths.items() if path.is_file()}
    for path in found.values():
        if not path.resolve().is_relative_to(card_dir.resolve()):
            raise InputError(
                f"{escape(str(path))}: got a link that points elsewhere, allowed in a card: files. Copy its target."
            )
    return found


def has_card(model_dir: Path) -> bool:
    """Return True if a SavedModel contains a model card, such as one from a push folder."""
    return any((model_dir / name).is_file() for name in _CARD_NAMES)


def is_of_model(name: str) -> bool:
    """Return False for a push manifest, which does not belong to another place."""
    return name != MANIFEST_FILE


def build_manifest(model_dir: Path) -> Manifest:
    """Read every file of a model and return its manifest."""
    return measure_files(find_files(model_dir))


def copy_files(sources: Mapping[str, Path], folder: Path) -> None:
    """Copy files to their relative paths in a folder."""
    for name, source in sources.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def copy_and_check(
    sources: Mapping[str, Path], manifest: Manifest, folder: Path, check: Callable[[Path], None]
) -> None:
    """Copy files, verify and load the copy, and add the manifest.

    Raises:
        InputError: raised by `check`.
        OSError: the copy could not be written, differs from the original, or was changed by `check`.
    """
    copy_files(sources, folder)
    check_same(manifest, build_manifest(folder).files, "the copy differs from the original", str(folder))
    check(folder)  # a graph can write files
    check_same(manifest, build_manifest(folder).files, "the copy was changed while it was loaded", str(folder))
    path = folder / MANIFEST_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(manifest.to_text(), encoding="utf-8")


def check_same(manifest: Manifest, found: Files, problem: str, where: str) -> None:
    """Raise OSError that names the first differences, if there are any."""
    wrong = manifest.differences_from(found)
    if wrong:
        raise OSError(errno.EIO, f"{problem}: {'; '.join(wrong[:3])}", where)


def check_is_evaluated(manifest: Manifest, blessed_digest: str, model_uri: str) -> None:
    """Raise InputError if the model's files are not those that a blessing names; an empty digest names none."""
    if blessed_digest and manifest.digest != blessed_digest:
        raise InputError(
            f"{show_address(model_uri)}: the files of the model have changed since it was evaluated and blessed "
            f"(SHA-256 {blessed_digest[:12]} then, {manifest.digest[:12]} now); nothing was pushed. Restore them, or "
            "delete this folder and run again, which trains the model again."
        )


def measure_files(paths: Mapping[str, Path]) -> Manifest:
    """Read these files and return their manifest."""
    files = {}
    for name in sorted(paths):
        with open(paths[name], "rb") as file:
            files[name] = measure_stream(file)
    return Manifest(files=files)


def measure_stream(file: IO[bytes]) -> tuple[int, str]:
    """Return size and SHA-256 of the rest of an open file."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _difference(name: str, expected: Files, found: Files) -> str:
    if name not in found:
        return f"{escape(name)}: is missing"
    if name not in expected:
        return f"{escape(name)}: is not in the manifest"
    (wanted_size, _), (size, _) = expected[name], found[name]
    if size != wanted_size:
        return f"{escape(name)}: has {size} bytes, expected by the manifest: {wanted_size}"
    return f"{escape(name)}: its content differs from the manifest (SHA-256)"


def _raise(error: OSError) -> None:
    raise error


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of a pushed model.

    Attributes:
        model_uri: address of the original.
        run_id: id of the pipeline run; empty for a manual push.
        reason: reason for the manual push or rollback.
        blessing: `id`, `uri`, `blessed` and `sentence` of the blessing, and `forms`, those that were evaluated
            (`schemas/contracts/runtime_names.py`); empty if there is none.
        metrics: main metrics by name.
    """

    model_uri: str
    by: str = field(default_factory=find_user)
    host: str = field(default_factory=socket.gethostname)
    run_id: str = ""
    reason: str = ""
    blessing: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def make_record(
    origin: Origin,
    *,
    action: Action,
    now: float,
    version: int,
    manifest: Manifest,
    previous_version: int | None,
    of_version: int | None = None,
) -> dict[str, Any]:
    """Return one line of the record.

    Args:
        now: Unix time.
        of_version: the version that a rollback copied.
    """
    return {
        "time": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
        "action": action,
        "version": version,
        "previous_version": previous_version,
        "of_version": of_version,
        "model_uri": hide_secrets(origin.model_uri),
        "manifest_sha256": manifest.digest,
        "identity": manifest.identity,
        "by": origin.by,
        "host": origin.host,
        "run_id": origin.run_id,
        "reason": origin.reason,
        "blessing": dict(origin.blessing),
        "metrics": {name: value for name, value in origin.metrics.items() if is_finite(value)},
    }


def is_finite(value: object) -> TypeGuard[float]:
    """Return True for a number that JSON and float64 can represent; a whole number may have any number of digits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # false for NaN


def parse_records(data: bytes) -> list[dict[str, Any]]:
    """Return the lines, oldest first, without those that a crash truncated."""
    records = []
    for line in data.decode("utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("version"), int):
                records.append(record)
    return records
