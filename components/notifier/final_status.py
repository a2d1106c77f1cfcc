"""How a pipeline ended, as a backend tells its exit handler.

Both hand over a `PipelineTaskFinalStatus` (api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines). Vertex AI gives the
error with code and message. The open-source backend leaves the error empty and names ML Metadata's states instead of
the pipeline's (backend/src/v2/driver/resolve.go, resolveInputParameter); where the parameter's type is STRING it makes
JSON text of the struct, else the container gets the struct (the same file, handleParamTypeValidationAndConversion).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SUCCEEDED = ("SUCCEEDED", "COMPLETE", "CACHED", "SKIPPED")
_CANCELLED = ("CANCELLED", "CANCELED")
_FAILED = ("FAILED", "NOT_TRIGGERED", "UNSCHEDULABLE")
# Words of Vertex AI: "The DAG failed because some tasks failed. The failed tasks are: [Trainer]."
_FAILED_TASKS = re.compile(r"failed tasks are: \[([A-Za-z0-9_., -]{1,500})\]")


@dataclass(frozen=True, kw_only=True)
class FinalStatus:
    """How a pipeline ended.

    Attributes:
        state: the backend's word; empty if it said none that can be read.
        run: resource name of the job on Vertex AI, name of the workflow on Kubeflow.
        message: of the error.
    """

    state: str = ""
    run: str = ""
    message: str = ""

    @property
    def is_success(self) -> bool:
        return self.state in _SUCCEEDED

    @property
    def failed_tasks(self) -> str:
        found = _FAILED_TASKS.search(self.message)
        return found[1] if found else ""

    @property
    def reason(self) -> str:
        """Why it failed, in a sentence or two."""
        if self.message:
            return self.message
        if self.state in _CANCELLED:
            return "The run was cancelled."
        if self.state in _FAILED:
            return "The backend does not tell its exit handler which node failed; the page of the run does."
        # A pod that is killed, by the system for its memory for instance, leaves its state as it was.
        return f"The run ended and the backend has not noted how (state {self.state or 'unknown'})."


def parse_final_status(value: object) -> FinalStatus:
    """Read the parameter; whatever cannot be read is an unknown end, and never an error.

    Args:
        value: JSON text, a dictionary, or `google.protobuf.Struct`, which behaves like one.
    """
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return FinalStatus()
    fields = _mapping(value)
    return FinalStatus(
        state=_text(fields, "state"),
        run=_text(fields, "pipelineJobResourceName", "pipeline_job_resource_name"),
        message=_text(_mapping(fields.get("error")), "message"),
    )


def _mapping(value: object) -> dict[str, Any]:
    """A Struct calls itself a mapping and has no `get`."""
    return dict(value.items()) if isinstance(value, Mapping) else {}


def _text(fields: dict[str, Any], *names: str) -> str:
    """The first of the names that is there: the SDK accepts both spellings (sdk/python/kfp/dsl/executor.py)."""
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")
