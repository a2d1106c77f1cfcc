"""The TFX components RetrainDecision and TrainingRecord, and the condition on the nodes between them."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from absl import logging
from tfx.components.util import model_utils
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.dsl.placeholder.placeholder import Predicate
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelRun

from detloom.components import artifact_types
from detloom.components.artifact_types import Artifacts
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import (
    DATASET_REPORT_FILE,
    DATASET_REPORT_KEY,
    DECISION_KEY,
    FINGERPRINT_PROPERTY,
    MODEL_RUN_KEY,
    REASON_PROPERTY,
    REUSED_PROPERTY,
    SPAN_PROPERTY,
    TRAIN_PROPERTY,
    VERSION_PROPERTY,
    ComponentParams,
    address_of,
    int_property,
    string_property,
)
from detloom.components.pusher.manifest import build_manifest
from detloom.components.pusher.versions import LABEL_MAP_PATH
from detloom.components.retrain import training_record
from detloom.components.retrain.reasons import EVALUATION_PARTS, DataNow, changed_parts, decide
from detloom.components.retrain.training_record import (
    FinishedTraining,
    data_of_report,
    format_record,
    short_fingerprint,
)
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import SAVED_MODEL_FILE, SERVING_FOLDER
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, parse_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import show_address
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.schedule import Retrain

EXAMPLES_KEY, MODEL_KEY, BLESSING_KEY = keys.EXAMPLES_KEY, keys.MODEL_KEY, "blessing"
RECORD_KEY = "record"
DECISION_FILE, RECORD_FILE = "decision.json", "training_record.json"


@dataclass(frozen=True, kw_only=True)
class RetrainParams(ComponentParams):
    """Conditions for retraining, and the location of the training records.

    Attributes:
        retrain: conditions, and the folder of the records.
        checks: data checks, which hold the drift limits.
        train_split: the split to train on.
        config_hash: hashes of the training settings and code as JSON by part; a difference always causes training.
        pipeline: pipeline name; several pipelines may keep records in one folder.
        production: folder of versions, or its address, or that of an endpoint; empty if unknown. If the last model was
            rolled back there, changed data are a reason to train.
        records_state: only part of the cache key: `records_state` of training_record.py, for RetrainDecision in local
            runs.
        nonce: only part of the cache key: a new value in each local run, so that TrainingRecord is never cached.
    """

    retrain: Retrain
    checks: DataChecks = DataChecks()
    train_split: str = "train"
    config_hash: str = "{}"
    pipeline: str = ""
    production: str = ""
    records_state: str = ""
    nonce: str = ""


class DecisionExecutor(BaseExecutor):
    """Decide whether to train."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = RetrainParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        output = artifact_utils.get_single_instance(output_dict[DECISION_KEY])
        last = training_record.read_last_record(params.retrain.records, params.pipeline)
        report = _read_report(input_dict)
        decision = decide(
            params.retrain,
            params.checks,
            params.train_split,
            DataNow(
                span=int_property(examples, SPAN_PROPERTY),
                version=int_property(examples, VERSION_PROPERTY),
                report=report,
                fingerprint=short_fingerprint(string_property(examples, FINGERPRINT_PROPERTY) or ""),
            ),
            params.config_hash,
            last,
            training_record.current_time(),
            is_rolled_back=last is not None and training_record.is_rolled_back(last, params.production),
            has_same_classes=_has_same_classes(last, params, examples.uri, report),
        )
        if decision.reuse and last is not None:
            output.set_string_custom_property(REUSED_PROPERTY, json.dumps(last.outputs))
        output.set_int_custom_property(TRAIN_PROPERTY, int(decision.train))
        output.set_string_custom_property(REASON_PROPERTY, decision.sentence)
        content = {TRAIN_PROPERTY: int(decision.train), REASON_PROPERTY: decision.sentence}
        _write(output, DECISION_FILE, json.dumps(content) + "\n")
        logging.info("%s", decision.sentence)


class RecordExecutor(BaseExecutor):
    """Record a finished training run."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = RetrainParams.from_properties(exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[EXAMPLES_KEY])
        decision = artifact_utils.get_single_instance(input_dict[DECISION_KEY])
        model = artifact_utils.get_single_instance(input_dict[MODEL_KEY])
        is_blessed = model_utils.is_model_blessed(artifact_utils.get_single_instance(input_dict[BLESSING_KEY]))
        outcome: Literal["blessed", "refused"] = "blessed" if is_blessed else "refused"
        outputs = {key: address_of(input_dict[key][0]) for key in (MODEL_KEY, MODEL_RUN_KEY) if input_dict.get(key)}
        last = training_record.read_last_record(params.retrain.records, params.pipeline)
        training = FinishedTraining(
            time=training_record.next_time(params.retrain.records, params.pipeline).isoformat(),
            outcome=outcome,
            outputs=outputs,
            reason=string_property(decision, REASON_PROPERTY) or "",
            span=int_property(examples, SPAN_PROPERTY),
            version=int_property(examples, VERSION_PROPERTY),
            data_fingerprint=short_fingerprint(string_property(examples, FINGERPRINT_PROPERTY) or ""),
            config_hash=params.config_hash,
            model_identity=build_manifest(Path(artifact_types.saved_model_dir(model))).identity,
            **data_of_report(_read_report(input_dict), params.train_split),
        )
        if string_property(decision, REUSED_PROPERTY) and last is not None:
            training = replace(last, outcome=outcome, outputs=outputs, config_hash=params.config_hash)
        # The artifact comes first: a crash before the record is written causes another training run, a later one none.
        _write(artifact_utils.get_single_instance(output_dict[RECORD_KEY]), RECORD_FILE, format_record(training))
        name = training_record.append_record(params.retrain.records, params.pipeline, training)
        logging.info("TrainingRecord: wrote %s to %s.", name, show_address(params.retrain.records))


def _has_same_classes(
    last: FinishedTraining | None, params: RetrainParams, examples_uri: str, report: dict[str, Any]
) -> bool | None:
    """Compare the classes of the data and of the last model; None if it is not needed, is gone or cannot be read."""
    if last is None or MODEL_KEY not in last.outputs:
        return None
    changed = changed_parts(last.config_hash, params.config_hash)
    if not changed or changed - EVALUATION_PARTS:
        return None
    try:
        model = open_storage(last.outputs[MODEL_KEY])
        if not model.exists(f"{SERVING_FOLDER}/{SAVED_MODEL_FILE}"):
            return None
        of_data = open_storage(examples_uri).read(LABEL_MAP_FILE)
        if of_data is None:  # as in examples of TFX's own components
            return report["splits"][params.train_split]["boxes_by_class"].keys() == last.boxes_by_class.keys()
        of_model = model.read(f"{SERVING_FOLDER}/{LABEL_MAP_PATH}")
        return of_model is not None and parse_label_map(of_data.decode()) == parse_label_map(of_model.decode())
    except (InputError, OSError, UnicodeDecodeError) as error:  # a container may have no access to the bucket
        logging.warning("The model of the last training run cannot be read: %s", error)
        return None


def _read_report(input_dict: Artifacts) -> dict[str, Any]:
    folder = artifact_utils.get_single_instance(input_dict[DATASET_REPORT_KEY]).uri
    report: dict[str, Any] = json.loads((Path(folder) / DATASET_REPORT_FILE).read_text(encoding="utf-8"))
    return report


def _write(artifact: Artifact, name: str, text: str) -> None:
    folder = Path(artifact.uri)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_file(folder / name, text)


_PARAMETERS = {name: ExecutionParameter(type=kind) for name, kind in RetrainParams.property_types().items()}


class RetrainDecisionSpec(ComponentSpec):
    """Inputs: examples and their report. Output: the decision."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = _PARAMETERS
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=Examples),
        DATASET_REPORT_KEY: ChannelParameter(type=artifact_types.DatasetReport),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {
        DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision)
    }


class TrainingRecordSpec(ComponentSpec):
    """Inputs: examples, their report, the decision, model, training run, blessing. Output: the record."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = _PARAMETERS
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=Examples),
        DATASET_REPORT_KEY: ChannelParameter(type=artifact_types.DatasetReport),
        DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision),
        MODEL_KEY: ChannelParameter(type=Model),
        BLESSING_KEY: ChannelParameter(type=ModelBlessing),
        MODEL_RUN_KEY: ChannelParameter(type=ModelRun, optional=True),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {RECORD_KEY: ChannelParameter(type=artifact_types.TrainingRecord)}


class RetrainDecision(BaseComponent):
    """A TFX component that compares the data with those of the last finished training run.

    Outputs:
        decision: custom properties `train` (1 or 0) and `reason` (a sentence); `decision.json` holds both. If only the
            evaluation of the last model is repeated, `train` is 1 and `reused` names the outputs of its training run.
    """

    SPEC_CLASS = RetrainDecisionSpec
    EXECUTOR_SPEC = ExecutorClassSpec(DecisionExecutor)

    def __init__(
        self,
        examples: BaseChannel,
        dataset_report: BaseChannel,
        *,
        retrain: Retrain,
        checks: DataChecks | None = None,
        train_split: str = "train",
        config_hash: str = "{}",
        pipeline: str = "",
        production: str = "",
        records_state: str = "",
    ) -> None:
        """Create the node; the settings are those of `RetrainParams`.

        Args:
            dataset_report: report of DatasetValidator on these examples.
        """
        params = RetrainParams(
            retrain=retrain,
            checks=checks or DataChecks(),
            train_split=train_split,
            config_hash=config_hash,
            pipeline=pipeline,
            production=production,
            records_state=records_state,
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = RetrainDecisionSpec(
            **params.to_properties(),
            **{
                EXAMPLES_KEY: examples,
                DATASET_REPORT_KEY: dataset_report,
                DECISION_KEY: Channel(type=artifact_types.RetrainDecision),
            },
        )
        super().__init__(spec=spec)


class TrainingRecord(BaseComponent):
    """A TFX component that records an evaluated training run at `retrain.records`. It runs after the push.

    Outputs:
        record: `training_record.json`, a copy of the record.
    """

    SPEC_CLASS = TrainingRecordSpec
    EXECUTOR_SPEC = ExecutorClassSpec(RecordExecutor)

    def __init__(
        self,
        examples: BaseChannel,
        dataset_report: BaseChannel,
        decision: BaseChannel,
        model: BaseChannel,
        blessing: BaseChannel,
        model_run: BaseChannel | None = None,
        *,
        retrain: Retrain,
        checks: DataChecks | None = None,
        train_split: str = "train",
        config_hash: str = "{}",
        pipeline: str = "",
        production: str = "",
        nonce: str = "",
    ) -> None:
        """Create the node; the settings are those of `RetrainParams`.

        Args:
            decision: output of RetrainDecision.
            model, model_run, blessing: outputs of the Trainer and of the evaluator.
        """
        params = RetrainParams(
            retrain=retrain,
            checks=checks or DataChecks(),
            train_split=train_split,
            config_hash=config_hash,
            pipeline=pipeline,
            production=production,
            nonce=nonce,
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = TrainingRecordSpec(
            **params.to_properties(),
            **{
                EXAMPLES_KEY: examples,
                DATASET_REPORT_KEY: dataset_report,
                DECISION_KEY: decision,
                MODEL_KEY: model,
                BLESSING_KEY: blessing,
                MODEL_RUN_KEY: model_run,
                RECORD_KEY: Channel(type=artifact_types.TrainingRecord),
            },
        )
        super().__init__(spec=spec)


def training_wanted(decision: BaseChannel) -> Predicate:
    """Build the condition for the nodes that train, evaluate and push."""
    return decision.future()[0].custom_property(TRAIN_PROPERTY) == 1
