"""The run file: the sections that it adds to the configuration of a detector, and its reader."""

from detloom.schemas.run_file.data_checks import (
    CountCheck,
    DataChecks,
    HugeBoxCheck,
    NearDuplicateCheck,
    OverlapCheck,
    ShareCheck,
    TinyBoxCheck,
)
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor, Override
from detloom.schemas.run_file.kubeflow import Kubeflow, SecretVariable, Volume
from detloom.schemas.run_file.model_card import ModelCardSettings
from detloom.schemas.run_file.nodes import Accelerator, NodeSettings, Toleration
from detloom.schemas.run_file.notifications import Email, Notifications, Webhook
from detloom.schemas.run_file.push import Push
from detloom.schemas.run_file.schedule import Retrain
from detloom.schemas.run_file.vertex import Vertex

__all__ = [
    "Accelerator",
    "BaselineGate",
    "CountCheck",
    "DataChecks",
    "Email",
    "EvaluatorSettings",
    "Gates",
    "HugeBoxCheck",
    "Kubeflow",
    "LatencyGate",
    "MetricFloor",
    "ModelCardSettings",
    "NearDuplicateCheck",
    "NodeSettings",
    "Notifications",
    "OverlapCheck",
    "Override",
    "Push",
    "Retrain",
    "SecretVariable",
    "ShareCheck",
    "TinyBoxCheck",
    "Toleration",
    "Vertex",
    "Volume",
    "Webhook",
]
