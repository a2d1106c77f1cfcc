"""One number for all of the installed detloom, so that a container can tell whether a job was compiled for its code."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import detloom

LAYERS = ("components", "pipelines", "schemas", "trainer_module")  # as in setup.py's ROOTS
DATA_SUFFIXES = (".pbtxt", ".tsv", ".yaml", ".j2", ".css", ".js")  # as in setup.py's package_data
_TYPED = "py.typed"


def package_fingerprint(folders: Sequence[str | Path] | None = None) -> str:
    """16 hex digits over all source and data files that a wheel contains: equal in a checkout and installed from one.

    Args:
        folders: those of `detloom.__path__` unless given.
    """
    digest = hashlib.sha256()
    for name, file in sorted(package_files(folders).items()):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def package_files(folders: Sequence[str | Path] | None = None) -> dict[str, Path]:
    """By path within the package, with slashes. In a checkout `detloom/` and the layers beside it are one package."""
    found: dict[str, Path] = {}
    for folder in (Path(folder) for folder in (detloom.__path__ if folders is None else folders)):
        if (folder / "__init__.py").is_file():  # not the root of a checkout, whose setup.py is no part of the package
            found |= {name: folder / name for name in ("__init__.py", _TYPED) if (folder / name).is_file()}
        for layer in LAYERS:
            found |= {file.relative_to(folder).as_posix(): file for file in _files_of_layer(folder / layer)}
    return found


def _files_of_layer(layer: Path) -> Iterator[Path]:
    """What setup.py packs: modules of folders with an __init__.py, data files of all folders."""
    for parent, folders, files in os.walk(layer):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        is_package = "__init__.py" in files
        for name in files:
            suffix = os.path.splitext(name)[1]
            if suffix in DATA_SUFFIXES or (is_package and (suffix == ".py" or name == _TYPED)):
                yield Path(parent, name)
