"""Notifier, as it stands in the DAG."""

from typing import Any

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types.channel import BaseChannel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import ModelBlessing, PushedModel

from detloom.components import artifact_types
from detloom.components.notifier.executor import BLESSING_KEY, DECISION_KEY, PUSHED_MODEL_KEY, Executor
from detloom.components.notifier.params import PROPERTY_TYPES, NotifierParams, check_reachable


class NotifierSpec(ComponentSpec):
    """What became of a run in, nothing out."""

    PARAMETERS: dict[str, Any] = {name: ExecutionParameter(type=kind) for name, kind in PROPERTY_TYPES.items()}
    INPUTS = {
        BLESSING_KEY: ChannelParameter(type=ModelBlessing, optional=True),
        PUSHED_MODEL_KEY: ChannelParameter(type=PushedModel, optional=True),
        DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision, optional=True),
    }
    OUTPUTS: dict[str, Any] = {}


class Notifier(BaseComponent):
    """Tells of a model that was refused or pushed, or of a training that was skipped."""

    SPEC_CLASS = NotifierSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(
        self,
        *,
        params: NotifierParams,
        blessing: BaseChannel | None = None,
        pushed_model: BaseChannel | None = None,
        decision: BaseChannel | None = None,
    ) -> None:
        """Take the channels.

        Args:
            decision: alone, to tell why nothing was trained.

        Raises:
            InputError: a secret that cannot be read where the pipeline will run.
        """
        check_reachable(params.notifications, params.place)
        channels = {BLESSING_KEY: blessing, PUSHED_MODEL_KEY: pushed_model, DECISION_KEY: decision}
        super().__init__(spec=NotifierSpec(**params.to_properties(), **channels))
