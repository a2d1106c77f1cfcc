"""Where artifacts lie in a container: addresses in an object store as mounted folders, and back.

Our nodes read and write files. Vertex AI mounts Cloud Storage at /gcs; the launcher of open-source Kubeflow Pipelines
loads inputs down to, and outputs up from, folders of the same shape (kubeflow/pipelines,
backend/src/v2/component/launcher_v2.go, `LocalPathForURI`). Its output file is such a path already, or lies in /tmp.

Beam workers on other machines have no mount: where a node's Beam work goes there, addresses stay what they are.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from detloom.pipelines.compile.beam_options import is_elsewhere
from detloom.schemas.errors import InputError

ROOT_VARIABLE = "DETLOOM_STORAGE_ROOT"  # the folder that gcs/, minio/ and s3/ lie in
FOLDERS = {"gs://": "gcs", "minio://": "minio", "s3://": "s3"}


@dataclass(frozen=True)
class Storage:
    """What a container sees of object stores.

    Attributes:
        root: without a slash at its end; empty for the file system's own.
        is_mounted: false leaves addresses as they are.
    """

    root: str = ""
    is_mounted: bool = True

    @classmethod
    def of_container(cls, environment: Mapping[str, str], beam_args: Sequence[str]) -> "Storage":
        """The storage of a node with these arguments for Beam."""
        return cls(environment.get(ROOT_VARIABLE, "").rstrip("/"), not is_elsewhere(list(beam_args)))

    def local_path(self, uri: str) -> str:
        """The path of an address, or of a path below /gcs, /minio, /s3; anything else is returned as it is.

        Raises:
            InputError: for an address that leads out of its bucket.
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
        """Where the bucket of an address is mounted; None for what is no address."""
        if not self.is_mounted or not uri.startswith(tuple(FOLDERS)):
            return None
        return self.local_path("/".join(uri.split("/")[:3]))


class Addresses:
    """The addresses behind the local paths that a node was given."""

    def __init__(self) -> None:
        self._by_path: dict[str, str] = {}

    def add(self, path: str, address: str) -> None:
        if path != address:
            self._by_path[path] = address

    def restore(self, text: str) -> str:
        """The address of a path that is one of ours or lies below one; any other text as it is."""
        for path, address in self._by_path.items():
            if text == path or text.startswith(f"{path}/"):
                return address + text[len(path) :]
        return text


def make_parent(path: str) -> None:
    """Create the folder of a local file."""
    if "://" not in path:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
