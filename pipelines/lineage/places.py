"""Locate the requested version, its push record and its metadata."""

from dataclasses import dataclass, replace
from pathlib import Path

from detloom.components.pusher.manifest import RECORD_FILE
from detloom.pipelines.lineage.graph import safe_line
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.push import REMOTE_SCHEMES, is_remote
from detloom.schemas.run_file.read_run_file import build_run, load_run_tree, resolve_paths

METADATA_FILE = "metadata.sqlite"  # in a workspace
CODE_FOLDER = "code"  # in a workspace
_SERVING = "serving"  # default push folder in a workspace
_MAX_DIGITS = 18  # of a version: ML Metadata and servers store it in 64 bits


@dataclass(frozen=True, kw_only=True)
class Places:
    """Places that `detloom lineage` reads, besides the artifacts.

    Attributes:
        push_dir: folder of the versions as an absolute path or an address.
    """

    version: int
    push_dir: str
    metadata_file: Path


def find_places(
    version: str,
    *,
    push_dir: str = "",
    metadata: Path | None = None,
    workspace: Path | None = None,
    run_file: Path | None = None,
) -> Places:
    """Find the places: from the arguments, else from the run file, else by the layout `<workspace>/serving/<version>`.

    Args:
        version: its folder or address, or its number alone.
        push_dir: folder or address.

    Raises:
        InputError: the version is not a number, the run file cannot be read, or push record or metadata are not found.
    """
    parent, slash, name = version.rstrip("/").rpartition("/")
    if not (name.isascii() and name.isdecimal() and len(name) <= _MAX_DIGITS and str(int(name)) == name):
        raise InputError(
            f"{safe_line(version)}: got {safe_line(name)!r}, allowed: the folder of a pushed version, whose name is a "
            "number, or that number."
        )
    run_workspace, run_push_dir = _read_folders(run_file) if run_file is not None else (None, "")
    workspace = workspace or run_workspace
    if not push_dir and slash:
        push_dir = parent or "/"
    elif not push_dir:  # the number alone
        push_dir = run_push_dir or (str(workspace / _SERVING) if workspace else ".")
    push_dir = _check_push_dir(push_dir)
    if metadata is None and workspace is None and not is_remote(push_dir):
        metadata = Path(push_dir).parent / METADATA_FILE
        metadata = metadata if metadata.is_file() else None
    elif metadata is None and workspace is not None:
        metadata = workspace / METADATA_FILE
    if metadata is None:
        raise InputError(
            f"{safe_line(push_dir)}: no {METADATA_FILE} next to this folder; give --workspace (the folder in which the "
            "pipeline ran), --metadata or --run-file."
        )
    return Places(version=int(name), push_dir=push_dir, metadata_file=metadata)


def _check_push_dir(address: str) -> str:
    """Return the absolute path of the folder, or the address; raise InputError if it has no push record."""
    if is_remote(address):
        return address
    if "://" in address:
        allowed = f"a folder, or an address of {', '.join(REMOTE_SCHEMES)}"
        raise InputError(f"{safe_line(address)}: allowed for pushed versions: {allowed}.")
    folder = Path(address).absolute()
    if "\0" in address or not (folder / RECORD_FILE).is_file():
        raise InputError(
            f"{safe_line(str(folder))}: contains no {RECORD_FILE}, so no model was pushed to it; give the version's "
            "folder (<push folder>/<version>), --push-dir or --workspace."
        )
    return str(folder)


def _read_folders(run_file: Path) -> tuple[Path, str]:
    """Return workspace and push folder of a run file, whose data need not exist on this machine."""
    tree, _ = load_run_tree(run_file)
    run = build_run(tree)
    run = resolve_paths(replace(run, data=replace(run.data, path=EMBEDDED_DIGITS, num_spans=1)), tree, run_file)
    return Path(run.workspace), run.push_to
