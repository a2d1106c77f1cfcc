"""The generated pages match the code."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["config_reference", "command_reference", "reliability_page"])
def test_page_is_up_to_date(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.REFERENCE.read_text("utf-8") == script.format_reference(), "run `make docs`"
