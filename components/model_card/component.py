"""The TFX component ModelCard."""

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun

from detloom.components import artifact_types
from detloom.components.fingerprints import source_fingerprint
from detloom.components.model_card.executor import Executor, ModelCardParams
from detloom.components.properties import DATASET_REPORT_KEY, MODEL_CARD_KEY, MODEL_RUN_KEY, REJECTS_KEY
from detloom.schemas.run_file.evaluator_and_gates import Evaluator
from detloom.schemas.run_file.model_card import ModelCardConfig


class ModelCardSpec(ComponentSpec):
    """Inputs: a model and the artifacts it came from. Output: its card."""

    PARAMETERS = {name: ExecutionParameter(type=kind) for name, kind in ModelCardParams.property_types().items()}
    INPUTS = {
        keys.MODEL_KEY: ChannelParameter(type=Model),
        keys.EXAMPLES_KEY: ChannelParameter(type=Examples, optional=True),
        keys.EVALUATION_KEY: ChannelParameter(type=ModelEvaluation, optional=True),
        keys.BLESSING_KEY: ChannelParameter(type=ModelBlessing, optional=True),
        DATASET_REPORT_KEY: ChannelParameter(type=artifact_types.DatasetReport, optional=True),
        MODEL_RUN_KEY: ChannelParameter(type=ModelRun, optional=True),
        REJECTS_KEY: ChannelParameter(type=artifact_types.Rejects, optional=True),
    }
    OUTPUTS = {MODEL_CARD_KEY: ChannelParameter(type=artifact_types.ModelCard)}


class ModelCard(BaseComponent):
    """A TFX component that documents a model: data, training, metrics with intervals, limits.

    Outputs:
        model_card: the card as Markdown, HTML page and JSON.
    """

    SPEC_CLASS = ModelCardSpec
    EXECUTOR_SPEC = ExecutorClassSpec(Executor)

    def __init__(
        self,
        model: BaseChannel,
        *,
        name: str,
        split: str = "test",
        stated: ModelCardConfig | None = None,
        evaluator: Evaluator | None = None,
        examples: BaseChannel | None = None,
        evaluation: BaseChannel | None = None,
        blessing: BaseChannel | None = None,
        dataset_report: BaseChannel | None = None,
        model_run: BaseChannel | None = None,
        rejects: BaseChannel | None = None,
    ) -> None:
        """Create the node; the card states which optional inputs were not given.

        Args:
            name: name of the model.
            split: split of the evaluation.
            stated: purpose, owners, licence and other statements; None states nothing.
            evaluator: settings of the evaluation, needed to explain its numbers; None uses the defaults.
        """
        params = ModelCardParams(
            name=name,
            split=split,
            stated=stated or ModelCardConfig(),
            evaluator=evaluator or Evaluator(),
            trainer_fingerprint=source_fingerprint("detloom.trainer_module"),
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = ModelCardSpec(
            **params.to_properties(),
            **{
                keys.MODEL_KEY: model,
                keys.EXAMPLES_KEY: examples,
                keys.EVALUATION_KEY: evaluation,
                keys.BLESSING_KEY: blessing,
                DATASET_REPORT_KEY: dataset_report,
                MODEL_RUN_KEY: model_run,
                REJECTS_KEY: rejects,
                MODEL_CARD_KEY: Channel(type=artifact_types.ModelCard),
            },
        )
        super().__init__(spec=spec)
