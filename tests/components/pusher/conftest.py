"""Folders that look like models, and a storage without rename."""

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tfx.dsl.io import filesystem, filesystem_registry

from detloom.components.pusher.manifest import MANIFEST_FILE, Manifest, parse_manifest


@pytest.fixture
def make_model() -> Callable[..., Path]:
    """What a push takes for a SavedModel."""

    def make(folder: Path, content: bytes = b"graph") -> Path:
        (folder / "variables").mkdir(parents=True)
        (folder / "assets").mkdir()
        (folder / "saved_model.pb").write_bytes(content)
        (folder / "variables" / "variables.index").write_bytes(b"index")
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
    """Of a version's folder; None for a manifest that is none."""
    return lambda version_dir: parse_manifest((version_dir / MANIFEST_FILE).read_bytes())


class Stopped(BaseException):
    """As if the process had been killed: no handler for errors catches it, and nothing after it works any more."""


class Objects(filesystem.Filesystem):
    """objects://bucket/name: whole objects that become visible when they are closed, no folders, no rename.

    Attributes:
        root: the folder that holds them.
        operations: what was asked of it so far.
        stop_at: number of the operation from which on everything fails, as for a killed process; 0 for none.
        fail_at: number of the one operation that fails with an error.
        damage: objects whose name ends so lose half of their bytes when written.
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
    def exists(cls, path: str) -> bool:
        return cls._at(path, "exists").exists()

    @classmethod
    def isdir(cls, path: str) -> bool:
        return cls._at(path, "isdir").is_dir()

    @classmethod
    def listdir(cls, path: str) -> list[str]:
        found = list(_existing(cls._at(path, "list")).iterdir())
        return [f"{each.name}/" if each.is_dir() else each.name for each in found]  # as gs:// does

    @classmethod
    def makedirs(cls, path: str) -> None:
        """There are no folders."""

    @classmethod
    def remove(cls, path: str) -> None:
        _existing(cls._at(path, "remove")).unlink()

    @classmethod
    def rename(cls, src: str, dst: str, overwrite: bool = False) -> None:
        raise NotImplementedError("objects cannot be renamed")

    @classmethod
    def rmtree(cls, path: str) -> None:
        top = _existing(cls._at(path, "rmtree"))
        for file in sorted(each for each in top.rglob("*") if each.is_file()):
            cls._at(f"objects://{file.relative_to(cls.root)}", "remove").unlink()
        shutil.rmtree(top)

    @classmethod
    def walk(cls, top: str, topdown: bool = True, onerror=None) -> Iterator[tuple[str, list[str], list[str]]]:
        folder = cls._at(top, "walk")
        for path in sorted([folder, *folder.rglob("*")]):
            if path.is_dir():
                names = [each.name for each in path.iterdir() if each.is_file()]
                inside = path.relative_to(cls.root)
                yield f"objects://{inside}/", [], names


def _existing(path: Path) -> Path:
    if not path.exists():
        raise filesystem.NotFoundError(path)
    return path


@pytest.fixture
def objects(tmp_path: Path) -> type[Objects]:
    """The storage, empty; `objects://` addresses lead there."""
    Objects.root, Objects.operations, Objects.damage = tmp_path / "objects", [], ""
    Objects.stop_at = Objects.fail_at = 0
    Objects.root.mkdir()
    registry = filesystem_registry.DEFAULT_FILESYSTEM_REGISTRY
    registry.register(Objects, priority=1)
    Objects.Stopped = Stopped
    return Objects
