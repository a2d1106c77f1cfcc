"""The public API: its names, their cost, their types, and the record of their signatures."""

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("public_api", ROOT / "scripts" / "public_api.py")
public_api = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(public_api)

USER_FILE = """
from pathlib import Path
from detloom import InputError, Prediction, evaluate, load_detector, train
from detloom.components import DatasetValidator, DetectionEvaluator
from detloom.schemas.run_file import Gates, MetricFloor
import numpy as np

detector = load_detector(Path("serving"))
one: Prediction = detector.predict("a.jpg")
several: list[Prediction] = detector.predict([b"", np.zeros((8, 8, 3), np.uint8)])
one.above(0.5).draw().save("a.png")
rows: list[dict[str, object]] = [dict(row) for row in one.to_coco(image_id=3)]
gates = Gates(floors=(MetricFloor(metric="AP50", min=0.5),))
print(train("ssd_mobilenet_v2_fpnlite_320x320", "examples", "run").best.AP)
print(evaluate("serving", "examples", gates=gates).decision.sentence)
"""
WRONG_LINES = {
    "detector.predict(3)": "call-overload",
    'several = detector.predict("a.jpg")': "assignment",
    'DetectionEvaluator("examples", "model", gate=gates)': "call-arg",
    "from detloom import load_model": "attr-defined",
}
MYPY_INI = """
[mypy]
strict = True
follow_imports = silent
[mypy-{}]
follow_imports = skip
ignore_missing_imports = True
"""
# As in pyproject.toml: they have no types, or so many that checking takes minutes.
SKIPPED = ("tensorflow.*", "keras.*", "tfx.*", "apache_beam.*", "ml_metadata.*", "google.*", "sklearn.*", "scipy.*")


@pytest.mark.parametrize("package", public_api.PACKAGES)
def test_public_names_are_listed_and_found(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(public_api.public_modules(public_api.PACKAGES[package]))
    assert {*module.__all__, "__name__"} <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match=f"{package}.*no_such_name"):
        _ = module.no_such_name


def test_importing_the_packages_loads_no_large_library():
    code = (
        "import sys, detloom, detloom.components, detloom.schemas.run_file\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert "detloom" in loaded
    assert not loaded & {"tensorflow", "keras", "tfx", "apache_beam", "numpy", "PIL", "click"}


def test_signatures_are_those_on_record():
    advice = "run scripts/public_api.py, and add a line to CHANGELOG.md"
    assert public_api.RECORD.read_text("utf-8") == public_api.describe_api(), advice


@pytest.mark.nightly  # mypy reads all of the package
def test_types_hold_for_a_user_outside_of_the_package(tmp_path):
    user_file = tmp_path / "user.py"
    user_file.write_text(USER_FILE + "".join(f"{line}  # type: ignore[{code}]\n" for line, code in WRONG_LINES.items()))
    (tmp_path / "mypy.ini").write_text(MYPY_INI.format(",".join(SKIPPED)))
    subprocess.run(["bash", ROOT / "scripts" / "link_dev.sh"], check=True)
    environment = {**os.environ, "MYPYPATH": str(ROOT / ".dev")}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
