"""Make `conformance_driver` importable: tests are not a package, and site-packages may contain another `tests`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
