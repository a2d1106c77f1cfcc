"""detloom: retrain object detectors in production with TFX.

The public names, listed in `__init__.pyi`, are imported when they are first used, so that importing the package loads
neither TensorFlow nor TFX. See docs/python_api.md.
"""

import pathlib as _pathlib

__version__ = "0.1.0"

# The owner fixed the top-level folders (components/, pipelines/, ...). setup.py maps them to detloom.*; in a checkout
# that is not installed, this line lets `import detloom.schemas` find them beside setup.py.
_checkout = _pathlib.Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "trainer_module").is_dir():
    __path__.append(str(_checkout))

from detloom.schemas.lazy_names import lazy_names as _lazy_names  # noqa: E402 - after the path

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
