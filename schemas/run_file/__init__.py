"""The run file: the sections that it adds to the configuration of a detector, and its reader.

The settings that components take are imported when they are first used.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detloom.schemas.run_file.data_checks import DataChecks
    from detloom.schemas.run_file.evaluator_and_gates import BaselineGate, Evaluator, Gates, LatencyGate, MetricFloor
    from detloom.schemas.run_file.model_card import ModelCardConfig
    from detloom.schemas.run_file.notifications import Email, Notifications, Webhook
    from detloom.schemas.run_file.push import Push
    from detloom.schemas.run_file.schedule import Retrain

__all__ = [
    "BaselineGate",
    "DataChecks",
    "Email",
    "Evaluator",
    "Gates",
    "LatencyGate",
    "MetricFloor",
    "ModelCardConfig",
    "Notifications",
    "Push",
    "Retrain",
    "Webhook",
]

_MODULES = {
    "BaselineGate": "detloom.schemas.run_file.evaluator_and_gates",
    "DataChecks": "detloom.schemas.run_file.data_checks",
    "Email": "detloom.schemas.run_file.notifications",
    "Evaluator": "detloom.schemas.run_file.evaluator_and_gates",
    "Gates": "detloom.schemas.run_file.evaluator_and_gates",
    "LatencyGate": "detloom.schemas.run_file.evaluator_and_gates",
    "MetricFloor": "detloom.schemas.run_file.evaluator_and_gates",
    "ModelCardConfig": "detloom.schemas.run_file.model_card",
    "Notifications": "detloom.schemas.run_file.notifications",
    "Push": "detloom.schemas.run_file.push",
    "Retrain": "detloom.schemas.run_file.schedule",
    "Webhook": "detloom.schemas.run_file.notifications",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
