"""The TFX component DatasetValidator with its executor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from absl import logging
from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.types import BaseChannel, Channel, artifact_utils, standard_artifacts, standard_component_specs
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from detloom.components.artifact_types import Artifacts, DatasetReport, MetricsForUi, PageForUi, keep_after_failure
from detloom.components.dataset_validator.drift import find_earlier_report, keep_failed_page, keep_report
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report.build_report import metrics_of
from detloom.components.dataset_validator.report.validation_page import REPORT_HTML
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.dataset_validator.validate import describe_failures, validate
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.examples_folder import list_shards
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import (
    DATASET_REPORT_FILE,
    METRICS_KEY,
    PAGE_KEY,
    SPAN_PROPERTY,
    int_property,
    pipeline_name,
)
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.label_map import (
    LABEL_MAP_FILE,
    format_label_map,
    label_map_of_examples,
    read_label_map,
)
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact, show_address
from detloom.schemas.run_file.data import MAX_PIXELS
from detloom.schemas.run_file.data_checks import DataChecks

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY
PREVIOUS_REPORT_KEY = "previous_report"
REPORT_KEY = "report"


class DatasetValidatorExecutor(BaseBeamExecutor):
    """Check the examples; if a check fails, keep a copy of the report and fail the node."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = DatasetValidatorParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        previous = input_dict.get(PREVIOUS_REPORT_KEY) or []
        output = {key: artifact_utils.get_single_instance(artifacts) for key, artifacts in output_dict.items()}
        span = int_property(examples, SPAN_PROPERTY)
        history = "" if previous else params.history
        shards = {
            split: list_shards(artifact_utils.get_split_uri([examples], split))
            for split in artifact_utils.decode_split_names(examples.split_names)
        }
        stored = open_storage(examples.uri).read(LABEL_MAP_FILE)
        label_map = label_map_of_examples(f"{examples.uri}/{LABEL_MAP_FILE}", stored, params.label_map)
        params.evaluation.check_classes(label_map)
        params.evaluation.check_examples(shards.get(params.evaluation.split, ()))
        report = validate(
            shards,
            label_map,
            params,
            output[REPORT_KEY].uri,
            self._make_beam_pipeline,
            previous_report=previous[0].uri if previous else find_earlier_report(history, span),
            span=span,
            pipeline=pipeline_name(self._context),
        )
        failures = describe_failures(report)
        if failures:
            kept = _keep_page(output[REPORT_KEY].uri, params.history, span)
            raise InputError(f"Data set validation failed: {failures} Report: {kept}")
        if span is not None:
            output[REPORT_KEY].set_int_custom_property(SPAN_PROPERTY, span)
            keep_report(history, span, _read(output[REPORT_KEY].uri, DATASET_REPORT_FILE))
        page = open_storage(output[PAGE_KEY].uri)
        page.make_folder()
        page.write(REPORT_HTML, _read(output[REPORT_KEY].uri, REPORT_HTML))
        for name, value in metrics_of(report).items():
            output[METRICS_KEY].set_float_custom_property(name, value)


def _read(folder: str, name: str) -> bytes:
    with open_storage(folder).open(name) as file:
        return file.read()


def _keep_page(report: str, history: str, span: int | None) -> str:
    """Keep the page of a failed validation and return its path or URL."""
    if history:
        try:
            return show_address(keep_failed_page(history, span, _read(report, REPORT_HTML)))
        except OSError as error:  # must not hide the validation failure
            logging.warning("%s: the page cannot be written (%s)", show_address(history), redact(str(error)))
    return f"{keep_after_failure(report)}/{REPORT_HTML}"


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
    EXECUTOR_SPEC = BeamExecutorSpec(DatasetValidatorExecutor)

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
