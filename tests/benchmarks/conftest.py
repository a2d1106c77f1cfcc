"""Add the folder of the benchmarks to the path: they are scripts, not a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
