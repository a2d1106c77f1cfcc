"""Parameters and executor of Notifier."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact

from detloom.components.notifier.messages import Message, run_link
from detloom.components.notifier.read_secret import references_of
from detloom.components.notifier.send import SentMessages, send
from detloom.components.properties import (
    DECISION_KEY,
    PUSHED_DESTINATION_PROPERTY,
    PUSHED_IS_NEW_PROPERTY,
    PUSHED_PROPERTY,
    PUSHED_VERSION_PROPERTY,
    REASON_PROPERTY,
    TRAIN_PROPERTY,
    ComponentParams,
    blessing_message,
    blessing_metrics,
    int_property,
    string_property,
)
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import parse_secret_reference
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.run_file import Place

RUN_NAME = "run_name"
RUN_ID = "run_id"
FINAL_STATUS = "final_status"
_MARK = "{{$"
# Placeholders that both backends replace if a parameter is such a constant: kubeflow/pipelines,
# backend/src/v2/driver/resolve.go, and the constants PIPELINE_JOB_* of sdk/python/kfp/dsl/__init__.py.
_RUN_NAME_ON_CLUSTERS = "{{$.pipeline_job_name}}"
_RUN_IDS: dict[Place, str] = {"kubeflow": "{{$.pipeline_job_uuid}}", "vertex": "{{$.pipeline_job_resource_name}}"}
BLESSING_KEY, PUSHED_MODEL_KEY = keys.MODEL_BLESSING_KEY, keys.PUSHED_MODEL_KEY


@dataclass(frozen=True, kw_only=True)
class NotifierParams(ComponentParams):
    """Recipients, and the pipeline that messages are about.

    Attributes:
        kubeflow_host: address of the web interface, for a link to the run.
        nonce: differs for each run, so that TFX does not answer from its cache.
    """

    pipeline: str
    notifications: Notifications
    place: Place = "local"
    kubeflow_host: str = ""
    nonce: str = ""

    @classmethod
    def property_types(cls) -> dict[str, type]:
        return {**super().property_types(), RUN_NAME: str, RUN_ID: str}

    def to_properties(self) -> dict[str, Any]:
        return {
            **super().to_properties(),
            RUN_NAME: "" if self.place == "local" else _RUN_NAME_ON_CLUSTERS,
            RUN_ID: _RUN_IDS.get(self.place, ""),
        }


def run_property(properties: Mapping[str, Any], name: str) -> str:
    """Return RUN_NAME or RUN_ID as filled in by the backend; empty if it did not."""
    value = str(properties.get(name) or "")
    return "" if _MARK in value else value


def check_reachable(notifications: Notifications, place: Place) -> None:
    """Raise InputError for a secret that a job at this place can never read."""
    kinds = {parse_secret_reference(each).kind for each in references_of(notifications)}
    if place == "vertex" and "kubernetes" in kinds:
        raise InputError(
            "notifications: got a reference to a Kubernetes secret, allowed on Vertex AI: secret_manager:projects/..., "
            "or env:NAME set by the image. Store the secret in Secret Manager, or override the reference with --set."
        )


class Executor(BaseExecutor):
    """Executor that reports the result of a run. No error here fails the run, because its work is already done.

    On one machine, a list of sent messages (`SentMessages`) in the node's folder keeps a repeated or cached run from
    sending a message twice. On a cluster there is no such list: a container is retried only if it is killed in the
    seconds between sending and its end, and receivers recognize the message by its id.
    """

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        try:
            params = NotifierParams.from_properties(exec_properties)
            run_id = str(getattr(self._context, "pipeline_run_id", None) or "")
            message = build_message(input_dict, params, exec_properties, run_id)
            if message is None:
                logging.info("Notifier: nothing to report.")
            else:
                send(message, params.notifications, SentMessages(self._node_folder()))
        except Exception as error:  # see the class; only the type is logged, because the text may contain a secret
            logging.warning("Notifier: the message could not be built (%s).", type(error).__name__)

    def _node_folder(self) -> str | None:
        """Return the folder that all executions of this node share; only TFX's local runner has one.

        The stateful working directory is .system/stateful_working_dir/INDEX in this folder, see
        tfx/orchestration/portable/outputs_utils.py.
        """
        working_dir = getattr(self._context, "stateful_working_dir", None)
        return str(Path(working_dir.rstrip("/")).parents[2]) if working_dir else None


def build_message(
    input_dict: Mapping[str, Sequence[Artifact]],
    params: NotifierParams,
    properties: Mapping[str, Any],
    local_run_id: str = "",
) -> Message | None:
    """Return the message for these artifacts; None if they contain nothing new.

    Args:
        properties: execution properties, in which a backend fills in name and id of the run.
        local_run_id: run id of TFX's local runner.
    """
    about = about_run(params, properties, local_run_id)
    decision, blessing, pushed = (_first(input_dict, key) for key in (DECISION_KEY, BLESSING_KEY, PUSHED_MODEL_KEY))
    if decision is not None and blessing is None and not decision.get_int_custom_property(TRAIN_PROPERTY):
        return Message(event="skipped", reason=decision.get_string_custom_property(REASON_PROPERTY), **about)
    if blessing is None:
        return None
    about |= {"reason": blessing_message([blessing]), "numbers": blessing_metrics(blessing)}
    if not model_utils.is_model_blessed(blessing):
        return Message(event="refused", **about | {"subject": blessing.uri})
    if pushed is not None and (reason := string_property(pushed, REASON_PROPERTY)):
        return Message(event="refused", **about | {"subject": f"not pushed {blessing.uri}", "reason": reason})
    # On one machine the list of sent messages is used instead: it also covers a run that was killed before it sent.
    is_old = params.place != "local" and pushed is not None and _is_old(pushed)
    if pushed is None or not pushed.get_int_custom_property(PUSHED_PROPERTY) or is_old:
        return None
    version = pushed.get_string_custom_property(PUSHED_VERSION_PROPERTY)
    destination = pushed.get_string_custom_property(PUSHED_DESTINATION_PROPERTY)
    about["subject"] = f"{destination} {version or pushed.uri}"
    return Message(event="pushed", version=version, destination=destination, **about)


def about_run(params: NotifierParams, properties: Mapping[str, Any], local_run_id: str = "") -> dict[str, Any]:
    """Return the fields that all messages of a run have."""
    run_id = run_property(properties, RUN_ID)
    is_local = params.place == "local"
    return {
        "pipeline": params.pipeline,
        "place": params.place,
        "run": local_run_id if is_local else run_property(properties, RUN_NAME) or run_id,
        "subject": run_id,  # run names are not unique
        "machine": socket.gethostname() if is_local else "",
        "links": run_link(params.place, run_id, params.kubeflow_host),
    }


def _first(input_dict: Mapping[str, Sequence[Artifact]], key: str) -> Artifact | None:
    artifacts = input_dict.get(key) or []
    return artifacts[0] if artifacts else None


def _is_old(pushed: Artifact) -> bool:
    """Return True if the latest version already was this model."""
    return int_property(pushed, PUSHED_IS_NEW_PROPERTY) == 0
