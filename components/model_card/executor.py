"""Executor of ModelCard."""

from typing import Any

from absl import logging
from tfx.components.evaluator import constants
from tfx.components.example_gen.utils import FINGERPRINT_PROPERTY_NAME, SPAN_PROPERTY_NAME, VERSION_PROPERTY_NAME
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.utils import path_utils

from detloom.components.model_card.card import CardInputs, build_card, write_card
from detloom.components.model_card.data_facts import DataSource
from detloom.components.model_card.params import ModelCardParams
from detloom.schemas.detections import ONNX_FOLDER, TFLITE_FOLDER
from detloom.schemas.model_card_config import CARD_PAGE

DATASET_REPORT_KEY, MODEL_RUN_KEY, REJECTS_KEY = "dataset_report", "model_run", "rejects"
MODEL_CARD_KEY = "model_card"


class Executor(BaseExecutor):
    """Writes the card of a model from the artifacts that it came from."""

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        self._log_startup(input_dict, output_dict, exec_properties)
        params = ModelCardParams.from_properties(exec_properties)
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        examples = input_dict.get(keys.EXAMPLES_KEY) or []
        output = artifact_utils.get_single_instance(output_dict[MODEL_CARD_KEY])
        card = build_card(
            CardInputs(
                name=params.name,
                model_dir=str(path_utils.serving_model_path(model.uri, path_utils.is_old_model_artifact(model))),
                tflite_dir=f"{model.uri}/{TFLITE_FOLDER}",
                onnx_dir=f"{model.uri}/{ONNX_FOLDER}",
                evaluation_dir=_uri_of(input_dict, keys.EVALUATION_KEY),
                model_run_dir=_uri_of(input_dict, MODEL_RUN_KEY),
                dataset_report_dir=_uri_of(input_dict, DATASET_REPORT_KEY),
                rejects_dir=_uri_of(input_dict, REJECTS_KEY),
                examples_uris=[artifact.uri for artifact in examples],
                split=params.split,
                sources=[_source(artifact) for artifact in examples],
                stated=params.stated,
                evaluator=params.evaluator,
                trainer_fingerprint=params.trainer_fingerprint,
                lineage=_lineage(input_dict, model),
            )
        )
        write_card(card, output.uri)
        logging.info("ModelCard: %s/%s", output.uri, CARD_PAGE)


def _uri_of(input_dict: dict[str, list[Artifact]], key: str) -> str | None:
    artifacts = input_dict.get(key) or []
    return str(artifact_utils.get_single_instance(artifacts).uri) if artifacts else None


def _source(examples: Artifact) -> DataSource:
    return DataSource(
        artifact_id=examples.id,
        span=_int_property(examples, SPAN_PROPERTY_NAME),
        version=_int_property(examples, VERSION_PROPERTY_NAME),
        files=examples.get_string_custom_property(FINGERPRINT_PROPERTY_NAME)
        if examples.has_custom_property(FINGERPRINT_PROPERTY_NAME)
        else None,
    )


def _int_property(artifact: Artifact, name: str) -> int | None:
    return artifact.get_int_custom_property(name) if artifact.has_custom_property(name) else None


def _lineage(input_dict: dict[str, list[Artifact]], model: Artifact) -> list[tuple[str, str]]:
    """Ids in ML Metadata; a path would say more about the machine than about the model."""
    lines = [("Model in ML Metadata", f"artifact {model.id}")]
    for key, name in ((keys.EVALUATION_KEY, "Evaluation"), (MODEL_RUN_KEY, "Training")):
        lines += [(f"{name} in ML Metadata", f"artifact {each.id}") for each in input_dict.get(key) or []]
    for blessing in input_dict.get(keys.BLESSING_KEY) or []:
        baseline = _baseline_of(blessing)
        lines += [("Baseline in ML Metadata", f"artifact {baseline}")] if baseline else []
    return lines


def _baseline_of(blessing: Artifact) -> str | int | None:
    """Id of the baseline: a number on one machine, text on clusters (tfx, `refactor_model_blessing`)."""
    name = constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY
    if not blessing.has_custom_property(name):
        return None
    return blessing.get_string_custom_property(name) or blessing.get_int_custom_property(name)
