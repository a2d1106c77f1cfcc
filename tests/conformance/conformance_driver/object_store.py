"""Buckets as folders, and what goes in and out of a pod's disk.

The open-source launcher downloads inputs and uploads outputs between a bucket and a folder that has the address's shape
(kubeflow/pipelines, backend/src/v2/component/launcher_v2.go, `LocalPathForURI`, `downloadArtifacts`,
`uploadOutputArtifacts`; backend/src/v2/objectstore/object_store.go, `UploadBlob`, `DownloadBlob`): an object store has
no folders, so that empty ones do not arrive, nor do file modes and links. Vertex AI mounts Cloud Storage at /gcs.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from conformance_driver.errors import TaskRefused

FOLDERS = {"gs://": "gcs", "minio://": "minio", "s3://": "s3"}


def local_path(uri: str) -> str:
    """Where an address lies in a container.

    Raises:
        TaskRefused: for an address of another kind.
    """
    for scheme, folder in FOLDERS.items():
        if uri.startswith(scheme):
            return f"/{folder}/{uri.removeprefix(scheme)}"
    raise TaskRefused(f"failed to generate local path for URI {uri}: unsupported storage scheme")


@dataclass(frozen=True)
class Disk:
    """A container's file system, as far as storage is concerned: `root` stands for /."""

    root: Path

    def path(self, uri_or_path: str) -> Path:
        """Here, of an address or of a container's path."""
        path = uri_or_path if uri_or_path.startswith("/") else local_path(uri_or_path)
        return self.root / path.lstrip("/")

    @property
    def mounts(self) -> dict[Path, str]:
        """By folder here, the path in the container."""
        found = {self.root / folder: f"/{folder}" for folder in FOLDERS.values()}
        for folder in found:
            folder.mkdir(parents=True, exist_ok=True)
        return found


@dataclass(frozen=True)
class Buckets:
    """An object store: files are objects."""

    root: Path

    def download(self, uri: str, disk: Disk) -> None:
        """All objects at or below an address; there need not be any. An address of another kind is left alone."""
        if not uri.startswith(tuple(FOLDERS)):
            return
        source, target = Disk(self.root).path(uri), disk.path(uri)
        if source.is_file():
            _copy(source, target)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                _copy(path, target / path.relative_to(source))

    def upload(self, uri: str, disk: Disk, root: str) -> None:
        """What lies at an address's place on the disk, if anything does.

        Args:
            root: of the run; the launcher's bucket begins there.

        Raises:
            TaskRefused: for an address outside, and for what cannot be copied as a file.
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
