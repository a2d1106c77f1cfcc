"""Convert addresses in a task to local paths: of mounted object stores (and back), and of files in the package.

Our nodes read and write files. Vertex AI mounts Cloud Storage at /gcs; the launcher of open-source Kubeflow Pipelines
downloads inputs to, and uploads outputs from, folders of the same structure (kubeflow/pipelines,
backend/src/v2/component/launcher_v2.go, `LocalPathForURI`). Its output file is such a path already, or is in /tmp.
Remote Beam workers have no mount: if they do a node's Beam work, addresses stay unchanged.

Compiled jobs name files of the package as package://MODULE/FILE?sha256=HEX, because a job is compiled on one machine
and runs on others, where the package may be in another folder. The cache key contains only the parameter's text, so
the text must change with the file.
"""

import hashlib
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detloom.components.beam_job import remote_runner
from detloom.schemas.errors import InputError

ROOT_VARIABLE = "DETLOOM_STORAGE_ROOT"  # the folder that contains gcs/, minio/ and s3/
FOLDERS = {"gs://": "gcs", "minio://": "minio", "s3://": "s3"}


@dataclass(frozen=True)
class TaskStorage:
    """The object stores that a container can access.

    Attributes:
        root: without a trailing slash; empty for the root of the file system.
        is_mounted: False leaves addresses unchanged.
    """

    root: str = ""
    is_mounted: bool = True

    @classmethod
    def of_container(cls, environment: Mapping[str, str], beam_args: Sequence[str]) -> "TaskStorage":
        """Return the storage of a node with these Beam arguments."""
        return cls(environment.get(ROOT_VARIABLE, "").rstrip("/"), not remote_runner(beam_args))

    def local_path(self, uri: str) -> str:
        """Return the path of an address, or of a path below /gcs, /minio, /s3; return other text unchanged.

        Raises:
            InputError: for an address outside of its bucket.
        """
        for scheme, folder in FOLDERS.items():
            for start in (scheme, f"/{folder}/"):
                if self.is_mounted and uri.startswith(start):
                    rest = uri.removeprefix(start)
                    if ".." in rest.split("/"):
                        raise InputError(f"{uri}: '..' is not allowed in an artifact's address.")
                    return f"{self.root}/{folder}/{rest}"
        return uri

    def bucket_folder(self, uri: str) -> str | None:
        """Return the folder at which an address's bucket is mounted; None if it is not an address."""
        if not self.is_mounted or not uri.startswith(tuple(FOLDERS)):
            return None
        return self.local_path("/".join(uri.split("/")[:3]))


class Addresses:
    """The addresses of the local paths that were passed to a node."""

    def __init__(self) -> None:
        self._by_path: dict[str, str] = {}

    def add(self, path: str, address: str) -> None:
        if path != address:
            self._by_path[path] = address

    def restore(self, text: str) -> str:
        """Return the address of a path that is known or below a known one; return other text unchanged."""
        for path, address in self._by_path.items():
            if text == path or text.startswith(f"{path}/"):
                return address + text[len(path) :]
        return text


def make_parent(path: str) -> None:
    """Create the parent folder of a local file."""
    if "://" not in path:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


SCHEME = "package://"
_ADDRESS = re.compile(
    r"package://(detloom(?:\.[a-z_][a-z0-9_]*)+)/([A-Za-z0-9_][A-Za-z0-9._-]*)\?sha256=([0-9a-f]{16})"
)


def file_of(address: str) -> Path:
    """Return the installed file.

    Raises:
        InputError: if it is missing, or its content differs from that at compile time.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(f"{address}: allowed: package://MODULE/FILE?sha256=HEX with a module of detloom.")
    module, name, expected = match.groups()
    try:
        folders = [Path(folder) for folder in importlib.import_module(module).__path__]
    except (ImportError, AttributeError):
        folders = []
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None:
        raise InputError(
            f"{address}: no such file in this image; build it again from the version that compiled the job."
        )
    found = hashlib.sha256(file.read_bytes()).hexdigest()[: len(expected)]
    if found != expected:
        raise InputError(
            f"{address}: this image contains another file ({found}); build it again, or compile with its version."
        )
    return file
