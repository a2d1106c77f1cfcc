"""Buckets as folders, and the transfer between them and a pod's disk.

The open-source launcher downloads inputs and uploads outputs between a bucket and a folder with the address's structure
(kubeflow/pipelines, backend/src/v2/component/launcher_v2.go, `LocalPathForURI`, `downloadArtifacts`,
`uploadOutputArtifacts`; backend/src/v2/objectstore/object_store.go, `UploadBlob`, `DownloadBlob`). An object store has
no folders, so empty folders, file modes and links are lost. Vertex AI mounts Cloud Storage at /gcs.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from conformance_driver.errors import TaskRefused

FOLDERS = {"gs://": "gcs", "minio://": "minio", "s3://": "s3"}


def local_path(uri: str) -> str:
    """Return the path of an address in a container.

    Raises:
        TaskRefused: for an unsupported scheme.
    """
    for scheme, folder in FOLDERS.items():
        if uri.startswith(scheme):
            return f"/{folder}/{uri.removeprefix(scheme)}"
    raise TaskRefused(f"failed to generate local path for URI {uri}: unsupported storage scheme")


@dataclass(frozen=True)
class Disk:
    """The storage of a container's file system; `root` replaces /."""

    root: Path

    def path(self, uri_or_path: str) -> Path:
        """Return the local path of an address or of a container's path."""
        path = uri_or_path if uri_or_path.startswith("/") else local_path(uri_or_path)
        return self.root / path.lstrip("/")

    @property
    def mounts(self) -> dict[Path, str]:
        """Return the path in the container by local folder."""
        found = {self.root / folder: f"/{folder}" for folder in FOLDERS.values()}
        for folder in found:
            folder.mkdir(parents=True, exist_ok=True)
        return found


@dataclass(frozen=True)
class Buckets:
    """An object store: files are objects."""

    root: Path

    def download(self, uri: str, disk: Disk) -> None:
        """Download all objects at or below an address, if any. Other schemes are ignored."""
        if not uri.startswith(tuple(FOLDERS)):
            return
        source, target = Disk(self.root).path(uri), disk.path(uri)
        if source.is_file():
            _copy(source, target)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                _copy(path, target / path.relative_to(source))

    def upload(self, uri: str, disk: Disk, root: str) -> None:
        """Upload the files at an address's path on the disk, if any.

        Args:
            root: the root of the run, at which the launcher's bucket begins.

        Raises:
            TaskRefused: for an address outside of the root, and for anything that cannot be copied as a file.
        """
        if not uri.startswith(f"{root}/"):
            raise TaskRefused(f"URI {uri!r} does not have expected bucket prefix {root!r}")
        source, target = disk.path(uri), Disk(self.root).path(uri)
        if source.is_file():
            _copy(source, target)
        elif source.is_dir():
            for path in sorted(source.rglob("*")):
                if path.is_symlink() and path.is_dir():
                    raise TaskRefused(f"unable to complete copying {path}: is a directory")
                if not path.is_dir():
                    _copy(path, target / path.relative_to(source))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
