"""A TFX component that sends a message about the result of a run."""

from typing import Any

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types.channel import BaseChannel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from detloom.components import artifact_types
from detloom.components.fingerprints import source_fingerprint
from detloom.components.notifier.executor import (
    BLESSING_KEY,
    PUSHED_MODEL_KEY,
    Executor,
    NotifierParams,
    check_reachable,
)
from detloom.components.properties import DECISION_KEY
from detloom.schemas.run_file.notifications import Notifications
from detloom.schemas.run_file.run_file import Place


class NotifierSpec(ComponentSpec):
    """Specification of Notifier. Inputs: blessing, pushed model, retraining decision. No outputs."""

    PARAMETERS: dict[str, Any] = {
        name: ExecutionParameter(type=kind) for name, kind in NotifierParams.property_types().items()
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
    ) -> None:
        """Create the component.

        Args:
            pipeline: name of the pipeline in messages.
            notifications: events and recipients; addresses and passwords may be references to secrets.
            place: where the pipeline runs: "local", "kubeflow" or "vertex".
            kubeflow_host: address of the web interface of Kubeflow Pipelines, for a link to the run.
            nonce: a new value in each run keeps TFX's cache from answering; no code reads it.
            decision: without the other channels, to report why nothing was trained.

        Raises:
            InputError: a secret cannot be read where the pipeline will run.
        """
        check_reachable(notifications, place)
        params = NotifierParams(
            pipeline=pipeline,
            notifications=notifications,
            place=place,
            kubeflow_host=kubeflow_host,
            nonce=nonce,
            code_fingerprint=source_fingerprint(__name__),
        )
        channels = {BLESSING_KEY: blessing, PUSHED_MODEL_KEY: pushed_model, DECISION_KEY: decision}
        super().__init__(spec=NotifierSpec(**params.to_properties(), **channels))
