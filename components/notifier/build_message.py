"""Build the message about a run from its artifacts, from an error, or from the final status of a backend.

Kubeflow and Vertex AI pass a `PipelineTaskFinalStatus` (api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines) to the
exit handler. Vertex AI fills in the message of the error. The open-source backend leaves it empty and uses the states
of ML Metadata (backend/src/v2/driver/resolve.go, resolveInputParameter); the failed tasks and their causes are read
from its API (`kubeflow_failures`).
"""

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfx.components.util import model_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact

from detloom.components.notifier.messages import RunMessage, run_link
from detloom.components.notifier.read_secret import references_of, variable_name
from detloom.components.properties import (
    DECISION_KEY,
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_IS_NEW_PROPERTY,
    PUSHED_PROPERTY,
    PUSHED_VERSION_PROPERTY,
    REASON_PROPERTY,
    TRAIN_PROPERTY,
    blessing_message,
    blessing_metrics,
    int_property,
    string_property,
)
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import HIDDEN, is_secret, parse_secret_reference
from detloom.schemas.run_file.notifications import Notifications

BLESSING_KEY, PUSHED_MODEL_KEY = keys.MODEL_BLESSING_KEY, keys.PUSHED_MODEL_KEY
_SUCCEEDED = ("SUCCEEDED", "COMPLETE", "CACHED", "SKIPPED")
_CANCELLED = ("CANCELLED", "CANCELED")
# Vertex AI's message: "The DAG failed because some tasks failed. The failed tasks are: [Trainer]."
_FAILED_TASKS = re.compile(r"failed tasks are: \[([A-Za-z0-9_., -]{1,500})\]")
_MIN_HIDDEN = 6  # characters; a shorter value may be part of an ordinary word
_MAX_READ = 4000


def build_result_message(input_dict: Mapping[str, Sequence[Artifact]], about: Mapping[str, Any]) -> RunMessage | None:
    """Return the message for blessing, pushed model and decision; None if they contain nothing new.

    Args:
        about: fields that all messages of the run have.
    """
    decision, blessing, pushed = (_first(input_dict, key) for key in (DECISION_KEY, BLESSING_KEY, PUSHED_MODEL_KEY))
    if decision is not None and blessing is None and not decision.get_int_custom_property(TRAIN_PROPERTY):
        return RunMessage(event="skipped", reason=decision.get_string_custom_property(REASON_PROPERTY), **about)
    if blessing is None:
        return None
    about = {**about, "reason": blessing_message([blessing]), "numbers": blessing_metrics(blessing)}
    if not model_utils.is_model_blessed(blessing):
        return RunMessage(event="refused", **about | {"subject": blessing.uri})
    if pushed is not None and (reason := string_property(pushed, REASON_PROPERTY)):
        return RunMessage(event="refused", **about | {"subject": f"not pushed {blessing.uri}", "reason": reason})
    if pushed is None or not pushed.get_int_custom_property(PUSHED_PROPERTY):
        return None
    # On one machine the list of sent messages is used instead: it also covers a run that was killed before it sent.
    if about["place"] != "local" and int_property(pushed, PUSHED_IS_NEW_PROPERTY) == 0:
        return None
    version = pushed.get_string_custom_property(PUSHED_VERSION_PROPERTY)
    destination = pushed.get_string_custom_property(PUSHED_DESTINATION_PROPERTY)
    about["subject"] = f"{destination} {version or pushed.uri}"
    return RunMessage(event="pushed", version=version, destination=destination, **about)


def _first(input_dict: Mapping[str, Sequence[Artifact]], key: str) -> Artifact | None:
    artifacts = input_dict.get(key) or []
    return artifacts[0] if artifacts else None


def build_error_message(
    pipeline: str, notifications: Notifications, node: str | None, error: BaseException
) -> RunMessage:
    """Return the message for an error on this machine."""
    reason = describe_error(error, references_of(notifications))
    return RunMessage(
        event="failed",
        pipeline=pipeline,
        place="local",
        machine=socket.gethostname(),
        node=node or "",
        reason=reason,
    )


def describe_error(error: BaseException, references: Iterable[str] = ()) -> str:
    """Return the text of an InputError, or the type and first line of any other error.

    Values of environment variables that are secrets by their name, or that one of the references names, are hidden,
    because a library may have put them into its text.
    """
    text = str(error)[:_MAX_READ]
    if not isinstance(error, InputError):
        first = text.strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    parsed = [parse_secret_reference(reference) for reference in references]
    named = {variable_name(each) if each.kind == "kubernetes" else each.name for each in parsed}
    secrets = {value.strip() for name, value in os.environ.items() if name in named or is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_HIDDEN:
            text = text.replace(secret, HIDDEN)
    return text


@dataclass(frozen=True, kw_only=True)
class FinalStatus:
    """Final status of a pipeline.

    Attributes:
        state: state as named by the backend; empty if it cannot be read.
        run: resource name of the job on Vertex AI, name of the workflow on Kubeflow.
        message: message of the error.
    """

    state: str = ""
    run: str = ""
    message: str = ""

    @property
    def is_success(self) -> bool:
        return self.state in _SUCCEEDED

    @property
    def reason(self) -> str:
        """Return one or two sentences about the cause of the failure."""
        if self.message or self.state in _CANCELLED:
            return self.message or "The run was cancelled."
        # A pod that is killed, for example because it is out of memory, does not update its state.
        return f"The cause could not be read (state {self.state or 'unknown'}); see the page of the run."


def parse_final_status(value: Any) -> FinalStatus:
    """Parse the parameter: JSON text, or a `google.protobuf.Struct`; an unknown status if that fails.

    If the type of the parameter is STRING, the driver converts the struct to text (resolve.go,
    handleParamTypeValidationAndConversion).
    """
    try:
        fields = dict(json.loads(value) if isinstance(value, str) else value.items())
        message = dict(fields.get("error") or {}).get("message") or ""
        status = (fields.get("state") or "", fields.get("pipelineJobResourceName") or "", message)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return FinalStatus()
    state, run, message = (text if isinstance(text, str) else "" for text in status)
    return FinalStatus(state=state, run=run, message=message)


def build_failure_message(status: FinalStatus, about: Mapping[str, Any], failures: Mapping[str, str]) -> RunMessage:
    """Return the message for the final status of a pipeline.

    Args:
        about: fields that all messages of the run have.
        failures: cause by failed task, of `read_failures`.
    """
    causes = {task: cause for task, cause in failures.items() if cause}
    reason = " ".join(causes.values() if len(causes) == 1 else map(": ".join, causes.items())) or status.reason
    known = {
        "run": about["run"] or status.run,
        "subject": about["subject"] or status.run,
        "links": about["links"] or run_link(about["place"], status.run),
    }
    match = _FAILED_TASKS.search(status.message)
    node = ", ".join(failures) or (match[1] if match else "")
    return RunMessage(event="failed", node=node, reason=reason, **{**about, **known})
