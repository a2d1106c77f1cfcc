"""Find the peer's environment, shared data, and facts about the machine."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

PEER_ENV = Path(os.environ.get("ODAPI_ENV", Path.home() / ".cache/detloom/peers/odapi"))
PEER_PYTHON = PEER_ENV / "bin/python"
NO_PEER = f"skipped, {PEER_ENV} is not built (make peer-odapi)"
SHARED = Path(os.environ.get("DETLOOM_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def has_peer() -> bool:
    return (PEER_ENV / "complete").is_file()


def find_bccd(given: Path | None) -> Path:
    """Return the data set's folder; exit, as skipped, if it does not exist."""
    data = given or SHARED / "data/bccd"
    if not (data / "Annotations").is_dir():
        print(f"skipped: no BCCD in {data}; set DETLOOM_SHARED or use --data")
        sys.exit(0)
    return data.resolve()


def describe_machine() -> dict[str, Any]:
    """Describe the machine for a result's settings."""
    return {"cores": os.cpu_count(), "machine": platform.processor() or platform.machine()}
