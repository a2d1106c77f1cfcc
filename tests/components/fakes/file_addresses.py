"""Local files at file:// for Beam and TFX, as a stand-in for an object store; TensorFlow has this scheme."""

from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.io.filesystem import FileMetadata
from apache_beam.io.localfilesystem import LocalFileSystem
from tfx.dsl.io import filesystem_registry
from tfx.dsl.io.plugins.tensorflow_gfile import TensorflowFilesystem

SCHEME = "file://"


def local_path(address: str) -> str:
    return address.removeprefix(SCHEME)


class FileAddresses(LocalFileSystem):  # Beam finds it among the subclasses
    @classmethod
    def scheme(cls) -> str:
        return "file"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for found in super()._list(local_path(dir_or_prefix)):
            yield FileMetadata(SCHEME + found.path, found.size_in_bytes, found.last_updated_in_seconds)

    def rename(self, source_file_names: Sequence[str], destination_file_names: Sequence[str]) -> None:
        super().rename([*map(local_path, source_file_names)], [*map(local_path, destination_file_names)])

    def delete(self, paths: Sequence[str]) -> None:
        super().delete([*map(local_path, paths)])


def _at_local_path(name: str) -> Any:
    operation = getattr(LocalFileSystem, name)
    return lambda self, path, *arguments, **options: operation(self, local_path(path), *arguments, **options)


for _name in ("mkdirs", "create", "open", "exists", "size", "last_updated", "checksum"):
    setattr(FileAddresses, _name, _at_local_path(_name))


class TfxFileAddresses(TensorflowFilesystem):
    SUPPORTED_SCHEMES = (SCHEME,)


filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY.register(TfxFileAddresses, priority=0)
