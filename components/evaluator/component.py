"""The DetectionEvaluator component."""

from pathlib import Path

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.types import standard_component_specs as keys
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun
from tfx.types.system_executions import Evaluate

from detloom.components.artifact_types import CurvesForUi, DatasetReport, MetricsForUi, PageForUi, TextForUi
from detloom.components.evaluator.executor import (
    CURVES_KEY,
    SUMMARY_KEY,
    Executor,
)
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import DATASET_REPORT_KEY, METRICS_KEY, MODEL_RUN_KEY, PAGE_KEY
from detloom.schemas.contracts.label_map import format_label_map, read_label_map
from detloom.schemas.run_file.evaluator_and_gates import Evaluator, Gates

_OUTPUT_TYPES = {
    keys.EVALUATION_KEY: ModelEvaluation,
    keys.BLESSING_KEY: ModelBlessing,
    PAGE_KEY: PageForUi,
    SUMMARY_KEY: TextForUi,
    METRICS_KEY: MetricsForUi,
    CURVES_KEY: CurvesForUi,
}


class DetectionEvaluatorSpec(ComponentSpec):
    """Inputs and outputs have the names of TFX's own Evaluator, which its resolvers, Pusher and UI expect."""

    PARAMETERS = {name: ExecutionParameter(type=kind) for name, kind in EvaluatorParams.property_types().items()}
    INPUTS = {
        keys.EXAMPLES_KEY: ChannelParameter(type=Examples),
        keys.MODEL_KEY: ChannelParameter(type=Model),
        keys.BASELINE_MODEL_KEY: ChannelParameter(type=Model, optional=True),
        DATASET_REPORT_KEY: ChannelParameter(type=DatasetReport, optional=True),
        MODEL_RUN_KEY: ChannelParameter(type=ModelRun, optional=True),
    }
    OUTPUTS = {name: ChannelParameter(type=kind) for name, kind in _OUTPUT_TYPES.items()}
    TYPE_ANNOTATION = Evaluate


class DetectionEvaluator(BaseBeamComponent):
    """A TFX component that evaluates the exported model on one split, compares it with the baseline and decides.

    Outputs:
        evaluation: ModelEvaluation with the files that `report.py` lists.
        blessing: ModelBlessing in the format of TFX's Evaluator.
        page, summary, metrics, curves: report page, summary text, metrics and curves for the user interfaces of
            Kubeflow Pipelines and Vertex AI.
    """

    SPEC_CLASS = DetectionEvaluatorSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: BaseChannel,
        model: BaseChannel,
        baseline_model: BaseChannel | None = None,
        *,
        split: str = "test",
        settings: Evaluator | None = None,
        gates: Gates | None = None,
        dataset_report: BaseChannel | None = None,
        model_run: BaseChannel | None = None,
        label_map: str | Path | None = None,
    ) -> None:
        """Create the node.

        Args:
            examples: tf.Examples with the Object Detection API's keys, from DetectionExampleGen or ImportExampleGen.
            model: a detector that detloom exported: the output of the Trainer, or of an Importer.
            baseline_model: may be empty; the other gates decide then.
            split: the split to evaluate on.
            settings: slices, sizes, images of the report; None uses the defaults.
            gates: conditions for a blessing; None uses the defaults.
            dataset_report, model_run: outputs of DatasetValidator and Trainer, only shown in the report.
            label_map: file that is read now; the model must have its classes. For examples without `label_map.pbtxt`,
                such as those of TFX's ImportExampleGen; without either, the model's own label map counts.

        Raises:
            InputError: the label map cannot be read.
        """
        params = EvaluatorParams(
            split=split,
            settings=settings or Evaluator(),
            gates=gates or Gates(),
            label_map=format_label_map(read_label_map(Path(label_map))) if label_map is not None else "",
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = DetectionEvaluatorSpec(
            **params.to_properties(),
            **{
                keys.EXAMPLES_KEY: examples,
                keys.MODEL_KEY: model,
                keys.BASELINE_MODEL_KEY: baseline_model,
                DATASET_REPORT_KEY: dataset_report,
                MODEL_RUN_KEY: model_run,
                **{name: Channel(type=kind) for name, kind in _OUTPUT_TYPES.items()},
            },
        )
        super().__init__(spec=spec)
