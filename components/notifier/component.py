"""A TFX component that sends a message about a run; as the exit handler of a compiled pipeline, about its failure."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types.channel import BaseChannel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from detloom.components import artifact_types
from detloom.components.artifact_types import Artifacts
from detloom.components.fingerprints import source_fingerprint
from detloom.components.notifier.message_events import (
    BLESSING_KEY,
    PUSHED_MODEL_KEY,
    build_failure_message,
    build_result_message,
    describe_error,
    parse_final_status,
)
from detloom.components.notifier.read_secret import references_of, secret_variables
from detloom.components.notifier.run_message import RunMessage, run_link
from detloom.components.notifier.send import SentMessages, send
from detloom.components.properties import DECISION_KEY, ComponentParams
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.run_file import Place

FINAL_STATUS = "final_status"
# Placeholders that both backends replace if a parameter is such a constant: kubeflow/pipelines,
# backend/src/v2/driver/resolve.go, and the constants PIPELINE_JOB_* of sdk/python/kfp/dsl/__init__.py.
_RUN_NAME_ON_CLUSTERS = "{{$.pipeline_job_name}}"
_RUN_IDS: dict[Place, str] = {"kubeflow": "{{$.pipeline_job_uuid}}", "vertex": "{{$.pipeline_job_resource_name}}"}


@dataclass(frozen=True, kw_only=True)
class NotifierParams(ComponentParams):
    """Recipients, and the pipeline that messages are about.

    Attributes:
        kubeflow_host: address of the web interface, for a link to the run.
        nonce: differs for each run, so that TFX does not answer from its cache.
        run_name, run_id: of the run on a cluster; its backend fills them in.
    """

    pipeline: str
    notifications: Notifications
    place: Place = "local"
    kubeflow_host: str = ""
    nonce: str = ""
    run_name: str = ""
    run_id: str = ""

    def to_properties(self) -> dict[str, Any]:
        if self.place == "local":
            return super().to_properties()
        return {**super().to_properties(), "run_name": _RUN_NAME_ON_CLUSTERS, "run_id": _RUN_IDS[self.place]}

    def about_run(self, local_run_id: str = "") -> dict[str, Any]:
        """Return the fields that all messages of a run have.

        Args:
            local_run_id: run id of TFX's local runner.
        """
        run_name, run_id = ("" if "{{$" in text else text for text in (self.run_name, self.run_id))
        is_local = self.place == "local"
        return {
            "pipeline": self.pipeline,
            "place": self.place,
            "run": local_run_id if is_local else run_name or run_id,
            "subject": run_id,  # run names are not unique
            "machine": socket.gethostname() if is_local else "",
            "links": run_link(self.place, run_id, self.kubeflow_host),
        }


class Executor(BaseExecutor):
    """Executor that reports the result of a run. No error here fails the run, because its work is already done.

    On one machine, a list of sent messages (`SentMessages`) in the node's folder keeps a repeated or cached run from
    sending a message twice. On a cluster there is no such list: a container is retried only if it is killed in the
    seconds between sending and its end, and receivers recognize the message by its id.
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        try:
            params = NotifierParams.from_properties(exec_properties)
            about = params.about_run(str(getattr(self._context, "pipeline_run_id", None) or ""))
            if FINAL_STATUS in exec_properties:
                status = parse_final_status(exec_properties[FINAL_STATUS])
                logging.info("Notifier: the run ended with state %r.", status.state)
                message = build_failure_message(status, about)
            else:
                message = build_result_message(input_dict, about)
            if message is None:
                logging.info("Notifier: nothing to report.")
            else:
                send(message, params.notifications, self._sent_messages())
        except Exception as error:  # see the class; only the type is logged, because the text may contain a secret
            logging.warning("Notifier: the message could not be built (%s).", type(error).__name__)

    def _sent_messages(self) -> SentMessages | None:
        """Return the list in the folder that all executions of this node share; only TFX's local runner has one.

        The stateful working directory is .system/stateful_working_dir/INDEX in this folder, see
        tfx/orchestration/portable/outputs_utils.py.
        """
        working_dir = getattr(self._context, "stateful_working_dir", None)
        return SentMessages(Path(working_dir.rstrip("/")).parents[2]) if working_dir else None


class NotifierSpec(ComponentSpec):
    """Inputs: blessing, pushed model, retraining decision. No outputs."""

    PARAMETERS: dict[str, Any] = {
        FINAL_STATUS: ExecutionParameter(type=str, optional=True),
        **{name: ExecutionParameter(type=kind) for name, kind in NotifierParams.property_types().items()},
    }
    INPUTS = {
        BLESSING_KEY: ChannelParameter(type=ModelBlessing, optional=True),
        PUSHED_MODEL_KEY: ChannelParameter(type=PushedModel, optional=True),
        DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision, optional=True),
    }
    OUTPUTS: dict[str, Any] = {}


class Notifier(BaseComponent):
    """A component that reports a model that was refused or pushed, or a training run that was skipped."""

    SPEC_CLASS = NotifierSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(
        self,
        *,
        pipeline: str,
        notifications: Notifications,
        place: Place = "local",
        kubeflow_host: str = "",
        nonce: str = "",
        blessing: BaseChannel | None = None,
        pushed_model: BaseChannel | None = None,
        decision: BaseChannel | None = None,
        final_status: Any = None,
    ) -> None:
        """Create the component.

        Args:
            pipeline: name of the pipeline in messages.
            notifications: events and recipients; addresses and passwords may be references to secrets.
            place: where the pipeline runs: "local", "kubeflow" or "vertex".
            kubeflow_host: address of the web interface of Kubeflow Pipelines, for a link to the run.
            nonce: a new value in each run keeps TFX's cache from answering; no code reads it.
            decision: without the other channels, to report why nothing was trained.
            final_status: TFX's placeholder for the status of the pipeline, of which the node is the exit handler.

        Raises:
            InputError: a secret cannot be read where the pipeline will run.
        """
        if place == "vertex" and secret_variables(notifications):
            raise InputError(
                "notifications: got a reference to a Kubernetes secret, allowed on Vertex AI: secret_manager:projects/"
                "..., or env:NAME set by the image. Store the secret in Secret Manager, or override the reference with "
                "--set."
            )
        params = NotifierParams(
            pipeline=pipeline,
            notifications=notifications,
            place=place,
            kubeflow_host=kubeflow_host,
            nonce=nonce,
            code_fingerprint=source_fingerprint(__name__),
        )
        channels = {BLESSING_KEY: blessing, PUSHED_MODEL_KEY: pushed_model, DECISION_KEY: decision}
        status = {} if final_status is None else {FINAL_STATUS: final_status}
        super().__init__(spec=NotifierSpec(**params.to_properties(), **channels, **status))


def notify_failure(pipeline: str, notifications: Notifications, node: str | None, error: BaseException) -> None:
    """Report a failed run on this machine. Never raises.

    Args:
        node: the node that failed, if any.
    """
    try:
        reason, machine = describe_error(error, references_of(notifications)), socket.gethostname()
        message = RunMessage(
            event="failed", pipeline=pipeline, place="local", machine=machine, node=node or "", reason=reason
        )
        send(message, notifications)
    except Exception as mistake:  # must not hide the error of the run
        logging.warning("notifications: the message could not be built (%s).", type(mistake).__name__)
