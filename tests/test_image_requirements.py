import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "image_requirements.py"
_SPEC = importlib.util.spec_from_file_location("image_requirements", SCRIPT)
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)

PYPROJECT = """
[project]
name = "detloom"
dependencies = ["tfx>=1.16", "numpy"]
[project.optional-dependencies]
dev = ["mypy"]
onnx = ["tf2onnx>=1.17", "onnx; python_version < '3.11'"]
"""


@pytest.mark.parametrize(
    ("accelerator", "extras", "more"),
    [
        ("cpu", "", []),
        ("tpu", "", []),
        ("gpu", "", ["tensorflow[and-cuda]"]),
        ("cpu", "onnx", ["tf2onnx>=1.17", "onnx; python_version < '3.11'"]),
        ("gpu", "onnx, dev", ["tensorflow[and-cuda]", "tf2onnx>=1.17", "onnx; python_version < '3.11'", "mypy"]),
    ],
)
def test_arguments_for_pip(accelerator, extras, more):
    assert script.requirements(PYPROJECT, accelerator, extras) == ["tfx>=1.16", "numpy", *more]


@pytest.mark.parametrize(
    ("accelerator", "extras", "message"),
    [
        ("rocm", "", "ACCELERATOR: got 'rocm', allowed: cpu, gpu, tpu."),
        ("cpu", "onnx,gui", "EXTRAS: got gui, allowed: dev, onnx."),
    ],
)
def test_unknown_accelerators_are_refused(accelerator, extras, message):
    with pytest.raises(ValueError, match=message):
        script.requirements(PYPROJECT, accelerator, extras)


def test_the_command_prints_one_requirement_per_line_and_refuses_without_traceback():
    done = subprocess.run([sys.executable, SCRIPT, ROOT / "pyproject.toml", "gpu"], capture_output=True, text=True)
    assert done.returncode == 0
    assert {"tfx>=1.16", "tensorflow[and-cuda]"} <= set(done.stdout.splitlines())
    done = subprocess.run([sys.executable, SCRIPT, ROOT / "pyproject.toml", "xpu"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "ACCELERATOR: got 'xpu', allowed: cpu, gpu, tpu.\n")
