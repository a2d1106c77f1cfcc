"""The executor of DatasetValidator."""

from typing import Any

from absl import logging
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact

from detloom.components.artifact_types import keep_after_failure
from detloom.components.dataset_validator.drift import earlier_report, keep_failed_page, keep_report
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report.build_report import metrics_of
from detloom.components.dataset_validator.report.validation_page import REPORT_HTML
from detloom.components.dataset_validator.validate import describe_failures, validate
from detloom.components.examples_folder import list_shards
from detloom.components.properties import (
    DATASET_REPORT_FILE,
    METRICS_KEY,
    PAGE_KEY,
    SPAN_PROPERTY,
    int_property,
    pipeline_name,
)
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, label_map_of_examples
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact, show_address

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY
PREVIOUS_REPORT_KEY = "previous_report"
REPORT_KEY = "report"


class Executor(BaseBeamExecutor):
    """Check the examples; if a check fails, keep a copy of the report and fail the node."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
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
        label_map = _label_map_of(examples.uri, params.label_map)
        params.evaluation.check_classes(label_map)
        params.evaluation.check_examples(shards.get(params.evaluation.split, ()))
        with earlier_report(history, span) as kept_report:
            report = validate(
                shards,
                label_map,
                params,
                output[REPORT_KEY].uri,
                self._make_beam_pipeline,
                previous_report=previous[0].uri if previous else kept_report,
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


def _label_map_of(examples_uri: str, given: str) -> LabelMap:
    storage = open_storage(examples_uri)
    return label_map_of_examples(storage.address(LABEL_MAP_FILE), storage.read(LABEL_MAP_FILE), given)


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
