"""Arrows point one way: schemas <- trainer_module <- components <- pipelines. Imports inside functions count too."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("schemas", "trainer_module", "components", "pipelines")
# Roots that a layer must not import; of `schemas`, the only ones it may beside the standard library.
FORBIDDEN = {"trainer_module": {"tfx", "tfx_bsl", "apache_beam", "ml_metadata", "kfp"}}
ALLOWED_IN_SCHEMAS = {"numpy", "yaml"}  # PyYAML: run files are YAML and are typed and checked there
# Beyond them, by file. protobuf: only its own tokenizer cuts a pipeline.config as the Object Detection API does.
ALLOWED_IN_FILE = {"schemas/odapi/text_format.py": "google.protobuf"}


def imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; relative names are resolved against `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            # `from detloom import x` may import the layer x, so the names count as well.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def fault_of(layer: str, name: str, file: Path) -> str | None:
    """What is wrong with importing `name` in a file of `layer`, or None."""
    root, _, rest = name.partition(".")
    if name.startswith(ALLOWED_IN_FILE.get(file.as_posix(), "no such package")):
        return None
    if root in LAYERS:
        return f"import it as detloom.{root}"
    if root == "detloom":
        target = rest.partition(".")[0]
        if target in LAYERS and LAYERS.index(target) > LAYERS.index(layer):
            return f"{layer} must not know {target}"
    elif root in FORBIDDEN.get(layer, ()):
        return f"{layer} must not import {root}"
    elif layer == "schemas" and root not in sys.stdlib_module_names | ALLOWED_IN_SCHEMAS:
        return f"schemas may import the standard library, {' and '.join(sorted(ALLOWED_IN_SCHEMAS))} only"
    return None


def faults(layer: str, source: str, file: Path) -> list[str]:
    package = ("detloom", *file.parent.parts)
    found = ((line, name, fault_of(layer, name, file)) for line, name in imports(ast.parse(source, str(file)), package))
    return [f"{file}:{line}: {name}: {fault}" for line, name, fault in found if fault]


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_one_way(layer: str):
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files, f"{layer}/ holds no Python file"
    wrong = [fault for file in files for fault in faults(layer, file.read_text("utf-8"), file.relative_to(ROOT))]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("layer", "source", "named"),
    [
        ("schemas", "def f():\n    from detloom.trainer_module import train", "schemas/x.py:2"),
        ("schemas", "import tensorflow as tf", "schemas/x.py:1"),
        ("schemas", "from google.protobuf import text_format", "schemas/x.py:1"),
        ("trainer_module", "from detloom import components", "trainer_module/x.py:1"),
        ("trainer_module", "\nfrom ..pipelines import dag", "trainer_module/x.py:2"),
        ("trainer_module", "import apache_beam.io", "trainer_module/x.py:1"),
        ("components", "import detloom.pipelines.cli", "components/x.py:1"),
        ("pipelines", "from schemas import config", "pipelines/x.py:1"),
    ],
)
def test_wrong_arrow_is_reported_with_file_and_line(layer: str, source: str, named: str):
    assert [fault for fault in faults(layer, source, Path(layer, "x.py")) if fault.startswith(named + ": ")]


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("schemas", "import json, numpy.typing, yaml\nfrom . import errors"),
        ("trainer_module", "import tensorflow\nfrom detloom import __version__\nfrom detloom.schemas import config"),
        ("components", "import apache_beam as beam\nfrom tfx import v1 as tfx\nfrom ..trainer_module import train"),
        ("pipelines", "from detloom.components.pusher import component"),
    ],
)
def test_right_arrow_passes(layer: str, source: str):
    assert faults(layer, source, Path(layer, "x.py")) == []
