"""Executor of Notifier."""

import json
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact

from detloom.components.evaluator.executor import BLESSING_METRICS
from detloom.components.notifier.messages import Message, run_link
from detloom.components.notifier.params import RUN_ID, RUN_NAME, NotifierParams, run_property
from detloom.components.notifier.send import send
from detloom.components.notifier.told import Told
from detloom.components.pusher.executor import IS_NEW_PROPERTY, blessing_message
from detloom.components.retrain.executor import DECISION_KEY, REASON_PROPERTY, TRAIN_PROPERTY

BLESSING_KEY, PUSHED_MODEL_KEY = keys.MODEL_BLESSING_KEY, keys.PUSHED_MODEL_KEY
_PUSHED, _DESTINATION, _VERSION = "pushed", "pushed_destination", "pushed_version"  # custom properties of TFX's Pusher


class Executor(BaseExecutor):
    """Tells what became of the run. It fails for nothing: what it tells of has happened.

    On one machine, a list beside the node's executions (`told.py`) keeps a repeated run, and one that the cache
    answers, from telling the same again. A cluster keeps no such list: there only a container that is killed in the
    seconds between sending and its end is tried again, and receivers know the message by its id.
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
                logging.info("Notifier: nothing to tell.")
            else:
                send(message, params.notifications, Told(self._node_folder()))
        except Exception as error:  # see above; its text may hold what the message would
            logging.warning("Notifier: no message could be made (%s).", type(error).__name__)

    def _node_folder(self) -> str | None:
        """Of all executions of this node; TFX's local runner alone has one.

        Its working folder is .system/stateful_working_dir/INDEX in there: tfx/orchestration/portable/outputs_utils.py.
        """
        working_dir = getattr(self._context, "stateful_working_dir", None)
        return str(Path(working_dir.rstrip("/")).parents[2]) if working_dir else None


def build_message(
    input_dict: Mapping[str, Sequence[Artifact]],
    params: NotifierParams,
    properties: Mapping[str, Any],
    local_run_id: str = "",
) -> Message | None:
    """What the artifacts say; None where they say nothing that is new.

    Args:
        properties: of the execution; a backend fills in name and id of the run there.
        local_run_id: of TFX's local runner.
    """
    about = about_run(params, properties, local_run_id)
    decision, blessing, pushed = (_first(input_dict, key) for key in (DECISION_KEY, BLESSING_KEY, PUSHED_MODEL_KEY))
    if decision is not None and blessing is None and not decision.get_int_custom_property(TRAIN_PROPERTY):
        return Message(event="skipped", reason=decision.get_string_custom_property(REASON_PROPERTY), **about)
    if blessing is None:
        return None
    about |= {"reason": blessing_message({BLESSING_KEY: [blessing]}), "numbers": _numbers(blessing)}
    if not model_utils.is_model_blessed(blessing):
        return Message(event="refused", **about | {"subject": blessing.uri})
    # What was pushed before is known from the list on one machine, which also holds what a killed run did not tell.
    is_old = params.place != "local" and pushed is not None and _is_old(pushed)
    if pushed is None or not pushed.get_int_custom_property(_PUSHED) or is_old:
        return None
    version = pushed.get_string_custom_property(_VERSION)
    destination = pushed.get_string_custom_property(_DESTINATION)
    about["subject"] = f"{destination} {version or pushed.uri}"
    return Message(event="pushed", version=version, destination=destination, **about)


def about_run(params: NotifierParams, properties: Mapping[str, Any], local_run_id: str = "") -> dict[str, Any]:
    """What every message of a run says."""
    run_id = run_property(properties, RUN_ID)
    is_local = params.place == "local"
    return {
        "pipeline": params.pipeline,
        "place": params.place,
        "run": local_run_id if is_local else run_property(properties, RUN_NAME) or run_id,
        "subject": run_id,  # names of runs may repeat
        "machine": socket.gethostname() if is_local else "",
        "links": run_link(params.place, run_id, params.kubeflow_host),
    }


def _first(input_dict: Mapping[str, Sequence[Artifact]], key: str) -> Artifact | None:
    artifacts = input_dict.get(key) or []
    return artifacts[0] if artifacts else None


def _is_old(pushed: Artifact) -> bool:
    """Whether the latest version was this model already."""
    return pushed.has_custom_property(IS_NEW_PROPERTY) and not pushed.get_int_custom_property(IS_NEW_PROPERTY)


def _numbers(blessing: Artifact) -> dict[str, float]:
    """Main numbers; none where another evaluator has blessed the model."""
    try:
        numbers = json.loads(blessing.get_string_custom_property(BLESSING_METRICS))
        return {str(name): float(value) for name, value in numbers.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
