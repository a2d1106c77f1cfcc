"""Fixtures with folders that look like models."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[[str], Path]:
    """Write a folder that a push accepts as a SavedModel; its content depends on the name."""

    def make(name: str) -> Path:
        folder = tmp_path / "models" / name / "Format-Serving"
        (folder / "variables").mkdir(parents=True)
        (folder / "saved_model.pb").write_bytes(name.encode())
        (folder / "variables" / "variables.index").write_bytes(f"weights of {name}".encode())
        return folder

    return make


@pytest.fixture
def push(make_model, tmp_path: Path) -> Callable[..., Path]:
    """Push a model with a name as a version; return its SavedModel folder."""
    from detloom.components.pusher.push import push_model

    def push_named(name: str, version: int) -> Path:
        folder = tmp_path / "models" / name / "Format-Serving"
        model = folder if folder.is_dir() else make_model(name)
        push_model(model, tmp_path / "pushed", check=lambda copy: None, now=lambda: version)
        return model

    return push_named
