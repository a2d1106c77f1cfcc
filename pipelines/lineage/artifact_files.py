"""Read the JSON files of artifacts, which may be missing, truncated or invalid.

The file names repeat those of the modules that write the files, because importing these would load TensorFlow. A test
compares them.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUMMARY_FILE = "training_summary.json"  # of trainer_module/run_state/train_result.py, in a ModelRun
METRICS_FILE = "metrics.json"  # of components/evaluator/report/output_files.py, in a ModelEvaluation
DATASET_REPORT_TYPE = "detloom.DatasetReport"  # of components/artifact_types.py


def may_exist(uri: str) -> bool:
    """Return True if the folder of an artifact exists. A remote folder is not checked and counts as existing."""
    return "://" in uri or Path(uri).exists()


def read_json(uri: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of an artifact; empty if it cannot be read, or is remote."""
    try:
        return parse_object((Path(uri) / name).read_bytes())
    except OSError:
        return {}


def parse_object(text: Any) -> dict[str, Any]:
    """Return the object in a JSON text; empty if there is none."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def object_in(tree: Any, *keys: str) -> dict[str, Any]:
    """Return the object at these nested keys; empty if there is none."""
    value = _value_in(tree, keys)
    return value if isinstance(value, dict) else {}


def number_in(tree: Any, *keys: str) -> float | None:
    """Return the number at these nested keys; None if there is none."""
    value = _value_in(tree, keys)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # integers in JSON have no limit
        return None


def text_in(tree: Any, *keys: str) -> str:
    """Return the text at these nested keys; empty if there is none."""
    value = _value_in(tree, keys)
    return value if isinstance(value, str) else ""


def _value_in(tree: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
