"""detloom: retrain object detectors in production with TFX.

The public names of this package and of `detloom.components` are imported when they are first used, so that importing
the packages loads neither TensorFlow nor TFX. See docs/python_api.md.
"""

import importlib as _importlib
import pathlib as _pathlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# The owner fixed the top-level folders (components/, pipelines/, ...). setup.py maps them to detloom.*; in a checkout
# that is not installed, this line lets `import detloom.schemas` find them beside setup.py.
_checkout = _pathlib.Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "trainer_module").is_dir():
    __path__.append(str(_checkout))

if TYPE_CHECKING:
    from detloom.pipelines.python_api import (
        LoadedDetector,
        evaluate,
        load_detector,
        model_input,
        run,
        train,
        trainer_config,
    )
    from detloom.schemas.errors import InputError
    from detloom.trainer_module.export.predict import Prediction

__all__ = [
    "InputError",
    "LoadedDetector",
    "Prediction",
    "evaluate",
    "load_detector",
    "model_input",
    "run",
    "train",
    "trainer_config",
]

_MODULES = {
    "InputError": "detloom.schemas.errors",
    "LoadedDetector": "detloom.pipelines.python_api",
    "Prediction": "detloom.trainer_module.export.predict",
    "evaluate": "detloom.pipelines.python_api",
    "load_detector": "detloom.pipelines.python_api",
    "model_input": "detloom.pipelines.python_api",
    "run": "detloom.pipelines.python_api",
    "train": "detloom.pipelines.python_api",
    "trainer_config": "detloom.pipelines.python_api",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
