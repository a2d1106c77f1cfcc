"""Fixtures: folders that look like SavedModels."""

from collections.abc import Callable
from pathlib import Path

import pytest

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
