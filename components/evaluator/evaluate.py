"""One evaluation from models and shards to a report; knows files and Beam, not TFX."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import apache_beam as beam
import tensorflow as tf
from absl import logging

import detloom
from detloom.components.evaluator.assess import MeasuredModel, assess, measure_model
from detloom.components.evaluator.checks import check_gates, check_truth, find_unusable, say_difference
from detloom.components.evaluator.contract import find_contract_problem
from detloom.components.evaluator.evaluation import Evaluation, ModelCosts, Picture
from detloom.components.evaluator.inference import ImageRecord, parse_record, run_inference
from detloom.components.evaluator.latency import count_model_bytes, measure_latency
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.pictures import PicturePlan, draw_picture, plan_pictures
from detloom.components.evaluator.report import write_report
from detloom.components.evaluator.run_history import read_data_health, read_training_curves
from detloom.components.evaluator.slices import check_features
from detloom.schemas import example_keys as keys
from detloom.schemas.detections import SIGNATURE_ENCODED, SIGNATURE_EXAMPLES, TFLITE_SUFFIX
from detloom.schemas.errors import InputError
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, parse_label_map
from detloom.trainer_module.coco_metrics import CocoMetrics, ImageDetections, compute_coco_metrics
from detloom.trainer_module.draw import decode_image_rgb
from detloom.trainer_module.predict import LoadedSignature, check_signature, read_exported_label_map
from detloom.trainer_module.tflite_model import TfliteDetector

_CANDIDATE, _BASELINE, _VARIANT = "candidate", "baseline", "tflite/"
_NUM_LOOKED_AT = 100  # examples, for features that slices go by
_WORK_FOLDER = ".records"  # inside the output folder, so that remote workers reach it


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """What is evaluated on what.

    Attributes:
        candidate_dir, baseline_dir: SavedModel folders.
        is_blessed_already: there is no baseline because the candidate is the latest blessed model itself.
        examples_uris: roots of the examples artifacts; a label map may lie there.
        tflite_dir: folder of the candidate's TFLite variants, which need not exist.
        shard_patterns: paths of the split's TFRecord shards, with or without wildcards.
        dataset_report_uri, model_run_uri: what DatasetValidator and the Trainer left, to show it.
        lineage: where model and data come from as (name, value), to show it.
    """

    candidate_dir: str
    baseline_dir: str | None
    examples_uris: Sequence[str]
    shard_patterns: Sequence[str]
    tflite_dir: str | None = None
    dataset_report_uri: str | None = None
    model_run_uri: str | None = None
    is_blessed_already: bool = False
    lineage: Sequence[tuple[str, str]] = ()


def evaluate(
    inputs: EvaluationInputs, params: EvaluatorParams, make_pipeline: Callable[[], beam.Pipeline], out_dir: str
) -> Evaluation:
    """Run both models over the same images, decide, and write the report into `out_dir`.

    Raises:
        InputError: an empty split, unusable records, a candidate that is no exported detector or has other classes than
            the data, slices that the data do not have. A baseline that cannot be used is no error: the decision says
            why it was left out.
    """
    settings = params.settings
    label_map = read_exported_label_map(inputs.candidate_dir)
    _check_label_map(label_map, inputs)
    check_gates(params.gates, label_map)
    _check_slices(inputs, settings)
    baseline_problem = _find_baseline_problem(label_map, inputs)
    paths = {_CANDIDATE: inputs.candidate_dir}
    if inputs.baseline_dir is not None and baseline_problem is None:
        paths[_BASELINE] = inputs.baseline_dir
    variants = _find_variants(inputs.tflite_dir)
    records = run_inference(
        make_pipeline,
        inputs.shard_patterns,
        {**paths, **variants},
        settings.batch_size,
        f"{out_dir}/{_WORK_FOLDER}",
        feature_keys=_feature_keys(settings),
    )
    split = Split(
        ground_truth=[record.ground_truth(image_id) for image_id, record in enumerate(records, start=1)],
        features=[record.features for record in records],
        label_map=label_map,
    )
    check_truth(records, label_map)
    if _BASELINE in paths and (problem := find_unusable(records, _BASELINE, label_map)):
        baseline_problem = problem
        del paths[_BASELINE]
    if problem := find_unusable(records, _CANDIDATE, label_map):
        raise InputError(f"{inputs.candidate_dir}: {problem}; the model does not fit these data.")
    logging.info("DetectionEvaluator: measuring.")
    found = _measure_all(records, split, paths, inputs, params)
    candidate, baseline = found[_CANDIDATE], found.get(_BASELINE)
    evaluation = assess(
        split,
        [record.source_id for record in records],
        candidate,
        baseline,
        params.gates,
        baseline_problem=baseline_problem,
        is_blessed_already=inputs.is_blessed_already,
        contract_problem=find_contract_problem(inputs.candidate_dir, candidate.detections),
        variants=_measure_variants(records, variants, split),
    )
    logging.info("DetectionEvaluator: %s", evaluation.decision.sentence)
    evaluation = replace(
        evaluation,
        lines=_describe_run(inputs, params, candidate.measurements),
        data_health=read_data_health(inputs.dataset_report_uri) if inputs.dataset_report_uri else (),
        training=read_training_curves(inputs.model_run_uri) if inputs.model_run_uri else {},
    )
    plans = plan_pictures(evaluation, settings.num_pictures, baseline=baseline.detections if baseline else ())
    write_report(out_dir, evaluation, _draw_pictures(plans, evaluation, inputs.shard_patterns))
    return evaluation


def _measure_all(
    records: Sequence[ImageRecord],
    split: Split,
    paths_by_name: Mapping[str, str],
    inputs: EvaluationInputs,
    params: EvaluatorParams,
) -> dict[str, MeasuredModel]:
    images = list(_first_images(inputs.shard_patterns, params.gates.latency.num_images))
    # One that cannot be called so breaks its contract, which the gates say.
    timed = {name: path for name, path in paths_by_name.items() if _has_signature(path, SIGNATURE_ENCODED)}
    latency = measure_latency(timed, images)
    result = {}
    for name, path in paths_by_name.items():
        costs = ModelCosts(latency=latency.get(name), model_bytes=count_model_bytes(path))
        result[name] = measure_model(split, _detections(records, name), params.settings, costs)
    return result


def _measure_variants(
    records: Sequence[ImageRecord], variants: Mapping[str, str], split: Split
) -> dict[str, CocoMetrics]:
    """Of those that can be measured; the gate on int8 fails without its number."""
    result = {}
    for name, path in variants.items():
        if problem := find_unusable(records, name, split.label_map):
            logging.warning("%s: is left out: %s.", path, problem)
            continue
        result[name.removeprefix(_VARIANT)] = compute_coco_metrics(
            split.ground_truth, _detections(records, name), split.label_map
        )
    return result


def _detections(records: Sequence[ImageRecord], name: str) -> list[ImageDetections]:
    return [record.detections(image_id, name) for image_id, record in enumerate(records, start=1)]


def _has_signature(model_dir: str, signature: str) -> bool:
    try:
        check_signature(model_dir, signature)
    except InputError:
        return False
    return True


def _feature_keys(settings: Evaluator) -> list[str]:
    return [each.feature for each in settings.image_slices if each.feature]


def _check_slices(inputs: EvaluationInputs, settings: Evaluator) -> None:
    """Before hours of inference, and not after them."""
    if keys := _feature_keys(settings):
        first = islice(_read_split(inputs.shard_patterns), _NUM_LOOKED_AT)
        features = [parse_record(serialized, keys).features for serialized in first]
        check_features(features, settings.image_slices, ", ".join(inputs.shard_patterns))


def _find_variants(folder: str | None) -> dict[str, str]:
    """Paths of TFLite models that can be loaded, by a name that no other model has."""
    variants = {}
    for path in sorted(tf.io.gfile.glob(f"{folder}/*{TFLITE_SUFFIX}")) if folder else []:
        try:
            TfliteDetector(path)  # here, since from a worker it would end the run
        except InputError as error:
            logging.warning("%s It is left out.", error)
            continue
        variants[f"{_VARIANT}{os.path.basename(path).removesuffix(TFLITE_SUFFIX)}"] = path
    return variants


def _check_label_map(label_map: LabelMap, inputs: EvaluationInputs) -> None:
    for uri in inputs.examples_uris:
        path = f"{uri}/{LABEL_MAP_FILE}"
        if not tf.io.gfile.exists(path):
            continue  # TFRecords that did not come from DetectionExampleGen; unknown class ids are still refused
        with tf.io.gfile.GFile(path, "r") as file:
            of_data = parse_label_map(file.read(), where=path)
        if of_data != label_map:
            raise InputError(
                f"{inputs.candidate_dir}: the model's classes {list(label_map.names_by_id)} are not those of the data, "
                f"{list(of_data.names_by_id)} in {path}; train it on these data."
            )


def _find_baseline_problem(label_map: LabelMap, inputs: EvaluationInputs) -> str | None:
    if inputs.baseline_dir is None:
        return None
    try:
        LoadedSignature(inputs.baseline_dir, SIGNATURE_EXAMPLES)  # here, since from a worker it would end the run
        of_baseline = read_exported_label_map(inputs.baseline_dir)
    except InputError as error:
        return str(error).rstrip(".")
    return say_difference(of_baseline, label_map)


def _describe_run(inputs: EvaluationInputs, params: EvaluatorParams, found: Measurements) -> list[tuple[str, str]]:
    return [
        ("Split", f"{params.split}: {found.coco.num_images} images, {found.coco.num_boxes} boxes"),
        ("Candidate", inputs.candidate_dir),
        ("Baseline", inputs.baseline_dir or "none"),
        *inputs.lineage,
        ("Wanted precision", f"{params.settings.wanted_precision:.0%}"),
        ("Versions", f"detloom {detloom.__version__}, TensorFlow {tf.__version__}"),
        ("Data", ", ".join(pattern.removesuffix("/*") for pattern in inputs.shard_patterns)),
    ]


def _draw_pictures(
    plans: Sequence[PicturePlan], evaluation: Evaluation, shard_patterns: Sequence[str]
) -> list[Picture]:
    """In the order of `plans`; of images only one is held at a time."""
    plans_by_name: dict[str, list[int]] = {}
    for number, plan in enumerate(plans):
        plans_by_name.setdefault(evaluation.file_names[plan.image_index], []).append(number)
    drawn: dict[int, Picture] = {}
    for serialized in _read_split(shard_patterns) if plans else ():
        name = parse_record(serialized).source_id
        numbers = plans_by_name.pop(name, [])
        try:
            for number in numbers:
                image_rgb = decode_image_rgb(_image_of(serialized), name)
                drawn[number] = draw_picture(plans[number], image_rgb, name, evaluation.split.label_map)
        except InputError as error:
            logging.warning("%s It is not drawn.", error)
        if not plans_by_name:
            break
    return [drawn[number] for number in sorted(drawn)]


def _first_images(shard_patterns: Sequence[str], count: int) -> Iterator[bytes]:
    return (_image_of(serialized) for serialized in islice(_read_split(shard_patterns), count))


def _image_of(serialized: bytes) -> bytes:
    image: bytes = tf.train.Example.FromString(serialized).features.feature[keys.IMAGE_ENCODED].bytes_list.value[0]
    return image


def _read_split(shard_patterns: Sequence[str]) -> Iterator[bytes]:
    for pattern in shard_patterns:
        for path in sorted(tf.io.gfile.glob(pattern)):
            compression = "GZIP" if path.endswith(".gz") else ""
            yield from tf.data.TFRecordDataset(path, compression).as_numpy_iterator()
