"""Find the event that a message reports: in the artifacts of a run, in an error, or in the final status of a backend.

Kubeflow and Vertex AI pass a `PipelineTaskFinalStatus` (api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines) to the
exit handler. Vertex AI fills in the message of the error. The open-source backend leaves it empty and uses the states
of ML Metadata (backend/src/v2/driver/resolve.go, resolveInputParameter).
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tfx.components.util import model_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact

from detloom.components.notifier.read_secret import variable_name
from detloom.components.notifier.run_message import RunMessage, run_link
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
    artifacts = {key: given[0] for key, given in input_dict.items() if given}
    decision, blessing, pushed = (artifacts.get(key) for key in (DECISION_KEY, BLESSING_KEY, PUSHED_MODEL_KEY))
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


def describe_error(error: BaseException, references: Iterable[str] = ()) -> str:
    """Return the text of an InputError, or the type and first line of any other error.

    Values of environment variables that are secrets by their name, or that one of the references names, are hidden,
    because a library may have put them into its text.
    """
    text = str(error)[:_MAX_READ]
    if not isinstance(error, InputError):
        first = text.strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    named = {variable_name(parse_secret_reference(reference)) for reference in references}
    secrets = {value.strip() for name, value in os.environ.items() if name in named or is_secret(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_HIDDEN:
            text = text.replace(secret, HIDDEN)
    return text


class FinalStatus(NamedTuple):
    """Final status of a pipeline; what cannot be read is empty.

    Attributes:
        state: state as named by the backend.
        run: resource name of the job on Vertex AI, name of the workflow on Kubeflow.
        message: message of the error.
    """

    state: str = ""
    run: str = ""
    message: str = ""


def parse_final_status(value: Any) -> FinalStatus:
    """Parse the parameter: JSON text, or a `google.protobuf.Struct`.

    If the type of the parameter is STRING, the driver converts the struct to text (resolve.go,
    handleParamTypeValidationAndConversion).
    """
    try:
        fields = dict(json.loads(value) if isinstance(value, str) else value.items())
        message = dict(fields.get("error") or {}).get("message")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return FinalStatus()
    texts = (fields.get("state"), fields.get("pipelineJobResourceName"), message)
    return FinalStatus(*(text if isinstance(text, str) else "" for text in texts))


def build_failure_message(status: FinalStatus, about: Mapping[str, Any]) -> RunMessage | None:
    """Return the message for the final status of a pipeline; None if the pipeline succeeded.

    Args:
        about: fields that all messages of the run have.
    """
    if status.state in _SUCCEEDED:
        return None
    # Open-source Kubeflow gives no message, and a pod that is killed does not update its state.
    unknown = f"The backend gave no cause (state {status.state or 'unknown'}); see the page of the run"
    reason = "The run was cancelled." if status.state in _CANCELLED else f"{unknown}, or `detloom status`."
    failed_tasks = _FAILED_TASKS.search(status.message)
    known = {
        "run": about["run"] or status.run,
        "subject": about["subject"] or status.run,
        "links": about["links"] or run_link(about["place"], status.run),
        "node": failed_tasks[1] if failed_tasks else "",
        "reason": status.message or reason,
    }
    return RunMessage(event="failed", **{**about, **known})
