"""Run the code that the tests on a cluster send to their helper pod."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "cluster"))  # tests are not a package


@pytest.mark.slow
def test_the_code_for_the_helper_pod_writes_examples(tmp_path):
    from test_workers import WRITE_EXAMPLES

    folders = [str(tmp_path / name) for name in ("digits", "examples")]
    done = subprocess.run([sys.executable, "-c", WRITE_EXAMPLES, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {split.name for split in (tmp_path / "examples").glob("Split-*")} == {
        "Split-eval",
        "Split-test",
        "Split-train",
    }
