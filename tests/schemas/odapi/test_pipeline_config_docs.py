"""The generated pages match the mapping."""

import importlib.util
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def generator() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_config_docs", ROOT / "scripts" / "pipeline_config_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_of_fields_is_up_to_date(generator):
    page = (ROOT / "docs" / "pipeline_config.md").read_text()
    assert page == generator.field_docs(), "run python scripts/pipeline_config_docs.py"


def test_page_of_the_zoo_is_up_to_date(generator, reference_dir):
    page = (ROOT / "docs" / "zoo_configs.md").read_text()
    assert page == generator.zoo_docs(reference_dir / "zoo_configs"), (
        "run python scripts/pipeline_config_docs.py ZOO_DIR"
    )


def test_page_of_fields_shows_rules(generator):
    page = generator.field_docs()
    assert "| `gradient_clipping_by_norm` | float | `0.0` | mapped to `gradient_clipping` (" in page
    assert "| `explicit_background_class` | bool | `false` | refused unless `false`: " in page
    assert "| Context | FasterRcnn.context_config | refused: Context R-CNN is not supported" in page
