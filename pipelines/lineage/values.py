"""Read facts from the files of artifacts, and format untrusted values as text.

Missing, truncated or invalid files are treated as empty. The file names repeat those of the modules that write the
files, because importing these would load TensorFlow. A test compares them.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.components.examples_folder import SPLIT_PREFIX
from detloom.components.properties import CODE_FINGERPRINT
from detloom.pipelines.lineage.store import custom_property, node_name
from detloom.schemas.contracts.rejects import REPORT_FILE
from detloom.schemas.reading.format_duration import format_duration

DIGEST_CHARS = 12  # length of a shortened hash
_STATES = {pb.Execution.COMPLETE: "complete", pb.Execution.CACHED: "cached", pb.Execution.FAILED: "failed"}
SUMMARY_FILE = "training_summary.json"  # of trainer_module/run_state/train_result.py, in a ModelRun
BEST_FILE = "best/best.json"  # of trainer_module/weights/own_checkpoint.py, in a ModelRun
METRICS_FILE = "metrics.json"  # of components/evaluator/report/output_files.py, in a ModelEvaluation
DATASET_REPORT_TYPE = "detloom.DatasetReport"  # of components/artifact_types.py
INGESTION_REPORT_FILE = REPORT_FILE  # in detloom.Rejects
SCHEMA_DIFF_FILES = f"{SPLIT_PREFIX}*/SchemaDiff.pb"  # of TFX, in ExampleAnomalies
_MAX_BYTES = 20_000_000  # a report on thousands of classes has a few million bytes
_MAX_SPLITS = 50


def execution_facts(execution: pb.Execution | None, verb: str) -> dict[str, Any]:
    """Return facts about the execution that made an artifact."""
    if execution is None:
        return {}
    state = _STATES.get(execution.last_known_state, "")
    return {
        verb: f"{node_name(execution)}, execution {execution.id}{f', {state}' if state else ''}",
        "began": format_time_of(execution),
        "took": execution_duration(execution),
        "code": custom_property(execution, CODE_FINGERPRINT),
    }


def format_time_of(thing: pb.Artifact | pb.Execution) -> str:
    """Return the time at which it was created in ML Metadata."""
    milliseconds = thing.create_time_since_epoch
    if not milliseconds:
        return ""
    try:
        return format_time(datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat())
    except (ValueError, OverflowError, OSError):
        return ""


def format_time(text: str) -> str:
    """Format an ISO time to the minute, in UTC; return other text unchanged."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return text


def execution_duration(execution: pb.Execution) -> str:
    """Format the time from the first to the last update of the execution in ML Metadata."""
    milliseconds = execution.last_update_time_since_epoch - execution.create_time_since_epoch
    return format_duration(milliseconds / 1000)


def format_scores(scores: Mapping[str, float | None], split: str) -> str:
    """Format the known scores on one line; empty if there is none."""
    shown = ", ".join(f"{name} {format_score(value)}" for name, value in scores.items() if value is not None)
    return f"{shown} on {split}" if shown and split else shown


def format_score(value: float | None) -> str:
    """Format a score; COCO uses -1 for an undefined score."""
    return "" if value is None else "undefined" if value == -1 else f"{value:.3f}"


def format_count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def object_of(text: Any) -> Mapping[str, Any]:
    """Return the object in a JSON text; empty if there is none."""
    try:
        return mapping_of(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def int_of(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def may_exist(uri: str) -> bool:
    """Return True if the folder of an artifact exists. A remote folder is not checked and counts as existing."""
    if "://" in uri:
        return True
    try:
        return Path(uri).exists()
    except (OSError, ValueError):
        return False


def read_json(uri: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of an artifact; empty if it cannot be read."""
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
    """Return the number at these nested keys; None if there is none."""
    found: Any = value
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    try:
        return float(found)
    except OverflowError:  # integers in JSON have no limit
        return None


def text_in(value: Mapping[str, Any], key: str) -> str:
    """Return the text at this key; empty if there is none."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


def summarize_anomalies(uri: str) -> str | None:
    """Return a short summary of what ExampleValidator found; None if it cannot be read."""
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
