"""Compiled jobs of the run files in this folder; each is compiled once per session."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from detloom.schemas.reading.overrides import parse_set
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import Place, RunFile

sys.path.append(str(Path(__file__).parents[2] / "conformance"))  # tests are not a package
RUN_FILES = Path(__file__).parent / "run_files"


def place_of(name: str) -> Place:
    return "kubeflow" if name.startswith("kubeflow") else "vertex"


@pytest.fixture(autouse=True)
def line_with_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run files with a TPU can be compiled with any line in these tests."""
    monkeypatch.setattr("detloom.pipelines.compile.check_run.tfx_line", lambda: "1.16")


@pytest.fixture(scope="session")
def read_run() -> Callable[..., RunFile]:
    """Read a run file by name, with settings in the format of `--set`."""

    def read(name: str, *settings: str) -> RunFile:
        path = RUN_FILES / f"{name}.yaml"
        return read_run_file(path, overrides=[parse_set(each) for each in settings], place=place_of(name))

    return read


@pytest.fixture(scope="session")
def compile_text(read_run) -> Callable[..., str]:
    """Return the compiled text of a run file; the environment contains the secret that it refers to."""
    from detloom.pipelines.compile.compile_job import compile_job

    texts: dict[tuple[str, ...], str] = {}

    def compile_named(name: str, *settings: str) -> str:
        key = (name, *settings)
        if key not in texts:
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("SMTP_USER", "planted-user")
                texts[key] = compile_job(read_run(name, *settings), place_of(name))
        return texts[key]

    return compile_named


@pytest.fixture(scope="session")
def compile_spec(compile_text) -> Callable[..., dict[str, Any]]:
    """Return the compiled pipeline spec of a run file."""

    def compile_named(name: str, *settings: str) -> dict[str, Any]:
        text = compile_text(name, *settings)
        if place_of(name) == "vertex":
            return dict(json.loads(text)["pipelineSpec"])
        return dict(next(yaml.safe_load_all(text)))

    return compile_named
