"""DetectionEvaluator, as it stands in the DAG."""

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation
from tfx.types.system_executions import Evaluate

from detloom.components.evaluator.executor import Executor
from detloom.components.evaluator.params import PROPERTY_TYPES, EvaluatorParams


class DetectionEvaluatorSpec(ComponentSpec):
    """Inputs and outputs are named as those of TFX's own Evaluator: its resolvers, Pusher and UI know them."""

    PARAMETERS = {name: ExecutionParameter(type=kind) for name, kind in PROPERTY_TYPES.items()}
    INPUTS = {
        keys.EXAMPLES_KEY: ChannelParameter(type=Examples),
        keys.MODEL_KEY: ChannelParameter(type=Model),
        keys.BASELINE_MODEL_KEY: ChannelParameter(type=Model, optional=True),
    }
    OUTPUTS = {
        keys.EVALUATION_KEY: ChannelParameter(type=ModelEvaluation),
        keys.BLESSING_KEY: ChannelParameter(type=ModelBlessing),
    }
    TYPE_ANNOTATION = Evaluate


class DetectionEvaluator(BaseBeamComponent):
    """Runs the exported model over one split of the examples, compares it with the baseline and blesses it or not.

    Outputs:
        evaluation: ModelEvaluation with the files that `report.py` names.
        blessing: ModelBlessing as TFX's Evaluator writes it.
    """

    SPEC_CLASS = DetectionEvaluatorSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: BaseChannel,
        model: BaseChannel,
        baseline_model: BaseChannel | None = None,
        *,
        params: EvaluatorParams,
    ) -> None:
        """`baseline_model` may resolve to nothing: then only the floors decide."""
        spec = DetectionEvaluatorSpec(
            **params.to_properties(),
            **{
                keys.EXAMPLES_KEY: examples,
                keys.MODEL_KEY: model,
                keys.BASELINE_MODEL_KEY: baseline_model,
                keys.EVALUATION_KEY: Channel(type=ModelEvaluation),
                keys.BLESSING_KEY: Channel(type=ModelBlessing),
            },
        )
        super().__init__(spec=spec)
