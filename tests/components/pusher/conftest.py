"""Fixtures: folders that look like SavedModels, and a storage without rename."""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tfx.dsl.io import filesystem, filesystem_registry

from detloom.components.pusher.manifest import MANIFEST_FILE, Manifest, parse_manifest


@pytest.fixture
def make_model() -> Callable[..., Path]:
    """Return a function that makes a folder that a push accepts as a SavedModel."""

    def make(folder: Path, content: bytes = b"graph") -> Path:
        (folder / "variables").mkdir(parents=True)
        (folder / "assets").mkdir()
        (folder / "saved_model.pb").write_bytes(content)
        (folder / "variables" / "variables.index").write_bytes(b"weights of " + content)
        (folder / "assets" / "label_map.pbtxt").write_bytes(b"item { id: 1 name: 'cat' }")
        return folder

    return make


@pytest.fixture
def model(make_model, tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


@pytest.fixture
def other_model(make_model, tmp_path: Path) -> Path:
    return make_model(tmp_path / "other_model", b"another graph")


@pytest.fixture
def third_model(make_model, tmp_path: Path) -> Path:
    return make_model(tmp_path / "third_model", b"a third graph")


@pytest.fixture
def read_manifest() -> Callable[[Path], Manifest | None]:
    """Return a function that reads the manifest of a version folder; None for an invalid manifest."""
    return lambda version_dir: parse_manifest((version_dir / MANIFEST_FILE).read_bytes())


class Stopped(BaseException):
    """Simulates a killed process: no `except OSError` catches it, and all later operations raise it as well."""


class Objects(filesystem.Filesystem):
    """An object store at objects://bucket/name: an object becomes visible when it is closed; no folders.

    Attributes:
        root: the folder that contains the objects.
        operations: all operations so far.
        stop_at: number of the first operation that fails, with all later ones, as in a killed process; 0 for none.
        fail_at: number of the single operation that fails with an error.
        damage: objects whose name has this suffix lose half of their bytes when written.
    """

    SUPPORTED_SCHEMES = ["objects://"]
    root: Path
    operations: list[str] = []
    stop_at = fail_at = 0
    damage = ""

    @classmethod
    def _at(cls, path: str, operation: str) -> Path:
        cls.operations.append(f"{operation} {path}")
        if cls.stop_at and len(cls.operations) >= cls.stop_at:
            raise Stopped
        if len(cls.operations) == cls.fail_at:
            raise OSError(5, "the storage is not available")
        return cls.root / path.removeprefix("objects://")

    @classmethod
    def open(cls, name: str, mode: str = "r"):
        path = cls._at(name, f"open {mode}")
        if mode == "rb":
            return io.BytesIO(_existing(path).read_bytes())
        assert mode == "wb"
        store = cls

        class Upload(io.BytesIO):
            def __exit__(self, kind, *rest):
                if kind is None:
                    store._at(name, "put")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    data = self.getvalue()
                    path.write_bytes(data[: len(data) // 2] if store.damage and name.endswith(store.damage) else data)
                return super().__exit__(kind, *rest)

        return Upload()

    @classmethod
    def copy(cls, src: str, dst: str, overwrite: bool = False) -> None:
        target = cls._at(dst, "copy")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_existing(cls.root / src.removeprefix("objects://")), target)

    @classmethod
    def exists(cls, path: str) -> bool:
        return cls._at(path, "exists").exists()

    @classmethod
    def isdir(cls, path: str) -> bool:
        return cls._at(path, "isdir").is_dir()

    @classmethod
    def stat(cls, path: str) -> SimpleNamespace:
        found = _existing(cls._at(path, "stat"))
        status = found.stat()
        return SimpleNamespace(is_directory=found.is_dir(), length=status.st_size, mtime_nsec=status.st_mtime_ns)

    @classmethod
    def listdir(cls, path: str) -> list[str]:
        found = list(_existing(cls._at(path, "list")).iterdir())
        return [f"{each.name}/" if each.is_dir() else each.name for each in found]  # as gs:// does

    @classmethod
    def walk(cls, top: str, topdown: bool = True, onerror=None):  # TFX's Pusher copies its artifact with it
        for folder, folders, files in os.walk(_existing(cls._at(top, "walk")), topdown):
            yield f"objects://{Path(folder).relative_to(cls.root)}", folders, files

    @classmethod
    def makedirs(cls, path: str) -> None:
        """There are no folders."""

    @classmethod
    def remove(cls, path: str) -> None:
        _existing(cls._at(path, "remove")).unlink()

    @classmethod
    def rename(cls, src: str, dst: str, overwrite: bool = False) -> None:
        assert overwrite
        source, target = _existing(cls._at(src, "rename")), cls.root / dst.removeprefix("objects://")
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)

    @classmethod
    def rmtree(cls, path: str) -> None:
        top = _existing(cls._at(path, "rmtree"))
        for file in sorted(each for each in top.rglob("*") if each.is_file()):
            cls._at(f"objects://{file.relative_to(cls.root)}", "remove").unlink()
        shutil.rmtree(top)


def _existing(path: Path) -> Path:
    if not path.exists():
        raise filesystem.NotFoundError(path)
    return path


@pytest.fixture
def objects(tmp_path: Path) -> type[Objects]:
    """Return an empty object store, registered for `objects://` addresses."""
    Objects.root, Objects.operations, Objects.damage = tmp_path / "objects", [], ""
    Objects.stop_at = Objects.fail_at = 0
    Objects.root.mkdir()
    registry = filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY
    registry.register(Objects, priority=1)
    Objects.Stopped = Stopped
    return Objects
