"""The TFX component DetectionEvaluator with its executor."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx.components.evaluator import constants
from tfx.components.evaluator import executor as tfx_evaluator
from tfx.dsl.components.base.base_beam_component import BaseBeamComponent
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec
from tfx.dsl.io import fileio
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.types.artifact import Artifact
from tfx.types.channel import BaseChannel, Channel
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun
from tfx.types.system_executions import Evaluate
from tfx.utils import io_utils

from detloom.components.artifact_types import (
    Artifacts,
    CurvesForUi,
    DatasetReport,
    MetricsForUi,
    PageForUi,
    TextForUi,
    saved_model_dir,
)
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluationResult, EvaluatorParams
from detloom.components.evaluator.report.output_files import (
    PAGE_FILE,
    confidence_metrics,
    confusion_matrix,
    metric_properties,
)
from detloom.components.evaluator.report.render_page import summary_markdown
from detloom.components.fingerprints import source_fingerprint
from detloom.components.properties import (
    BLESSED_DIGEST,
    BLESSED_FORMS,
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
from detloom.schemas.contracts.label_map import format_label_map, read_label_map
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates

SUMMARY_KEY, CURVES_KEY = "summary", "curves"
SUMMARY_FILE = "summary.md"
_OUTPUT_TYPES = {
    keys.EVALUATION_KEY: ModelEvaluation,
    keys.BLESSING_KEY: ModelBlessing,
    PAGE_KEY: PageForUi,
    SUMMARY_KEY: TextForUi,
    METRICS_KEY: MetricsForUi,
    CURVES_KEY: CurvesForUi,
}


class DetectionEvaluatorExecutor(tfx_evaluator.Executor):
    """Evaluate the candidate; a subclass of TFX's Evaluator executor only because Vertex AI requires it.

    For that class, Vertex AI rewrites `current_model_id` of the blessing to the managed resource name; otherwise no
    later run would find the blessed model. Nothing else is inherited.
    """

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
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
    versions = reversed(parse_versions(storage.list_names()))
    found = (name for name in ("", *map(str, versions)) if storage.exists(f"{name}/{SAVED_MODEL_FILE}".strip("/")))
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


def _write_ui_artifacts(output_dict: Artifacts, result: EvaluationResult, report_uri: str) -> None:
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
    blessing.set_string_custom_property(BLESSED_DIGEST, decision.model_digest)
    blessing.set_string_custom_property(BLESSED_FORMS, json.dumps(decision.forms))
    blessing.set_string_custom_property(BLESSING_METRICS, json.dumps(_main_numbers(result)))
    value = constants.BLESSED_VALUE if decision.blessed else constants.NOT_BLESSED_VALUE
    blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BLESSED_KEY, value)
    name = constants.BLESSED_FILE_NAME if decision.blessed else constants.NOT_BLESSED_FILE_NAME
    io_utils.write_string_file(os.path.join(blessing.uri, name), "")


class DetectionEvaluatorSpec(ComponentSpec):
    """Inputs and outputs have the names of TFX's own Evaluator, which its resolvers, Pusher and UI expect."""

    PARAMETERS = {name: ExecutionParameter(type=kind) for name, kind in EvaluatorParams.property_types().items()}
    INPUTS = {
        keys.EXAMPLES_KEY: ChannelParameter(type=Examples),
        keys.MODEL_KEY: ChannelParameter(type=Model),
        keys.BASELINE_MODEL_KEY: ChannelParameter(type=Model, optional=True),
        DATASET_REPORT_KEY: ChannelParameter(type=DatasetReport, optional=True),
        MODEL_RUN_KEY: ChannelParameter(type=ModelRun, optional=True),
    }
    OUTPUTS = {name: ChannelParameter(type=kind) for name, kind in _OUTPUT_TYPES.items()}
    TYPE_ANNOTATION = Evaluate


class DetectionEvaluator(BaseBeamComponent):
    """A TFX component that evaluates the exported model on one split, compares it with the baseline and decides.

    Outputs:
        evaluation: ModelEvaluation with the files that `report/output_files.py` lists.
        blessing: ModelBlessing in the format of TFX's Evaluator.
        page, summary, metrics, curves: report page, summary text, metrics and curves for the user interfaces of
            Kubeflow Pipelines and Vertex AI.
    """

    SPEC_CLASS = DetectionEvaluatorSpec
    EXECUTOR_SPEC = BeamExecutorSpec(DetectionEvaluatorExecutor)

    def __init__(
        self,
        examples: BaseChannel,
        model: BaseChannel,
        baseline_model: BaseChannel | None = None,
        *,
        split: str = "test",
        settings: EvaluatorSettings | None = None,
        gates: Gates | None = None,
        dataset_report: BaseChannel | None = None,
        model_run: BaseChannel | None = None,
        label_map: str | Path | None = None,
    ) -> None:
        """Create the node.

        Args:
            examples: tf.Examples with the Object Detection API's keys, from DetectionExampleGen or ImportExampleGen.
            model: a detector that detloom exported: the output of the Trainer, or of an Importer.
            baseline_model: may be empty; the other gates decide then.
            split: the split to evaluate on.
            settings: slices, sizes, images of the report; None uses the defaults.
            gates: conditions for a blessing; None uses the defaults.
            dataset_report, model_run: outputs of DatasetValidator and Trainer, only shown in the report.
            label_map: file that is read now; the model must have its classes. For examples without `label_map.pbtxt`,
                such as those of TFX's ImportExampleGen; without either, the model's own label map counts.

        Raises:
            InputError: the label map cannot be read.
        """
        params = EvaluatorParams(
            split=split,
            settings=settings or EvaluatorSettings(),
            gates=gates or Gates(),
            label_map=format_label_map(read_label_map(Path(label_map))) if label_map is not None else "",
            code_fingerprint=source_fingerprint(__name__),
        )
        spec = DetectionEvaluatorSpec(
            **params.to_properties(),
            **{
                keys.EXAMPLES_KEY: examples,
                keys.MODEL_KEY: model,
                keys.BASELINE_MODEL_KEY: baseline_model,
                DATASET_REPORT_KEY: dataset_report,
                MODEL_RUN_KEY: model_run,
                **{name: Channel(type=kind) for name, kind in _OUTPUT_TYPES.items()},
            },
        )
        super().__init__(spec=spec)
