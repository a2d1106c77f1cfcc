"""The forms of the candidate: the one that gates judge, the other one that is served too, and TFLite variants."""

import os
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from detloom.components.evaluator.gates import FORM_METRICS, Latency, OtherForm
from detloom.components.evaluator.inference import ModelFile, load_model
from detloom.components.evaluator.measurements import Split, measure_keypoints, measure_masks
from detloom.components.evaluator.model_output_checks import find_output_problem, find_unusable
from detloom.components.evaluator.record_table import RecordTable
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import ONNX_FILE, TFLITE_PROBLEM_FILE, TFLITE_SUFFIX
from detloom.schemas.contracts.runtime_names import FORM_ONNX, FORM_SAVED_MODEL, FORM_TITLES, ModelRuntime
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, summarize_matches
from detloom.trainer_module.evaluation.matches import BY_CLASS, match_detections
from detloom.trainer_module.inference.onnx_file_runtime import RawOutputsError

_TFLITE = "tflite/"


def find_other_form(model_dir: str, runtime: ModelRuntime) -> tuple[dict[str, ModelFile], str | None]:
    """Return the form of the candidate that `runtime` does not run, by its name, if the candidate has it.

    A form that cannot be loaded is replaced by the reason, as a sentence without a full stop.

    Raises:
        InputError: `runtime` is not installed, or needs `model.onnx`, which is missing or cannot be loaded.
    """
    if runtime != "tensorflow":
        load_model(ModelFile(model_dir, runtime))  # an error in a worker would not name the file
        return {FORM_SAVED_MODEL: ModelFile(model_dir)}, None
    if not tf.io.gfile.exists(f"{model_dir}/{ONNX_FILE}"):
        return {}, None
    file = ModelFile(model_dir, "onnxruntime")
    try:
        load_model(file)
    except RawOutputsError as error:
        logging.info("%s It is not evaluated.", error)
        return {}, None
    except InputError as error:
        return {}, f"the file {ONNX_FILE} cannot be loaded ({str(error).rstrip('.')})"
    return {FORM_ONNX: file}, None


def choose_baseline_file(model_dir: str, runtime: ModelRuntime) -> ModelFile:
    """Let the candidate's runtime run the baseline as well, or TensorFlow if that is not possible."""
    file = ModelFile(model_dir, runtime)
    if runtime != "tensorflow":
        try:
            load_model(file)
        except InputError as error:
            logging.warning("DetectionEvaluator: TensorFlow runs the baseline. %s", error)
            return ModelFile(model_dir)
    return file


def find_tflite_variants(folder: str | None) -> dict[str, ModelFile]:
    """Return the loadable TFLite models by unique names."""
    variants = {}
    for path in sorted(tf.io.gfile.glob(f"{folder}/*{TFLITE_SUFFIX}")) if folder else []:
        file = ModelFile(path, "tflite")
        try:
            load_model(file)  # an error in a worker would end the run
        except InputError as error:
            logging.warning("%s It is not evaluated.", error)
            continue
        variants[f"{_TFLITE}{os.path.basename(path).removesuffix(TFLITE_SUFFIX)}"] = file
    return variants


def read_conversion_problem(folder: str | None) -> str | None:
    """Return why the export could not write the TFLite variants, as a sentence without a full stop."""
    content = open_storage(folder).read(TFLITE_PROBLEM_FILE) if folder is not None else None
    return None if content is None else content.decode("utf-8", "replace").rstrip(".")


def measure_variants(records: RecordTable, variants: Mapping[str, ModelFile], split: Split) -> dict[str, CocoMetrics]:
    """Measure the variants whose outputs are usable; without its AP, the int8 gate fails."""
    result = {}
    for name, file in variants.items():
        if problem := find_unusable(records, name, split.label_map):
            logging.warning("%s: not evaluated: %s.", file.path, problem)
            continue
        columns = records.take_matches(name).get(BY_CLASS)
        matches = match_detections(split.ground_truth, records.found[name], split.label_map, columns=columns)
        result[name.removeprefix(_TFLITE)] = summarize_matches(matches, split.label_map)
    return result


def measure_other_form(
    records: RecordTable,
    name: str | None,
    split: Split,
    variants: Mapping[str, CocoMetrics],
    latency: Mapping[str, Latency],
) -> tuple[OtherForm | None, str | None]:
    """Measure what the gates compare in both forms of the candidate.

    Args:
        name: that of the other form; None without one.

    Returns:
        The measurements, or None and why the outputs cannot be used, as a sentence without a full stop.
    """
    if name is None:
        return None, None
    title, found = FORM_TITLES[name], records.found[name]
    if problem := find_unusable(records, name, split.label_map):
        return None, f"the outputs of {title} cannot be used: {problem}"
    if problem := find_output_problem(found, title):
        return None, problem
    shapes = measure_masks(records.truth, found, split.label_map), measure_keypoints(split, found)
    metrics = zip(FORM_METRICS, (variants[name], *shapes), strict=True)
    aps = {metric: each.AP for metric, each in metrics if each is not None and each.explain("AP") is None}
    return OtherForm(name=name, aps=aps, latency=latency.get(name)), None
