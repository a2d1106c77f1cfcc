"""The executor of DetectionEvaluator."""

import json
import os
from collections.abc import Sequence
from typing import Any

from tfx.components.evaluator import constants
from tfx.components.evaluator import executor as tfx_evaluator
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.utils import io_utils

from detloom.components.artifact_types import saved_model_dir
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluationResult
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.report.output_files import (
    PAGE_FILE,
    confidence_metrics,
    confusion_matrix,
    metric_properties,
)
from detloom.components.evaluator.report.render_page import summary_markdown
from detloom.components.properties import (
    BLESSING_MESSAGE,
    BLESSING_METRICS,
    DATASET_REPORT_KEY,
    FINGERPRINT_PROPERTY,
    METRICS_KEY,
    MODEL_RUN_KEY,
    PAGE_KEY,
    SPAN_PROPERTY,
    int_property,
    pipeline_name,
    string_property,
)
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import SAVED_MODEL_FILE, TFLITE_FOLDER
from detloom.schemas.errors import InputError

SUMMARY_KEY, CURVES_KEY = "summary", "curves"
SUMMARY_FILE = "summary.md"


class Executor(tfx_evaluator.Executor):
    """Evaluate the candidate; a subclass of TFX's Evaluator executor only because Vertex AI requires it.

    For that class, Vertex AI rewrites `current_model_id` of the blessing to the managed resource name; otherwise no
    later run would find the blessed model. Nothing else is inherited.
    """

    def Do(
        self,
        input_dict: dict[str, list[Artifact]],
        output_dict: dict[str, list[Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Evaluate, write the report into `evaluation` and the verdict into `blessing`."""
        self._log_startup(input_dict, output_dict, exec_properties)
        params = EvaluatorParams.from_properties(exec_properties)
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        found = input_dict.get(keys.BASELINE_MODEL_KEY) or []
        # On Vertex AI the stock strategy resolves the latest blessed model. If the candidate comes from the cache, this
        # is the candidate itself, and a gate that requires an improvement would refuse the model that is being served.
        baselines = [baseline for baseline in found if baseline.uri != model.uri]
        evaluation = artifact_utils.get_single_instance(output_dict[keys.EVALUATION_KEY])
        blessing = artifact_utils.get_single_instance(output_dict[keys.BLESSING_KEY])
        examples = input_dict[keys.EXAMPLES_KEY]
        reports, model_runs = input_dict.get(DATASET_REPORT_KEY) or [], input_dict.get(MODEL_RUN_KEY) or []
        fileio.makedirs(evaluation.uri)
        result = evaluate(
            EvaluationInputs(
                candidate_dir=saved_model_dir(model),
                baseline_dir=_baseline_dir(baselines[0]) if baselines else None,
                is_blessed_already=len(baselines) < len(found),
                examples_uris=[artifact.uri for artifact in examples],
                shard_patterns=[f"{uri}/*" for uri in _split_uris(examples, params.split)],
                tflite_dir=f"{model.uri}/{TFLITE_FOLDER}",
                dataset_report_uri=reports[0].uri if reports else None,
                lineage=_lineage(model, baselines, examples),
                model_run_uri=model_runs[0].uri if model_runs else None,
                pipeline=pipeline_name(self._context),
            ),
            params,
            self._make_beam_pipeline,
            evaluation.uri,
        )
        _write_ui_artifacts(output_dict, result, evaluation.uri)
        _write_blessing(blessing, result, model, baselines, exec_properties)


def _baseline_dir(model: Artifact) -> str:
    """Return the folder or the address of the baseline's SavedModel.

    Beside a model of a pipeline, an Importer may name a pushed version, or the folder of the versions; of these, the
    highest is taken.
    """
    folder = saved_model_dir(model)
    storage = open_storage(model.uri)
    if storage.exists(folder.removeprefix(model.uri).strip("/")):
        return folder
    versions = sorted(filter(str.isdecimal, storage.list_names()), key=int, reverse=True)
    found = (name for name in ("", *versions) if storage.exists(f"{name}/{SAVED_MODEL_FILE}".strip("/")))
    name = next(found, None)
    return folder if name is None else storage.address(name)


def _lineage(model: Artifact, baselines: Sequence[Artifact], examples: Sequence[Artifact]) -> list[tuple[str, str]]:
    """Return the artifacts' ids in ML Metadata, and span and fingerprint of the data."""
    lines = [("Model in ML Metadata", f"artifact {model.id}")]
    lines += [("Baseline in ML Metadata", f"artifact {each.id}") for each in baselines]
    for each in examples:
        facts = [f"artifact {each.id}"]
        if (span := int_property(each, SPAN_PROPERTY)) is not None:
            facts.append(f"span {span}")
        if (files := string_property(each, FINGERPRINT_PROPERTY)) is not None:
            facts.append(f"files {files}")
        lines.append(("Examples in ML Metadata", ", ".join(facts)))
    return lines


def _write_ui_artifacts(output_dict: dict[str, list[Artifact]], result: EvaluationResult, report_uri: str) -> None:
    page, summary, metrics, curves = (
        artifact_utils.get_single_instance(output_dict[key]) for key in (PAGE_KEY, SUMMARY_KEY, METRICS_KEY, CURVES_KEY)
    )
    fileio.makedirs(page.uri)
    fileio.copy(f"{report_uri}/{PAGE_FILE}", f"{page.uri}/{PAGE_FILE}", overwrite=True)
    io_utils.write_string_file(f"{summary.uri}/{SUMMARY_FILE}", summary_markdown(result))
    for name, value in metric_properties(result).items():
        metrics.set_float_custom_property(name, value)
    curves.set_json_value_custom_property("confidenceMetrics", confidence_metrics(result.candidate))
    curves.set_json_value_custom_property("confusionMatrix", confusion_matrix(result.candidate))


def _split_uris(examples: Sequence[Artifact], split: str) -> list[str]:
    for artifact in examples:
        known = artifact_utils.decode_split_names(artifact.split_names)
        if split not in known:
            raise InputError(f"{artifact.uri}: no split '{split}', allowed: {', '.join(known)}.")
    return list(artifact_utils.get_split_uris(list(examples), split))


def _main_numbers(result: EvaluationResult) -> dict[str, float]:
    """Return AP with the ends of its interval, and AP50; omit values that could not be measured."""
    interval = result.comparison.candidate.AP
    ap50, _ = result.candidate.find_value("AP50")
    found = {"AP": interval.value, "AP_low": interval.low, "AP_high": interval.high, "AP50": ap50}
    return {name: value for name, value in found.items() if value is not None}


def _write_blessing(
    blessing: Artifact,
    result: EvaluationResult,
    model: Artifact,
    baselines: Sequence[Artifact],
    exec_properties: dict[str, Any],
) -> None:
    """Write the blessing as TFX's Evaluator does, for the stock Pusher and LatestBlessedModelStrategy."""
    blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, model.uri)
    blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY, model.id)
    if baselines:
        blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY, baselines[0].uri)
        blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY, baselines[0].id)
    if "current_component_id" in exec_properties:
        blessing.set_string_custom_property("component_id", exec_properties["current_component_id"])
    decision = result.decision
    blessing.set_string_custom_property(BLESSING_MESSAGE, decision.sentence)
    blessing.set_string_custom_property(BLESSING_METRICS, json.dumps(_main_numbers(result)))
    value = constants.BLESSED_VALUE if decision.blessed else constants.NOT_BLESSED_VALUE
    blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BLESSED_KEY, value)
    name = constants.BLESSED_FILE_NAME if decision.blessed else constants.NOT_BLESSED_FILE_NAME
    io_utils.write_string_file(os.path.join(blessing.uri, name), "")
