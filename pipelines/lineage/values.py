"""Values that others wrote, as text: times, scores, JSON that may hold anything."""

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage.store import custom_property, node_name

DIGEST_CHARS = 12  # shown of a hash
_STATES = {pb.Execution.COMPLETE: "complete", pb.Execution.CACHED: "cached", pb.Execution.FAILED: "failed"}


def execution_facts(execution: pb.Execution | None, verb: str) -> dict[str, Any]:
    """For the facts of what it made."""
    if execution is None:
        return {}
    state = _STATES.get(execution.last_known_state, "")
    return {
        verb: f"{node_name(execution)}, execution {execution.id}{f', {state}' if state else ''}",
        "began": format_time_of(execution),
        "took": format_duration(execution),
        "code": custom_property(execution, "code_fingerprint"),
    }


def format_time_of(thing: pb.Artifact | pb.Execution) -> str:
    """When ML Metadata first heard of it."""
    milliseconds = thing.create_time_since_epoch
    if not milliseconds:
        return ""
    try:
        return format_time(datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat())
    except (ValueError, OverflowError, OSError):
        return ""


def format_time(text: str) -> str:
    """To the minute, UTC; what is no time comes back as it is."""
    try:
        return f"{datetime.fromisoformat(text).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return text


def format_duration(execution: pb.Execution) -> str:
    """From its first to its last entry in ML Metadata."""
    seconds = round((execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000)
    if seconds < 60:
        return f"{max(seconds, 0)} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_scores(scores: Mapping[str, float | None], split: str) -> str:
    """Those that are known, on one line; empty if none is."""
    told = ", ".join(f"{name} {format_score(value)}" for name, value in scores.items() if value is not None)
    return f"{told} on {split}" if told and split else told


def format_score(value: float | None) -> str:
    """COCO's -1 stands for a number that there is not."""
    return "" if value is None else "undefined" if value == -1 else f"{value:.3f}"


def format_count(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def object_of(text: Any) -> Mapping[str, Any]:
    """The object in a JSON text; empty where there is none."""
    try:
        return mapping_of(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def whole_of(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
