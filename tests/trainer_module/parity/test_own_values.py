"""The script of docs/parity.md by which others check values of their own: through nothing but public functions."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.meta


@pytest.fixture
def script() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/parity.md").read_text("utf-8"), re.DOTALL)
    return found


def test_the_script_runs_and_equals_the_reference_values(script, reference_dir, monkeypatch, capsys):
    monkeypatch.chdir(reference_dir)
    names: dict[str, object] = {}
    exec(compile(script, "docs/parity.md", "exec"), names)
    assert max(names["errors"].values()) < 2e-3
    assert "(checkpoint type 'full': 100.0% of its parameters)" in capsys.readouterr().out
    assert set(names["losses"]) == {"class_loss", "box_loss"}
    assert names["detections"]["num_detections"].shape == (2,)
