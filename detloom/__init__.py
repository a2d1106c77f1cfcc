"""detloom: retrain object detectors in production with TFX."""

import pathlib as _pathlib

__version__ = "0.1.0"

# The owner fixed the top-level folders (components/, pipelines/, ...). setup.py maps them to detloom.*; in a checkout
# that is not installed, this line lets `import detloom.schemas` find them beside setup.py.
_checkout = _pathlib.Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "trainer_module").is_dir():
    __path__.append(str(_checkout))
