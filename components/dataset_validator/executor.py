"""Executor of DatasetValidator."""

from pathlib import Path
from typing import Any

from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact

from detloom.components.artifact_types import keep_after_failure
from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.report import REPORT_HTML
from detloom.components.dataset_validator.validate import describe_failures, validate
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, read_label_map

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY
REPORT_KEY = "report"


class Executor(BaseBeamExecutor):
    """Checks the examples; a failed gate fails the node, and its report is kept aside."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = DatasetValidatorParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        report = artifact_utils.get_single_instance(output_dict[REPORT_KEY])
        splits = artifact_utils.decode_split_names(examples.split_names)
        results = validate(
            {split: examples_utils.get_split_file_patterns([examples], split)[0] for split in splits},
            read_label_map(Path(examples.uri) / LABEL_MAP_FILE),
            params,
            Path(report.uri),
            self._make_beam_pipeline,
        )
        failures = describe_failures(results)
        if failures:
            kept = keep_after_failure(report.uri)
            raise InputError(f"The data set does not pass: {failures} Report: {kept / REPORT_HTML}")
