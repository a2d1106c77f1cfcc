"""Telling of a run that failed: the exit handler on clusters, and a function for the runner on one machine."""

import socket
from typing import Any

from absl import logging
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.orchestration.kubeflow.decorators import FinalStatusStr
from tfx.types.artifact import Artifact
from tfx.types.component_spec import ComponentSpec, ExecutionParameter

from detloom.components.notifier.executor import about_run
from detloom.components.notifier.failure_text import describe_error
from detloom.components.notifier.final_status import FinalStatus, parse_final_status
from detloom.components.notifier.messages import Message, run_link
from detloom.components.notifier.params import (
    FINAL_STATUS,
    PROPERTY_TYPES,
    NotifierParams,
    check_reachable,
)
from detloom.components.notifier.read_secret import references_of
from detloom.components.notifier.send import send
from detloom.schemas.notifications_config import Notifications

NODE_ID = "FailureNotifier"


def notify_failure(
    run_name: str, notifications: Notifications, node: str | None, error: BaseException, *, run_id: str = ""
) -> None:
    """Tell of a run on this machine that failed; never raises.

    Args:
        run_name: name of the pipeline.
        node: that failed, if one did.
        run_id: of the run, if it is known.
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
    except Exception as mistake:  # the run's own error is what has to be seen
        logging.warning("notifications: no message could be made (%s).", type(mistake).__name__)


class FailureExecutor(BaseExecutor):
    """Tells of a run that did not succeed; fails for nothing."""

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
                send(build_failure_message(status, params, exec_properties), params.notifications)
        except Exception as error:  # the end of the pipeline is no place to fail
            logging.warning("FailureNotifier: no message could be made (%s).", type(error).__name__)


def build_failure_message(status: FinalStatus, params: NotifierParams, properties: dict[str, Any]) -> Message:
    about = about_run(params, properties)
    about["run"], about["subject"] = about["run"] or status.run, about["subject"] or status.run
    about["links"] = about["links"] or run_link(params.place, status.run)
    return Message(event="failed", node=status.failed_tasks, reason=status.reason, **about)


class FailureNotifierSpec(ComponentSpec):
    """How the run ended in, as a parameter; nothing out."""

    PARAMETERS: dict[str, Any] = {
        name: ExecutionParameter(type=kind) for name, kind in {**PROPERTY_TYPES, FINAL_STATUS: str}.items()
    }
    INPUTS: dict[str, Any] = {}
    OUTPUTS: dict[str, Any] = {}


class FailureNotifier(BaseComponent):
    """The exit handler of a compiled pipeline; the runner on one machine has none and calls `notify_failure`."""

    SPEC_CLASS = FailureNotifierSpec
    EXECUTOR_SPEC = ExecutorClassSpec(FailureExecutor)

    def __init__(self, *, params: NotifierParams) -> None:
        """Take the settings.

        Raises:
            InputError: a secret that cannot be read where the pipeline will run.
        """
        check_reachable(params.notifications, params.place)
        super().__init__(spec=FailureNotifierSpec(**params.to_properties(), **{FINAL_STATUS: FinalStatusStr()}))


def build_failure_notifier(params: NotifierParams) -> FailureNotifier:
    """The node for `KubeflowV2DagRunner.set_exit_handler`."""
    return FailureNotifier(params=params).with_id(NODE_ID)
