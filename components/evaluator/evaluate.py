"""One evaluation from models and shards to a report; knows files and Beam, not TFX."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import apache_beam as beam
import tensorflow as tf
from absl import logging

from detloom.components.evaluator.decision import Decision, decide
from detloom.components.evaluator.inference import ImageRecord, parse_record, run_inference
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.report import Evaluation, Picture, draw_picture, write_report
from detloom.schemas import example_keys as keys
from detloom.schemas.detections import SIGNATURE_EXAMPLES
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, LabelMap, parse_label_map
from detloom.trainer_module.coco_metrics import CocoMetrics, compute_coco_metrics
from detloom.trainer_module.draw import decode_image_rgb
from detloom.trainer_module.predict import check_signature, read_exported_label_map

_CANDIDATE, _BASELINE = "candidate", "baseline"
_WORK_FOLDER = ".records"  # inside the output folder, so that remote workers reach it


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """What is evaluated on what.

    Attributes:
        candidate_dir, baseline_dir: SavedModel folders.
        examples_uris: roots of the examples artifacts; a label map may lie there.
        split_uris: folders of the split's TFRecord shards.
    """

    candidate_dir: str
    baseline_dir: str | None
    examples_uris: Sequence[str]
    split_uris: Sequence[str]


def evaluate(
    inputs: EvaluationInputs, params: EvaluatorParams, make_pipeline: Callable[[], beam.Pipeline], out_dir: str
) -> Decision:
    """Run both models over the same images, decide, and write the report into `out_dir`.

    Raises:
        InputError: an empty split, unusable records, a candidate that is no exported detector or has other classes than
            the data. A baseline that cannot be used is no error: the decision says why it was left out.
    """
    label_map = read_exported_label_map(inputs.candidate_dir)
    _check_label_map(label_map, inputs)
    baseline_problem = _find_baseline_problem(label_map, inputs)
    paths_by_name = {_CANDIDATE: inputs.candidate_dir}
    if inputs.baseline_dir is not None and baseline_problem is None:
        paths_by_name[_BASELINE] = inputs.baseline_dir
    records = run_inference(
        make_pipeline, inputs.split_uris, paths_by_name, params.batch_size, f"{out_dir}/{_WORK_FOLDER}"
    )
    metrics = {name: _compute_metrics(records, name, label_map) for name in paths_by_name}
    decision = decide(metrics[_CANDIDATE], metrics.get(_BASELINE), params.gates, baseline_problem=baseline_problem)
    logging.info("DetectionEvaluator: %s", decision.sentence)
    evaluation = Evaluation(
        label_map=label_map,
        ground_truth=[record.ground_truth(image_id) for image_id, record in enumerate(records, start=1)],
        detections=[record.detections(image_id, _CANDIDATE) for image_id, record in enumerate(records, start=1)],
        file_names={image_id: record.source_id for image_id, record in enumerate(records, start=1)},
        candidate=metrics[_CANDIDATE],
        baseline=metrics.get(_BASELINE),
        decision=decision,
        lines=_describe_run(inputs, params, metrics[_CANDIDATE]),
    )
    pictures = _draw_pictures(evaluation, inputs.split_uris, params.num_pictures)
    write_report(out_dir, evaluation, pictures)
    return decision


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


def _compute_metrics(records: Sequence[ImageRecord], model_name: str, label_map: LabelMap) -> CocoMetrics:
    return compute_coco_metrics(
        [record.ground_truth(image_id) for image_id, record in enumerate(records, start=1)],
        [record.detections(image_id, model_name) for image_id, record in enumerate(records, start=1)],
        label_map,
    )


def _describe_run(inputs: EvaluationInputs, params: EvaluatorParams, metrics: CocoMetrics) -> list[tuple[str, str]]:
    return [
        ("Split", f"{params.split}: {metrics.num_images} images, {metrics.num_boxes} boxes"),
        ("Candidate", inputs.candidate_dir),
        ("Baseline", inputs.baseline_dir or "none"),
        ("Data", ", ".join(inputs.split_uris)),
    ]


def _draw_pictures(evaluation: Evaluation, split_uris: Sequence[str], num_pictures: int) -> list[Picture]:
    """The first images of the split; only their records are read again."""
    id_by_name = {name: image_id for image_id, name in evaluation.file_names.items()}
    truth_by_id = {image.image_id: image for image in evaluation.ground_truth}
    found_by_id = {image.image_id: image for image in evaluation.detections}
    pictures = []
    for serialized in islice(_read_split(split_uris), num_pictures):
        name = parse_record(serialized).source_id
        image_bytes = tf.train.Example.FromString(serialized).features.feature[keys.IMAGE_ENCODED].bytes_list.value[0]
        image_id = id_by_name[name]
        image_rgb = decode_image_rgb(image_bytes, name)
        pictures.append(
            draw_picture(image_rgb, name, truth_by_id[image_id], found_by_id[image_id], evaluation.label_map)
        )
    return pictures


def _read_split(split_uris: Sequence[str]) -> Iterator[bytes]:
    for uri in split_uris:
        for path in sorted(tf.io.gfile.glob(f"{uri}/*")):
            compression = "GZIP" if path.endswith(".gz") else ""
            yield from tf.data.TFRecordDataset(path, compression).as_numpy_iterator()
