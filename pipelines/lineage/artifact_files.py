"""What the folders of artifacts add to ML Metadata. They may be gone, cut off, or hold anything: then they add nothing.

File names are those of the modules that write them; these import TensorFlow, which would take longer than all of this.
A test compares them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detloom.schemas.rejects import REPORT_FILE

SUMMARY_FILE = "training_summary.json"  # of trainer_module/train_result.py, in a ModelRun
BEST_FILE = "best/best.json"  # of trainer_module/checkpoints/own_checkpoint.py, in a ModelRun
METRICS_FILE = "metrics.json"  # of components/evaluator/report.py, in a ModelEvaluation
DATASET_REPORT_TYPE = "detloom.DatasetReport"  # of components/artifact_types.py
DATASET_REPORT_FILE = "report.json"  # of components/dataset_validator/report.py, in a detloom.DatasetReport
INGESTION_REPORT_FILE = REPORT_FILE  # in detloom.Rejects
SCHEMA_DIFF_FILES = "Split-*/SchemaDiff.pb"  # of TFX, in ExampleAnomalies
_MAX_BYTES = 20_000_000  # a report on thousands of classes has a few millions
_MAX_SPLITS = 50


def is_there(uri: str) -> bool:
    """Whether an artifact's folder can be seen from here; one in a bucket counts as there, as nobody looks."""
    if "://" in uri:
        return True
    try:
        return Path(uri).exists()
    except (OSError, ValueError):
        return False


def read_json(uri: str, name: str) -> dict[str, Any]:
    """The object in a file of an artifact; empty if there is none that can be read."""
    if "://" in uri:
        return {}
    try:
        with (Path(uri) / name).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        value = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def number_in(value: Mapping[str, Any], *keys: str) -> float | None:
    """The number below these keys, and nothing else that stands there."""
    found: Any = value
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    try:
        return float(found)
    except OverflowError:  # JSON's integers have no limit
        return None


def text_in(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def describe_anomalies(uri: str) -> str | None:
    """What ExampleValidator found against the schema, in a few words; None if it cannot be read."""
    from google.protobuf.message import DecodeError
    from tensorflow_metadata.proto.v0 import anomalies_pb2

    found = set()
    try:
        files = sorted(Path(uri).glob(SCHEMA_DIFF_FILES))[:_MAX_SPLITS] if "://" not in uri else []
        for path in files:
            with path.open("rb") as file:
                found |= set(anomalies_pb2.Anomalies.FromString(file.read(_MAX_BYTES)).anomaly_info)
    except (OSError, ValueError, DecodeError):
        return None
    if not files:
        return None
    return f"anomalies in {', '.join(sorted(found)[:5])}" if found else "no anomalies"
