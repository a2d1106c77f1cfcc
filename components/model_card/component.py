"""The TFX component ModelCard: specification, parameters and executor."""

from typing import Any

from absl import logging
from tfx.components.evaluator import constants
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.dsl.components.base.executor_spec import ExecutorClassSpec
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun
from tfx.utils import path_utils

from detloom.components import artifact_types
from detloom.components.artifact_types import Artifacts
from detloom.components.fingerprints import source_fingerprint
from detloom.components.model_card.card import CardInputs, ModelCardParams, build_card, write_card
from detloom.components.properties import (
    DATASET_REPORT_KEY,
    FINGERPRINT_PROPERTY,
    MODEL_CARD_KEY,
    MODEL_RUN_KEY,
    REJECTS_KEY,
    SPAN_PROPERTY,
    VERSION_PROPERTY,
    int_property,
    string_property,
)
from detloom.schemas.contracts.detections import TFLITE_FOLDER
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.model_card import CARD_PAGE, ModelCardSettings


class Executor(BaseExecutor):
    """Write the card of a model from the artifacts that it came from."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        examples = input_dict.get(keys.EXAMPLES_KEY) or []
        output = artifact_utils.get_single_instance(output_dict[MODEL_CARD_KEY])
        card = build_card(
            CardInputs(
                params=ModelCardParams.from_properties(exec_properties),
                model_dir=str(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model))),
                tflite_dir=f"{model.uri}/{TFLITE_FOLDER}",
                evaluation_dir=_uri_of(input_dict, keys.EVALUATION_KEY),
                model_run_dir=_uri_of(input_dict, MODEL_RUN_KEY),
                dataset_report_dir=_uri_of(input_dict, DATASET_REPORT_KEY),
                rejects_dir=_uri_of(input_dict, REJECTS_KEY),
                examples_uris=[artifact.uri for artifact in examples],
                sources=[_source(artifact) for artifact in examples],
                lineage=_lineage(input_dict, model),
            )
        )
        write_card(card, output.uri)
        logging.info("ModelCard: %s/%s", output.uri, CARD_PAGE)


def _uri_of(input_dict: Artifacts, key: str) -> str | None:
    artifacts = input_dict.get(key) or []
    return str(artifact_utils.get_single_instance(artifacts).uri) if artifacts else None


def _source(examples: Artifact) -> dict[str, Any]:
    return {
        "artifact_id": examples.id,
        "span": int_property(examples, SPAN_PROPERTY),
        "version": int_property(examples, VERSION_PROPERTY),
        "files": string_property(examples, FINGERPRINT_PROPERTY),
    }


def _lineage(input_dict: Artifacts, model: Artifact) -> list[tuple[str, str]]:
    """Return ids in ML Metadata; paths are omitted because they describe the machine, not the model."""
    lines = [("Model in ML Metadata", f"artifact {model.id}")]
    for key, name in ((keys.EVALUATION_KEY, "Evaluation"), (MODEL_RUN_KEY, "Training")):
        lines += [(f"{name} in ML Metadata", f"artifact {each.id}") for each in input_dict.get(key) or []]
    for blessing in input_dict.get(keys.BLESSING_KEY) or []:
        # An integer on one machine, text on clusters (tfx, `refactor_model_blessing`).
        name = constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY
        baseline = blessing.get_string_custom_property(name) or blessing.get_int_custom_property(name)
        lines += [("Baseline in ML Metadata", f"artifact {baseline}")] if baseline else []
    return lines


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
        stated: ModelCardSettings | None = None,
        evaluator: EvaluatorSettings | None = None,
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
            stated=stated or ModelCardSettings(),
            evaluator=evaluator or EvaluatorSettings(),
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
