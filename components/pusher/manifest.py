"""What a version holds: sizes and SHA-256 of its files, and who pushed it. Lies inside the version, written last."""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from detloom.schemas.errors import InputError
from detloom.schemas.model_card_config import CARD_FILES
from detloom.schemas.redact import escape

EXTRAS_FOLDER = "assets.extra"  # SavedModel keeps this folder for files that TensorFlow does not read
MANIFEST_FILE = f"{EXTRAS_FOLDER}/push_manifest.json"
MAX_MANIFEST_BYTES = 16 << 20  # some hundred thousand files
_CARD_NAMES = frozenset(f"{EXTRAS_FOLDER}/{name}" for name in CARD_FILES)
_CHUNK_BYTES = 1 << 20

Files = Mapping[str, tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is in one version.

    Attributes:
        files: size in bytes and SHA-256 of every file by its path relative to the version; sorted.
        push: the line of the push record; empty in a manifest of earlier detloom versions.
    """

    files: Files
    push: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 that names the model: the same model with another model card is the same model."""
        model = {name: facts for name, facts in self.files.items() if name not in _CARD_NAMES}
        return hashlib.sha256(json.dumps(model, sort_keys=True).encode("utf-8")).hexdigest()

    def differences_from(self, found: Files) -> list[str]:
        """One line for each file of the version that is missing, differs or is not in the manifest."""
        return differences(self.files, found)

    def to_text(self) -> str:
        files = {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in self.files.items()}
        return json.dumps({"digest": self.digest, "push": dict(self.push), "files": files}, indent=1) + "\n"


def parse_manifest(data: bytes) -> Manifest | None:
    """The manifest in these bytes; None for anything else, such as one that is cut off.

    Its names are compared with those of the files that are there; no file is opened by them.
    """
    try:
        tree = json.loads(data)
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in tree["files"].items()}
        push = tree.get("push", {})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return Manifest(files=dict(sorted(files.items())), push=push if isinstance(push, dict) else {})


def find_files(model_dir: Path) -> dict[str, Path]:
    """The files of a model by relative path, sorted; a manifest that an earlier push left there is not one of them.

    Raises:
        InputError: a link that leads out of the folder, a link to a folder, or something that is no file.
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
                what = "a link that leads elsewhere" if is_link else "no file"
                raise InputError(
                    f"{escape(str(path))}: got {what}, allowed in a model: files. Copy what it stands for."
                )
            found[path.relative_to(model_dir).as_posix()] = path
    return {name: found[name] for name in sorted(found) if name != MANIFEST_FILE}


def find_card(card_dir: Path | None) -> dict[str, Path]:
    """The files of a model card by the path that they get in a version.

    Raises:
        InputError: a link that leads out of the folder.
    """
    if card_dir is None:
        return {}
    paths = {f"{EXTRAS_FOLDER}/{name}": card_dir / name for name in CARD_FILES}
    found = {name: path for name, path in paths.items() if path.is_file()}
    for path in found.values():
        if not path.resolve().is_relative_to(card_dir.resolve()):
            raise InputError(
                f"{escape(str(path))}: got a link that leads elsewhere, allowed in a model card: files. Copy what it "
                "stands for."
            )
    return found


def build_manifest(model_dir: Path) -> Manifest:
    """Read every file of a model."""
    return measure_files(find_files(model_dir))


def measure_files(paths: Mapping[str, Path]) -> Manifest:
    """Read these files."""
    return Manifest(files={name: _measure_path(paths[name]) for name in sorted(paths)})


def measure_stream(file: IO[bytes], copy_to: IO[bytes] | None = None) -> tuple[int, str]:
    """Size and SHA-256 of what is left of an open file, which is written to `copy_to` meanwhile."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return size, digest.hexdigest()


def differences(expected: Files, found: Files) -> list[str]:
    """One line for each file that is missing, differs or should not be there; empty if all is well."""
    return [_difference(name, expected, found) for name in sorted(_unequal(expected, found))]


def _unequal(expected: Files, found: Files) -> Iterable[str]:
    return (name for name in {*expected, *found} if expected.get(name) != found.get(name))


def _difference(name: str, expected: Files, found: Files) -> str:
    if name not in found:
        return f"{escape(name)}: is missing"
    if name not in expected:
        return f"{escape(name)}: is not in the manifest"
    (wanted_size, _), (size, _) = expected[name], found[name]
    if size != wanted_size:
        return f"{escape(name)}: has {size} bytes, the manifest says {wanted_size}"
    return f"{escape(name)}: has another content than the manifest says (SHA-256)"


def _measure_path(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        return measure_stream(file)


def _raise(error: OSError) -> None:
    raise error
