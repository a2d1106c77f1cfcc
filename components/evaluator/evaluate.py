"""One evaluation from models and shards to a report; knows files and Beam, not TFX."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import apache_beam as beam
import tensorflow as tf
from absl import logging

from detloom.components.evaluator.assess import MeasuredModel, assess, measure_model
from detloom.components.evaluator.contract import find_contract_problem
from detloom.components.evaluator.evaluation import Evaluation, ModelCosts, Picture
from detloom.components.evaluator.inference import ImageRecord, parse_record, run_inference
from detloom.components.evaluator.latency import count_model_bytes, measure_latency
from detloom.components.evaluator.measurements import Measurements, Split
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.pictures import PicturePlan, draw_picture, plan_pictures
from detloom.components.evaluator.report import write_report
from detloom.components.evaluator.run_history import read_data_health, read_training_curves
from detloom.schemas import example_keys as keys
from detloom.schemas.detections import SIGNATURE_EXAMPLES, TFLITE_SUFFIX
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, parse_label_map
from detloom.trainer_module.coco_metrics import ImageDetections, compute_coco_metrics
from detloom.trainer_module.draw import decode_image_rgb
from detloom.trainer_module.predict import check_signature, read_exported_label_map

_CANDIDATE, _BASELINE, _VARIANT = "candidate", "baseline", "tflite/"
_WORK_FOLDER = ".records"  # inside the output folder, so that remote workers reach it


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """What is evaluated on what.

    Attributes:
        candidate_dir, baseline_dir: SavedModel folders.
        examples_uris: roots of the examples artifacts; a label map may lie there.
        tflite_dir: folder of the candidate's TFLite variants, which need not exist.
        shard_patterns: paths of the split's TFRecord shards, with or without wildcards.
        dataset_report_uri, model_run_uri: what DatasetValidator and the Trainer left, to show it.
    """

    candidate_dir: str
    baseline_dir: str | None
    examples_uris: Sequence[str]
    shard_patterns: Sequence[str]
    tflite_dir: str | None = None
    dataset_report_uri: str | None = None
    model_run_uri: str | None = None


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
    baseline_problem = _find_baseline_problem(label_map, inputs)
    paths_by_name = {_CANDIDATE: inputs.candidate_dir}
    if inputs.baseline_dir is not None and baseline_problem is None:
        paths_by_name[_BASELINE] = inputs.baseline_dir
    variants = _find_variants(inputs.tflite_dir)
    feature_keys = [each.feature for each in settings.image_slices if each.feature]
    records = run_inference(
        make_pipeline,
        inputs.shard_patterns,
        {**paths_by_name, **variants},
        settings.batch_size,
        f"{out_dir}/{_WORK_FOLDER}",
        feature_keys=feature_keys,
    )
    split = Split(
        ground_truth=[record.ground_truth(image_id) for image_id, record in enumerate(records, start=1)],
        features=[record.features for record in records],
        label_map=label_map,
    )
    found = _measure_all(records, split, paths_by_name, inputs, params)
    candidate, baseline = found[_CANDIDATE], found.get(_BASELINE)
    evaluation = assess(
        split,
        [record.source_id for record in records],
        candidate,
        baseline,
        params.gates,
        baseline_problem=baseline_problem,
        contract_problem=find_contract_problem(inputs.candidate_dir, candidate.detections),
        variants={
            name.removeprefix(_VARIANT): compute_coco_metrics(split.ground_truth, _detections(records, name), label_map)
            for name in variants
        },
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
    latency = measure_latency(
        paths_by_name, list(_first_images(inputs.shard_patterns, params.gates.latency.num_images))
    )
    result = {}
    for name, path in paths_by_name.items():
        costs = ModelCosts(latency=latency.get(name), model_bytes=count_model_bytes(path))
        result[name] = measure_model(split, _detections(records, name), params.settings, costs)
    return result


def _detections(records: Sequence[ImageRecord], name: str) -> list[ImageDetections]:
    return [record.detections(image_id, name) for image_id, record in enumerate(records, start=1)]


def _find_variants(folder: str | None) -> dict[str, str]:
    """Paths of TFLite models by a name that no other model has."""
    paths = sorted(tf.io.gfile.glob(f"{folder}/*{TFLITE_SUFFIX}")) if folder else []
    return {f"{_VARIANT}{os.path.basename(path).removesuffix(TFLITE_SUFFIX)}": path for path in paths}


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
        check_signature(inputs.baseline_dir, SIGNATURE_EXAMPLES)
        of_baseline = read_exported_label_map(inputs.baseline_dir)
    except InputError as error:
        return str(error).rstrip(".")
    if of_baseline == label_map:
        return None
    return f"it has other classes ({', '.join(of_baseline.names)}; the candidate: {', '.join(label_map.names)})"


def _describe_run(inputs: EvaluationInputs, params: EvaluatorParams, found: Measurements) -> list[tuple[str, str]]:
    return [
        ("Split", f"{params.split}: {found.coco.num_images} images, {found.coco.num_boxes} boxes"),
        ("Candidate", inputs.candidate_dir),
        ("Baseline", inputs.baseline_dir or "none"),
        ("Wanted precision", f"{params.settings.wanted_precision:.0%}"),
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
    for serialized in _read_split(shard_patterns):
        if len(drawn) == len(plans):
            break
        name = parse_record(serialized).source_id
        numbers = plans_by_name.get(name, [])
        if numbers:
            image_rgb = decode_image_rgb(_image_of(serialized), name)
            for number in numbers:
                drawn[number] = draw_picture(plans[number], image_rgb, name, evaluation.split.label_map)
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
