"""Find the push folder and the metadata of a version."""

import re
from dataclasses import dataclass
from pathlib import Path

from detloom.components.pusher.manifest import RECORD_FILE
from detloom.pipelines.lineage.graph import safe_line
from detloom.pipelines.lineage.metadata_file import METADATA_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.push import is_remote

_SERVING = "serving"  # default push folder in a workspace
_VERSION = re.compile(r"0|[1-9][0-9]{0,17}")  # ML Metadata and servers store it in 64 bits


@dataclass(frozen=True, kw_only=True)
class VersionSource:
    """A pushed version with the push folder (absolute path or address) and the metadata that know it."""

    version: int
    push_dir: str
    metadata_file: Path


def find_version(version: str, workspace: Path | None = None) -> VersionSource:
    """Find a version by the layout `<workspace>/serving/<version>`; the workspace can be elsewhere.

    Args:
        version: its folder or address, or its number alone.

    Raises:
        InputError: the version is not a number, or push record or metadata are not found.
    """
    parent, slash, name = version.rstrip("/").rpartition("/")
    if not _VERSION.fullmatch(name):
        raise InputError(
            f"{safe_line(version)}: got {safe_line(name)!r}, allowed: the folder of a pushed version, whose name is a "
            "number, or that number."
        )
    default = str(workspace / _SERVING) if workspace else "."
    push_dir = _check_push_dir((parent or "/") if slash else default)
    if workspace is None:
        workspace = Path(push_dir).parent
        if is_remote(push_dir) or not (workspace / METADATA_FILE).is_file():
            raise InputError(
                f"{safe_line(push_dir)}: no {METADATA_FILE} next to this folder; give --workspace, the folder in which "
                "the pipeline ran."
            )
    return VersionSource(version=int(name), push_dir=push_dir, metadata_file=workspace / METADATA_FILE)


def _check_push_dir(address: str) -> str:
    """Return the absolute path of the folder, or the address; raise InputError if it has no push record."""
    if is_remote(address):
        return address
    folder = Path(address).absolute()
    if "\0" in address or not (folder / RECORD_FILE).is_file():
        raise InputError(
            f"{safe_line(str(folder))}: contains no {RECORD_FILE}, so no model was pushed to it; give the version's "
            "folder (<push folder>/<version>) or --workspace."
        )
    return str(folder)
