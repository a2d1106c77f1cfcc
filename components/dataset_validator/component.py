"""The TFX component DatasetValidator."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.types import BaseChannel, Channel, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import DatasetReport, MetricsForUi, PageForUi
from detloom.components.dataset_validator.executor import (
    EXAMPLES_KEY,
    PREVIOUS_REPORT_KEY,
    REPORT_KEY,
    Executor,
)
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import METRICS_KEY, PAGE_KEY
from detloom.schemas.contracts.label_map import format_label_map, read_label_map
from detloom.schemas.run_file.data import MAX_PIXELS
from detloom.schemas.run_file.data_checks import DataChecks


class DatasetValidatorSpec(ComponentSpec):
    """Inputs: examples and an optional report of an earlier span. Outputs: report, page and metrics."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = {
        name: ExecutionParameter(type=kind) for name, kind in DatasetValidatorParams.property_types().items()
    }
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
        PREVIOUS_REPORT_KEY: ChannelParameter(type=DatasetReport, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        REPORT_KEY: ChannelParameter(type=DatasetReport),
        PAGE_KEY: ChannelParameter(type=PageForUi),
        METRICS_KEY: ChannelParameter(type=MetricsForUi),
    }


class DatasetValidator(BaseBeamComponent):
    """A TFX component that checks the boxes, classes, splits, duplicates and drift of the examples.

    A check of severity "fail" fails the node.

    Outputs:
        report: `report.json` and `report.html`, with the span of the examples as custom property `span`.
        page: the HTML page, for the user interfaces of Kubeflow Pipelines and Vertex AI.
        metrics: the main numbers as custom properties, for the same user interfaces.
    """

    SPEC_CLASS = DatasetValidatorSpec
    EXECUTOR_SPEC = BeamExecutorSpec(Executor)

    def __init__(
        self,
        examples: BaseChannel,
        previous_report: BaseChannel | None = None,
        *,
        required_splits: Sequence[str] = ("train", "eval"),
        train_split: str = "train",
        checks: DataChecks | None = None,
        model_input: ModelInput | None = None,
        max_pixels: int = MAX_PIXELS,
        history: str = "",
        evaluation: EvaluationRequirements | None = None,
        label_map: str | Path | None = None,
    ) -> None:
        """Create the node.

        Args:
            examples: tf.Examples with the Object Detection API's keys, from DetectionExampleGen or ImportExampleGen.
            previous_report: drift is not checked if this is None or resolves to no artifact.
            required_splits: splits that must exist and contain boxes.
            train_split: split used for training; other splits must not share images with it.
            checks: severity and threshold of each check; None uses the defaults.
            model_input: input of the model that will be trained; without it, checks that need one are skipped.
            max_pixels: larger images are not decoded, neither for the perceptual hash nor for the page.
            history: folder or URL that keeps each span's report for the next span; empty if a Resolver finds it.
            evaluation: needs of the model's evaluation in the data; None needs nothing.
            label_map: file that is read now. Needed for examples without `label_map.pbtxt`, such as those of TFX's
                ImportExampleGen; examples that have one must have the same classes.

        Raises:
            InputError: a parameter is out of range, or the label map cannot be read.
        """
        params = DatasetValidatorParams(
            required_splits=tuple(required_splits),
            train_split=train_split,
            checks=checks or DataChecks(),
            model_input=model_input,
            max_pixels=max_pixels,
            history=history,
            evaluation=evaluation or EvaluationRequirements(),
            label_map=format_label_map(read_label_map(Path(label_map))) if label_map is not None else "",
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = DatasetValidatorSpec(
            **params.to_properties(),
            **{
                EXAMPLES_KEY: examples,
                PREVIOUS_REPORT_KEY: previous_report,
                REPORT_KEY: Channel(type=DatasetReport),
                PAGE_KEY: Channel(type=PageForUi),
                METRICS_KEY: Channel(type=MetricsForUi),
            },
        )
        super().__init__(spec=spec)
