"""Report a failed run: an exit handler for clusters, and a function for the runner on one machine.

Both backends pass a `PipelineTaskFinalStatus` (api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines) to the exit
handler. Vertex AI fills in code and message of the error. The open-source backend leaves the error empty and uses the
states of ML Metadata (backend/src/v2/driver/resolve.go, resolveInputParameter); the failed tasks and their causes are
read from its API (`kubeflow_failures`). If the type of the parameter is STRING,
it converts the struct to JSON text, otherwise the container gets the struct
(handleParamTypeValidationAndConversion in that file).
"""

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from absl import logging
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.orchestration.kubeflow.decorators import FinalStatusStr
from tfx.types.artifact import Artifact
from tfx.types.component_spec import ComponentSpec, ExecutionParameter

from detloom.components.notifier.executor import (
    FINAL_STATUS,
    RUN_ID,
    NotifierParams,
    about_run,
    check_reachable,
    run_property,
)
from detloom.components.notifier.kubeflow_failures import read_failures
from detloom.components.notifier.messages import Message, run_link
from detloom.components.notifier.read_secret import references_of, variable_name
from detloom.components.notifier.send import send
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import HIDDEN, is_secret, parse_secret_reference
from detloom.schemas.run_file.notifications import Notifications

_SUCCEEDED = ("SUCCEEDED", "COMPLETE", "CACHED", "SKIPPED")
_CANCELLED = ("CANCELLED", "CANCELED")
_FAILED = ("FAILED", "NOT_TRIGGERED", "UNSCHEDULABLE")
# Vertex AI's message: "The DAG failed because some tasks failed. The failed tasks are: [Trainer]."
_FAILED_TASKS = re.compile(r"failed tasks are: \[([A-Za-z0-9_., -]{1,500})\]")
_MIN_HIDDEN = 6  # characters; a shorter value may be part of an ordinary word
_MAX_READ = 4000
NODE_ID = "FailureNotifier"


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
    def failed_tasks(self) -> str:
        found = _FAILED_TASKS.search(self.message)
        return found[1] if found else ""

    @property
    def reason(self) -> str:
        """Return one or two sentences about the cause of the failure."""
        if self.message:
            return self.message
        if self.state in _CANCELLED:
            return "The run was cancelled."
        if self.state in _FAILED:
            return "The cause could not be read; see the page of the run."
        # A pod that is killed, for example because it is out of memory, does not update its state.
        return f"The run ended without a final state of the backend (state {self.state or 'unknown'})."


def parse_final_status(value: object) -> FinalStatus:
    """Parse the parameter. A value that cannot be parsed gives an unknown status, never an error.

    Args:
        value: JSON text, a dictionary, or a `google.protobuf.Struct`, which behaves like a dictionary.
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
    """Return a dictionary; a Struct is a Mapping but has no `get`."""
    return dict(value.items()) if isinstance(value, Mapping) else {}


def _text(fields: dict[str, Any], *names: str) -> str:
    """Return the first of these fields that exists. The SDK accepts both spellings (sdk/python/kfp/dsl/executor.py)."""
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")


def describe_error(error: BaseException, references: Iterable[str] = ()) -> str:
    """Return the text of an InputError, or the type and first line of any other error.

    Values of environment variables that are secrets by their name, or that one of the references names, are hidden,
    because a library may have put them into its text.
    """
    text = str(error)[:_MAX_READ]
    if not isinstance(error, InputError):
        first = text.strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    for secret in sorted(_known_secrets(references), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _known_secrets(references: Iterable[str]) -> set[str]:
    named = set()
    for each in map(parse_secret_reference, references):
        named |= {variable_name(each)} if each.kind == "kubernetes" else {each.name}
    values = {value.strip() for name, value in os.environ.items() if name in named or is_secret(name)}
    return {value for value in values if len(value) >= _MIN_HIDDEN}


def notify_failure(
    run_name: str, notifications: Notifications, node: str | None, error: BaseException, *, run_id: str = ""
) -> None:
    """Report a failed run on this machine. Never raises.

    Args:
        run_name: name of the pipeline.
        node: the node that failed, if any.
        run_id: id of the run, if known.
    """
    try:
        message = Message(
            event="failed",
            pipeline=run_name,
            place="local",
            run=run_id,
            machine=socket.gethostname(),
            node=node or "",
            reason=describe_error(error, references_of(notifications)),
        )
        send(message, notifications)
    except Exception as mistake:  # must not hide the error of the run
        logging.warning("notifications: the message could not be built (%s).", type(mistake).__name__)


class FailureExecutor(BaseExecutor):
    """Executor that reports a run that did not succeed. Never raises."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        try:
            params = NotifierParams.from_properties(exec_properties)
            status = parse_final_status(exec_properties.get(FINAL_STATUS))
            logging.info("FailureNotifier: the run ended with state %r.", status.state)
            if not status.is_success:
                failures = read_failures(run_property(exec_properties, RUN_ID)) if params.place == "kubeflow" else {}
                send(build_failure_message(status, params, exec_properties, failures), params.notifications)
        except Exception as error:  # an exit handler must not fail
            logging.warning("FailureNotifier: the message could not be built (%s).", type(error).__name__)


def build_failure_message(
    status: FinalStatus, params: NotifierParams, properties: dict[str, Any], failures: Mapping[str, str] | None = None
) -> Message:
    """Return the message for the final status of a pipeline.

    Args:
        failures: cause by failed task, of `read_failures`.
    """
    about = about_run(params, properties)
    about["run"], about["subject"] = about["run"] or status.run, about["subject"] or status.run
    about["links"] = about["links"] or run_link(params.place, status.run)
    causes = {task: cause for task, cause in (failures or {}).items() if cause}
    reason = " ".join(causes.values() if len(causes) == 1 else map(": ".join, causes.items())) or status.reason
    return Message(event="failed", node=", ".join(failures or ()) or status.failed_tasks, reason=reason, **about)


class FailureNotifierSpec(ComponentSpec):
    """Specification of FailureNotifier. The final status is a parameter; no inputs and no outputs."""

    PARAMETERS: dict[str, Any] = {
        name: ExecutionParameter(type=kind)
        for name, kind in {**NotifierParams.property_types(), FINAL_STATUS: str}.items()
    }
    INPUTS: dict[str, Any] = {}
    OUTPUTS: dict[str, Any] = {}


class FailureNotifier(BaseComponent):
    """The exit handler of a compiled pipeline. The runner on one machine calls `notify_failure` instead."""

    SPEC_CLASS = FailureNotifierSpec
    EXECUTOR_SPEC = ExecutorClassSpec(FailureExecutor)

    def __init__(self, *, params: NotifierParams) -> None:
        """Create the component.

        Raises:
            InputError: a secret cannot be read where the pipeline will run.
        """
        check_reachable(params.notifications, params.place)
        super().__init__(spec=FailureNotifierSpec(**params.to_properties(), **{FINAL_STATUS: FinalStatusStr()}))


def build_failure_notifier(params: NotifierParams) -> FailureNotifier:
    """Return the node for `KubeflowV2DagRunner.set_exit_handler`."""
    return FailureNotifier(params=params).with_id(NODE_ID)
