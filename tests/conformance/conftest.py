"""Makes `conformance_driver` importable: tests are no package, and site-packages may hold a `tests` of its own."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from conformance_driver.run import Machine
from conformance_jobs import machine_at


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Where jobs run; what a test does here first, later jobs of the test see."""
    return machine_at(tmp_path / "machine")
