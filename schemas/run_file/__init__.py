"""The run file: the sections that it adds to the configuration of a detector, and its reader."""

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
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor, Override
from detloom.schemas.run_file.model_card import ModelCardSettings
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
    "EvaluatorSettings",
    "ExactDuplicates",
    "ExactDuplicatesWithinSplit",
    "ExamplesPerSplit",
    "Gates",
    "HugeBoxes",
    "LatencyGate",
    "MetricFloor",
    "ModelCardSettings",
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
