"""The push record: one line of JSON for each push and rollback, beside the versions and in their manifests."""

import contextlib
import getpass
import json
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from detloom.schemas.redact import hide_secrets

RECORD_FILE = "push_record.jsonl"
MAX_RECORD_BYTES = 256 << 20

Action = Literal["push", "rollback"]


def find_user() -> str:
    """Who runs this process; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a pushed model comes from and on whose word.

    Attributes:
        model_uri: where the model was.
        run_id: of the pipeline run; empty for a push by hand.
        reason: why it was pushed by hand, or rolled back.
        blessing: `id`, `uri`, `blessed` and `sentence` of the blessing; empty where there is none.
        metrics: main numbers by name.
    """

    model_uri: str
    by: str = field(default_factory=find_user)
    host: str = field(default_factory=socket.gethostname)
    run_id: str = ""
    reason: str = ""
    blessing: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def make_record(
    origin: Origin,
    *,
    action: Action,
    now: float,
    version: int,
    digest: str,
    previous_version: int | None,
    of_version: int | None = None,
) -> dict[str, Any]:
    """One line.

    Args:
        now: Unix time.
        of_version: of a rollback: the version that was copied.
    """
    return {
        "time": datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
        "action": action,
        "version": version,
        "previous_version": previous_version,
        "of_version": of_version,
        "model_uri": hide_secrets(origin.model_uri),
        "manifest_sha256": digest,
        "by": origin.by,
        "host": origin.host,
        "run_id": origin.run_id,
        "reason": origin.reason,
        "blessing": dict(origin.blessing),
        "metrics": {name: value for name, value in origin.metrics.items() if _is_finite(value)},
    }


def _is_finite(value: object) -> bool:
    """JSON has no other numbers."""
    return isinstance(value, int | float) and math.isfinite(value)


def parse_records(data: bytes) -> list[dict[str, Any]]:
    """The lines, oldest first, without one that a crash cut off."""
    records = []
    for line in data.decode("utf-8", errors="replace").split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("version"), int):
                records.append(record)
    return records
