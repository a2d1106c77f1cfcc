"""Make `conformance_driver` importable: tests are not a package, and site-packages may contain another `tests`."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from conformance_driver.run import Machine
from conformance_jobs import machine_at


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return the machine of a test; its jobs see each other."""
    return machine_at(tmp_path / "machine")
