"""TFX components. Each folder: component.py, executor.py, and the logic in TFX-free files.

The public names are imported when they are first used; docs/components/ has a page for each component.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detloom.components.dataset_validator.component import DatasetValidator
    from detloom.components.evaluator.component import DetectionEvaluator
    from detloom.components.example_gen.component import DetectionExampleGen
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.components.model_card.component import ModelCard
    from detloom.components.notebooks import show_in_notebooks
    from detloom.components.notifier.component import Notifier
    from detloom.components.pusher.component import DetectionPusher
    from detloom.components.retrain.component import RetrainDecision, TrainingRecord, training_wanted

__all__ = [
    "DatasetValidator",
    "DetectionEvaluator",
    "DetectionExampleGen",
    "DetectionPusher",
    "ExampleGenParams",
    "ModelCard",
    "Notifier",
    "RetrainDecision",
    "TrainingRecord",
    "show_in_notebooks",
    "training_wanted",
]

_MODULES = {
    "DatasetValidator": "detloom.components.dataset_validator.component",
    "DetectionEvaluator": "detloom.components.evaluator.component",
    "DetectionExampleGen": "detloom.components.example_gen.component",
    "DetectionPusher": "detloom.components.pusher.component",
    "ExampleGenParams": "detloom.components.example_gen.params",
    "ModelCard": "detloom.components.model_card.component",
    "Notifier": "detloom.components.notifier.component",
    "RetrainDecision": "detloom.components.retrain.component",
    "TrainingRecord": "detloom.components.retrain.component",
    "show_in_notebooks": "detloom.components.notebooks",
    "training_wanted": "detloom.components.retrain.component",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
