"""The generated pages match the code."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("name", ["config_reference", "command_reference", "reliability_page"])
def test_page_is_up_to_date(name):
    script = load_script(name)
    assert script.REFERENCE.read_text("utf-8") == script.format_reference(), "run `make docs`"


def test_pages_of_the_pipeline_config_are_up_to_date(reference_dir):
    script, docs = load_script("pipeline_config_docs"), ROOT / "docs"
    assert (docs / "pipeline_config.md").read_text("utf-8") == script.field_docs(), "run `make docs`"
    zoo = script.zoo_docs(reference_dir / "zoo_configs")
    assert (docs / "zoo_configs.md").read_text("utf-8") == zoo, "run `make docs ARGS=ZOO_DIR`"
