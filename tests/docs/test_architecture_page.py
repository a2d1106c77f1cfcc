"""The page about the architecture names modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def test_modules_and_folders_exist():
    paths = set(re.findall(r"`((?:schemas|trainer_module|components|pipelines)/[a-z_/]*(?:\.py)?)`", PAGE))
    assert len(paths) > 50
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_types_of_the_diagram_are_classes():
    diagram = re.search(r"```mermaid\nflowchart TB\n(.*?)```", PAGE, re.DOTALL)[1]
    names = set(re.findall(r"\b[A-Z][A-Za-z]+\b", diagram))
    sources = "\n".join(
        path.read_text("utf-8")
        for layer in ("schemas", "trainer_module", "components", "pipelines")
        for path in (ROOT / layer).rglob("*.py")
    )
    assert len(names - {"TB"}) >= 20
    assert sorted(name for name in names if not re.search(rf"^class {name}\b", sources, re.MULTILINE)) == []
