"""Texts of pipeline files, and what becomes of them; a text is called F, and an override of it `override`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.pipeline_config import PipelineConfigReport, parse_pipeline_config
from detloom.schemas.typed_dict import from_dict

FPNLITE = (Path(__file__).parent / "configs" / "fpnlite.config").read_text()


def _parse(text: str, override: str = "") -> PipelineConfigReport:
    return parse_pipeline_config(text, "F", override)


def _config_of(text: str, override: str = "") -> TrainEvalConfig:
    report = _parse(text, override)
    assert report.refused == ()
    return from_dict(TrainEvalConfig, report.located.data, locate=report.located.locate)


def _notes(which: str, text: str, override: str = "") -> dict[str, str]:
    return {note.path: note.reason for note in getattr(_parse(text, override), which)}


@pytest.fixture(scope="session")
def parse() -> Callable[..., PipelineConfigReport]:
    """`parse(text, override="")`"""
    return _parse


@pytest.fixture(scope="session")
def config_of() -> Callable[..., TrainEvalConfig]:
    """`config_of(text, override="")`, of which nothing is refused."""
    return _config_of


@pytest.fixture(scope="session")
def notes() -> Callable[..., dict[str, str]]:
    """`notes("refused", text, override="")`: field -> reason."""
    return _notes


@pytest.fixture(scope="session")
def refused() -> Callable[[str], dict[str, str]]:
    """`refused(override)`: what of an override of fpnlite.config is refused, and why."""
    return lambda override: _notes("refused", FPNLITE, override)


@pytest.fixture(scope="session")
def ignored() -> Callable[[str], dict[str, str]]:
    """`ignored(override)`: what of fpnlite.config and an override of it is ignored, and why."""
    return lambda override: _notes("ignored", FPNLITE, override)
