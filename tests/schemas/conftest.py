"""Fixtures that parse texts of `pipeline.config`; messages call the text F and its override `override`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.reader import read_messages
from detloom.schemas.odapi.rules import PipelineConfigReport
from detloom.schemas.odapi.text_format import merge_text, new_root
from detloom.schemas.reading.typed_dict import from_dict

FPNLITE = (Path(__file__).parent / "configs" / "fpnlite.config").read_text()


def _parse(text: str, override: str = "") -> PipelineConfigReport:
    root = new_root("F")
    merge_text(root, text, "F")
    merge_text(root, override, "override")
    return read_messages(root)


def _config_of(text: str, override: str = "") -> TrainEvalConfig:
    report = _parse(text, override)
    assert report.refused == ()
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


def _notes(which: str, text: str, override: str = "") -> dict[str, str]:
    return {note.path: note.reason for note in getattr(_parse(text, override), which)}


@pytest.fixture(scope="session")
def parse() -> Callable[..., PipelineConfigReport]:
    """Return `parse(text, override="")`."""
    return _parse


@pytest.fixture(scope="session")
def config_of() -> Callable[..., TrainEvalConfig]:
    """Return `config_of(text, override="")`, which asserts that no field is refused."""
    return _config_of


@pytest.fixture(scope="session")
def notes() -> Callable[..., dict[str, str]]:
    """Return `notes("refused", text, override="")`, which maps fields to reasons."""
    return _notes


@pytest.fixture(scope="session")
def refused() -> Callable[[str], dict[str, str]]:
    """Return `refused(override)`, which maps the refused fields of an override of fpnlite.config to reasons."""
    return lambda override: _notes("refused", FPNLITE, override)


@pytest.fixture(scope="session")
def ignored() -> Callable[[str], dict[str, str]]:
    """Return `ignored(override)`, which maps the ignored fields of fpnlite.config and an override to reasons."""
    return lambda override: _notes("ignored", FPNLITE, override)
