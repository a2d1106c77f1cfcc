"""Executors of RetrainDecision and TrainingRecord."""

import json
from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.example_gen.utils import FINGERPRINT_PROPERTY_NAME, SPAN_PROPERTY_NAME, VERSION_PROPERTY_NAME
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact

from detloom.components.dataset_validator.report import REPORT_JSON
from detloom.components.retrain import training_record
from detloom.components.retrain.params import RetrainParams
from detloom.components.retrain.reasons import DataNow, decide
from detloom.components.retrain.training_record import (
    FinishedTraining,
    append_record,
    data_of_report,
    format_record,
    read_last_record,
    short_fingerprint,
)
from detloom.schemas.redact import show_address
from detloom.schemas.text_file import write_text_file

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY
DATASET_REPORT_KEY = "dataset_report"
DECISION_KEY = "decision"
BLESSING_KEY = "blessing"
RECORD_KEY = "record"
TRAIN_PROPERTY, REASON_PROPERTY = "train", "reason"  # of the decision's artifact
DECISION_FILE, RECORD_FILE = "decision.json", "training_record.json"


class DecisionExecutor(BaseExecutor):
    """Says whether there is reason to train."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = RetrainParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        output = artifact_utils.get_single_instance(output_dict[DECISION_KEY])
        decision = decide(
            params.retrain,
            params.checks,
            params.train_split,
            DataNow(
                span=_int_property(examples, SPAN_PROPERTY_NAME),
                version=_int_property(examples, VERSION_PROPERTY_NAME),
                report=_read_report(input_dict),
            ),
            params.config_hash,
            read_last_record(params.retrain.records, params.pipeline),
            training_record.current_time(),
        )
        output.set_int_custom_property(TRAIN_PROPERTY, int(decision.train))
        output.set_string_custom_property(REASON_PROPERTY, decision.sentence)
        content = {TRAIN_PROPERTY: int(decision.train), REASON_PROPERTY: decision.sentence}
        _write(output, DECISION_FILE, json.dumps(content) + "\n")
        logging.info("%s", decision.sentence)


class RecordExecutor(BaseExecutor):
    """Remembers a finished training."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = RetrainParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        decision = artifact_utils.get_single_instance(input_dict[DECISION_KEY])
        is_blessed = model_utils.is_model_blessed(artifact_utils.get_single_instance(input_dict[BLESSING_KEY]))
        training = FinishedTraining(
            time=training_record.current_time().isoformat(),
            outcome="blessed" if is_blessed else "refused",
            reason=_string_property(decision, REASON_PROPERTY),
            span=_int_property(examples, SPAN_PROPERTY_NAME),
            version=_int_property(examples, VERSION_PROPERTY_NAME),
            data_fingerprint=short_fingerprint(_string_property(examples, FINGERPRINT_PROPERTY_NAME)),
            config_hash=params.config_hash,
            **data_of_report(_read_report(input_dict), params.train_split),
        )
        # The artifact first: a crash before the record is written leads to another training, one after it to none.
        _write(artifact_utils.get_single_instance(output_dict[RECORD_KEY]), RECORD_FILE, format_record(training))
        name = append_record(params.retrain.records, params.pipeline, training)
        logging.info("TrainingRecord: %s at %s.", name, show_address(params.retrain.records))


def _read_report(input_dict: dict[str, list[Artifact]]) -> dict[str, Any]:
    folder = artifact_utils.get_single_instance(input_dict[DATASET_REPORT_KEY]).uri
    report: dict[str, Any] = json.loads((Path(folder) / REPORT_JSON).read_text(encoding="utf-8"))
    return report


def _write(artifact: Artifact, name: str, text: str) -> None:
    folder = Path(artifact.uri)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_file(folder / name, text)


def _int_property(artifact: Artifact, name: str) -> int | None:
    return int(artifact.get_int_custom_property(name)) if artifact.has_custom_property(name) else None


def _string_property(artifact: Artifact, name: str) -> str:
    return str(artifact.get_string_custom_property(name)) if artifact.has_custom_property(name) else ""
