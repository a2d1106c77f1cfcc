"""The run file: the sections that it adds to the configuration of a detector, and its reader.

The settings that components take are imported when they are first used.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detloom.schemas.run_file.data_checks import (
        AnchorRecall,
        BoxesInSplits,
        ClassBalance,
        ClassDrift,
        ClassesInSplits,
        ClassesInTrain,
        CrowdedImages,
        DataChecks,
        EmptyImages,
        ExactDuplicates,
        ExactDuplicatesWithinSplit,
        ExamplesPerSplit,
        HugeBoxes,
        NearDuplicates,
        NearDuplicatesWithinSplit,
        OverlappingBoxes,
        SizeDrift,
        TinyBoxes,
        UndecodableImages,
        UnknownClassIds,
        UnreadableRecords,
        UnsoundBoxes,
    )
    from detloom.schemas.run_file.evaluator_and_gates import (
        BaselineGate,
        Evaluator,
        Gates,
        LatencyGate,
        MetricFloor,
        Override,
    )
    from detloom.schemas.run_file.model_card import ModelCardConfig
    from detloom.schemas.run_file.notifications import Email, Notifications, Webhook
    from detloom.schemas.run_file.push import Push
    from detloom.schemas.run_file.schedule import Retrain

__all__ = [
    "AnchorRecall",
    "BaselineGate",
    "BoxesInSplits",
    "ClassBalance",
    "ClassDrift",
    "ClassesInSplits",
    "ClassesInTrain",
    "CrowdedImages",
    "DataChecks",
    "Email",
    "EmptyImages",
    "Evaluator",
    "ExactDuplicates",
    "ExactDuplicatesWithinSplit",
    "ExamplesPerSplit",
    "Gates",
    "HugeBoxes",
    "LatencyGate",
    "MetricFloor",
    "ModelCardConfig",
    "NearDuplicates",
    "NearDuplicatesWithinSplit",
    "Notifications",
    "OverlappingBoxes",
    "Override",
    "Push",
    "Retrain",
    "SizeDrift",
    "TinyBoxes",
    "UndecodableImages",
    "UnknownClassIds",
    "UnreadableRecords",
    "UnsoundBoxes",
    "Webhook",
]

_MODULES = {
    "AnchorRecall": "detloom.schemas.run_file.data_checks",
    "BaselineGate": "detloom.schemas.run_file.evaluator_and_gates",
    "BoxesInSplits": "detloom.schemas.run_file.data_checks",
    "ClassBalance": "detloom.schemas.run_file.data_checks",
    "ClassDrift": "detloom.schemas.run_file.data_checks",
    "ClassesInSplits": "detloom.schemas.run_file.data_checks",
    "ClassesInTrain": "detloom.schemas.run_file.data_checks",
    "CrowdedImages": "detloom.schemas.run_file.data_checks",
    "DataChecks": "detloom.schemas.run_file.data_checks",
    "Email": "detloom.schemas.run_file.notifications",
    "EmptyImages": "detloom.schemas.run_file.data_checks",
    "Evaluator": "detloom.schemas.run_file.evaluator_and_gates",
    "ExactDuplicates": "detloom.schemas.run_file.data_checks",
    "ExactDuplicatesWithinSplit": "detloom.schemas.run_file.data_checks",
    "ExamplesPerSplit": "detloom.schemas.run_file.data_checks",
    "Gates": "detloom.schemas.run_file.evaluator_and_gates",
    "HugeBoxes": "detloom.schemas.run_file.data_checks",
    "LatencyGate": "detloom.schemas.run_file.evaluator_and_gates",
    "MetricFloor": "detloom.schemas.run_file.evaluator_and_gates",
    "ModelCardConfig": "detloom.schemas.run_file.model_card",
    "NearDuplicates": "detloom.schemas.run_file.data_checks",
    "NearDuplicatesWithinSplit": "detloom.schemas.run_file.data_checks",
    "Notifications": "detloom.schemas.run_file.notifications",
    "OverlappingBoxes": "detloom.schemas.run_file.data_checks",
    "Override": "detloom.schemas.run_file.evaluator_and_gates",
    "Push": "detloom.schemas.run_file.push",
    "Retrain": "detloom.schemas.run_file.schedule",
    "SizeDrift": "detloom.schemas.run_file.data_checks",
    "TinyBoxes": "detloom.schemas.run_file.data_checks",
    "UndecodableImages": "detloom.schemas.run_file.data_checks",
    "UnknownClassIds": "detloom.schemas.run_file.data_checks",
    "UnreadableRecords": "detloom.schemas.run_file.data_checks",
    "UnsoundBoxes": "detloom.schemas.run_file.data_checks",
    "Webhook": "detloom.schemas.run_file.notifications",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
