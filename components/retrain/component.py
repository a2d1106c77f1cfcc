"""The components RetrainDecision and TrainingRecord, and the condition on the nodes between them."""

from typing import ClassVar

from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.dsl.placeholder.placeholder import Predicate
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

from detloom.components import artifact_types
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import DATASET_REPORT_KEY, DECISION_KEY, TRAIN_PROPERTY
from detloom.components.retrain.executor import (
    BLESSING_KEY,
    EXAMPLES_KEY,
    MODEL_KEY,
    RECORD_KEY,
    DecisionExecutor,
    RecordExecutor,
)
from detloom.components.retrain.params import RetrainParams
from detloom.schemas.run_file.data_checks import DataChecks
from detloom.schemas.run_file.schedule import Retrain

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
    """Inputs: examples, their report, the decision, the model, the blessing. Output: the record."""

    PARAMETERS: ClassVar[dict[str, ExecutionParameter]] = _PARAMETERS
    INPUTS: ClassVar[dict[str, ChannelParameter]] = {
        EXAMPLES_KEY: ChannelParameter(type=Examples),
        DATASET_REPORT_KEY: ChannelParameter(type=artifact_types.DatasetReport),
        DECISION_KEY: ChannelParameter(type=artifact_types.RetrainDecision),
        MODEL_KEY: ChannelParameter(type=Model),
        BLESSING_KEY: ChannelParameter(type=ModelBlessing),
    }
    OUTPUTS: ClassVar[dict[str, ChannelParameter]] = {RECORD_KEY: ChannelParameter(type=artifact_types.TrainingRecord)}


class RetrainDecision(BaseComponent):
    """A TFX component that compares the data with those of the last finished training run.

    Outputs:
        decision: custom properties `train` (1 or 0) and `reason` (a sentence); `decision.json` holds both.
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
        """Create the node.

        Args:
            dataset_report: report of DatasetValidator on these examples.
            retrain: conditions, and the folder of the records.
            checks: data checks, which hold the drift limits; None uses the defaults.
            train_split: the split to train on.
            config_hash: hashes of the training settings and code as JSON by part; a difference always causes training.
            pipeline: name of the pipeline; several pipelines may keep records in one folder.
            production: folder of versions, or its address, or that of an endpoint; empty if unknown. The training of a
                model that was rolled back there counts as if it had never finished.
            records_state: a summary of the records (`records_state` in training_record.py), so that TFX's cache sees a
                change of them; no code reads it.
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
        *,
        retrain: Retrain,
        checks: DataChecks | None = None,
        train_split: str = "train",
        config_hash: str = "{}",
        pipeline: str = "",
        production: str = "",
        nonce: str = "",
    ) -> None:
        """Create the node; the arguments are those of RetrainDecision.

        Args:
            decision: output of RetrainDecision.
            model, blessing: outputs of the Trainer and of the evaluator.
            nonce: a new value in each run records the run even if everything else came from the cache.
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
                RECORD_KEY: Channel(type=artifact_types.TrainingRecord),
            },
        )
        super().__init__(spec=spec)


def training_wanted(decision: BaseChannel) -> Predicate:
    """Build the condition for the nodes that train, evaluate and push."""
    return decision.future()[0].custom_property(TRAIN_PROPERTY) == 1
