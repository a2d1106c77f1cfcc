"""Executors of RetrainDecision and TrainingRecord."""

import json
from pathlib import Path
from typing import Any

from absl import logging
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils, standard_component_specs
from tfx.types.artifact import Artifact

from detloom.components.artifact_types import saved_model_dir
from detloom.components.properties import (
    DATASET_REPORT_FILE,
    DATASET_REPORT_KEY,
    DECISION_KEY,
    FINGERPRINT_PROPERTY,
    REASON_PROPERTY,
    SPAN_PROPERTY,
    TRAIN_PROPERTY,
    VERSION_PROPERTY,
    int_property,
    string_property,
)
from detloom.components.pusher.manifest import build_manifest
from detloom.components.retrain import training_record
from detloom.components.retrain.params import RetrainParams
from detloom.components.retrain.reasons import DataNow, decide
from detloom.components.retrain.training_record import (
    FinishedTraining,
    append_record,
    data_of_report,
    format_record,
    next_time,
    read_last_record,
    short_fingerprint,
)
from detloom.schemas.reading.redact import show_address
from detloom.schemas.reading.text_file import write_text_file

EXAMPLES_KEY = standard_component_specs.EXAMPLES_KEY
MODEL_KEY = standard_component_specs.MODEL_KEY
BLESSING_KEY = "blessing"
RECORD_KEY = "record"
DECISION_FILE, RECORD_FILE = "decision.json", "training_record.json"


class DecisionExecutor(BaseExecutor):
    """Decide whether to train."""

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
                span=int_property(examples, SPAN_PROPERTY),
                version=int_property(examples, VERSION_PROPERTY),
                report=_read_report(input_dict),
            ),
            params.config_hash,
            read_last_record(params.retrain.records, params.pipeline, params.production),
            training_record.current_time(),
        )
        output.set_int_custom_property(TRAIN_PROPERTY, int(decision.train))
        output.set_string_custom_property(REASON_PROPERTY, decision.sentence)
        content = {TRAIN_PROPERTY: int(decision.train), REASON_PROPERTY: decision.sentence}
        _write(output, DECISION_FILE, json.dumps(content) + "\n")
        logging.info("%s", decision.sentence)


class RecordExecutor(BaseExecutor):
    """Record a finished training run."""

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
        model = artifact_utils.get_single_instance(input_dict[MODEL_KEY])
        is_blessed = model_utils.is_model_blessed(artifact_utils.get_single_instance(input_dict[BLESSING_KEY]))
        training = FinishedTraining(
            time=next_time(params.retrain.records, params.pipeline).isoformat(),
            outcome="blessed" if is_blessed else "refused",
            reason=string_property(decision, REASON_PROPERTY) or "",
            span=int_property(examples, SPAN_PROPERTY),
            version=int_property(examples, VERSION_PROPERTY),
            data_fingerprint=short_fingerprint(string_property(examples, FINGERPRINT_PROPERTY) or ""),
            config_hash=params.config_hash,
            model_identity=build_manifest(Path(saved_model_dir(model))).identity,
            **data_of_report(_read_report(input_dict), params.train_split),
        )
        # The artifact comes first: a crash before the record is written causes another training run, a later one none.
        _write(artifact_utils.get_single_instance(output_dict[RECORD_KEY]), RECORD_FILE, format_record(training))
        name = append_record(params.retrain.records, params.pipeline, training)
        logging.info("TrainingRecord: wrote %s to %s.", name, show_address(params.retrain.records))


def _read_report(input_dict: dict[str, list[Artifact]]) -> dict[str, Any]:
    folder = artifact_utils.get_single_instance(input_dict[DATASET_REPORT_KEY]).uri
    report: dict[str, Any] = json.loads((Path(folder) / DATASET_REPORT_FILE).read_text(encoding="utf-8"))
    return report


def _write(artifact: Artifact, name: str, text: str) -> None:
    folder = Path(artifact.uri)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_file(folder / name, text)
