"""docs/config_reference.md matches the code."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_reference_is_up_to_date():
    spec = importlib.util.spec_from_file_location("config_reference", ROOT / "scripts" / "config_reference.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.REFERENCE.read_text("utf-8") == script.format_reference(), "run `make docs`"
