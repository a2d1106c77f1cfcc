"""ProductionModel, as it stands in the DAG.

Open-source Kubeflow Pipelines refuses resolvers (kubeflow/pipelines, backend/src/v2/compiler/argocompiler/argo.go), so
that it cannot be asked which model was blessed last. What was pushed last is known where it was pushed to.
"""

from typing import ClassVar

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Model

from detloom.components.production_model.executor import CANDIDATE_KEY, CODE_FINGERPRINT_KEY, PUSH_TO_KEY, Executor


class ProductionModelSpec(ComponentSpec):
    """At most the candidate in, a model out."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        PUSH_TO_KEY: ExecutionParameter(type=str),
        CODE_FINGERPRINT_KEY: ExecutionParameter(type=str),
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {CANDIDATE_KEY: ChannelParameter(type=Model, optional=True)}
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {keys.MODEL_KEY: ChannelParameter(type=Model)}


class ProductionModel(BaseComponent):
    """Finds the newest complete version under `push_to`.

    The answer changes with every push, which no cache sees: whoever places it switches caching off.

    Outputs:
        model: Model with the SavedModel of that version, and which one it is as custom properties; without one no
            file, and the custom property `nothing_found` is 1. Weights alone are in no pushed version: a warm start
            reads those of the SavedModel.
    """

    SPEC_CLASS = ProductionModelSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(self, *, push_to: str, code_fingerprint: str, candidate: BaseChannel | None = None) -> None:
        """Take the channel.

        Args:
            push_to: folder of versions, or its address.
            code_fingerprint: of the package's source; read by nobody, it makes the cache see an edited search.
            candidate: a model that is left out even if it is the newest.
        """
        spec = ProductionModelSpec(
            **{
                PUSH_TO_KEY: push_to,
                CODE_FINGERPRINT_KEY: code_fingerprint,
                CANDIDATE_KEY: candidate,
                keys.MODEL_KEY: Channel(type=Model),
            }
        )
        super().__init__(spec=spec)
