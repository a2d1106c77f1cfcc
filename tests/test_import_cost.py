"""Check which modules an import loads, in a new interpreter; test_layering.py reads what trainer_module imports."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print("\\n".join(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def roots_after_importing(package: str) -> set[str]:
    """Return the top-level names in sys.modules after importing all modules of `package`."""
    # In the checkout's root, so that the package is found in a Python where it is not installed.
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, package], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("detloom.schemas", {"tensorflow", "keras", "tfx", "apache_beam", "PIL", "sklearn"}),
        ("detloom.components.pages", {"tensorflow", "keras", "tfx", "apache_beam", "PIL", "numpy"}),
    ],
)
def test_importing_leaves_out(package: str, unwanted: set[str]):
    roots = roots_after_importing(package)
    assert "detloom" in roots
    assert not roots & unwanted
