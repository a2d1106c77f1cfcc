"""Evaluate models on the shards of a split and write the report; uses files and Beam, but not TFX."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import apache_beam as beam
import tensorflow as tf
from absl import logging

import detloom
from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.evaluator.baseline_comparison import SharedClasses
from detloom.components.evaluator.evaluation_result import (
    EvaluationResult,
    EvaluatorParams,
    MeasuredModel,
    ReportImage,
    assess,
    measure_model,
)
from detloom.components.evaluator.gates import FORM_DIFFERENCE, Latency, ModelCosts
from detloom.components.evaluator.inference import DetectBatch, Matching, ModelFile, parse_record, run_inference
from detloom.components.evaluator.latency import count_model_bytes, measure_latency
from detloom.components.evaluator.mask_and_keypoint_truth import WantedShapes
from detloom.components.evaluator.measurements import Measurements, Split, areas_of
from detloom.components.evaluator.model_forms import (
    choose_baseline_file,
    find_other_form,
    find_tflite_variants,
    measure_other_form,
    measure_variants,
    read_conversion_problem,
)
from detloom.components.evaluator.model_output_checks import check_truth, find_contract_problem, find_unusable
from detloom.components.evaluator.record_table import RecordTable
from detloom.components.evaluator.report.example_images import ImagePlan, draw_image, plan_images
from detloom.components.evaluator.report.output_files import LOCK_FILE, write_report
from detloom.components.evaluator.report.read_training_and_data import read_data_health, read_training_curves
from detloom.components.pusher.manifest import build_manifest, is_of_model
from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.output_lock import hold_output
from detloom.components.storage.storage import open_storage
from detloom.schemas.contracts.detections import MASKS, SIGNATURE_ENCODED, TFLITE_FOLDER
from detloom.schemas.contracts.label_map import (
    LABEL_MAP_FILE,
    LabelMap,
    describe_difference,
    parse_label_map,
    shared_classes,
)
from detloom.schemas.contracts.runtime_names import form_of
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.drawing.draw import decode_image_rgb
from detloom.trainer_module.inference.model_files import (
    find_saved_model,
    read_exported_label_map,
    read_keypoints,
    read_unknown_classes,
)
from detloom.trainer_module.inference.saved_model_runtime import SavedModelRuntime, read_signatures

_CANDIDATE, _BASELINE = "candidate", "baseline"
_WORK_FOLDER = ".records"  # in the output folder, which remote workers can reach


@dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """The models and data of an evaluation.

    Attributes:
        candidate_dir, baseline_dir: SavedModel folders.
        is_blessed_already: there is no baseline because the candidate is the latest blessed model itself.
        examples_uris: roots of the examples artifacts, which may contain a label map.
        tflite_dir: folder of the candidate's TFLite variants; need not exist.
        shard_patterns: paths of the split's TFRecord shards, with or without wildcards.
        dataset_report_uri, model_run_uri: outputs of DatasetValidator and Trainer, shown in the report.
        lineage: origin of model and data as (name, value), shown in the report.
        pipeline: name of the pipeline, shown in the title of the report; may be empty.
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
    pipeline: str = ""


def evaluate(
    inputs: EvaluationInputs, params: EvaluatorParams, make_pipeline: Callable[[], beam.Pipeline], out_dir: str
) -> EvaluationResult:
    """Run both models on the same images, decide, and write the report into `out_dir`.

    Raises:
        FolderBusyError: another evaluation writes into `out_dir`.
        InputError: an empty split, unusable records, a candidate that is not an exported detector or whose classes
            differ from the data's, a slice feature that the data lack. An unusable baseline is not an error: the
            decision says why it was not compared.
        OSError: a file cannot be written, or the lock of `out_dir` was lost; there is no page then.
    """
    with hold_output(out_dir, LOCK_FILE, "evaluation") as check_held:
        return _evaluate(inputs, params, make_pipeline, out_dir, check_held)


def _evaluate(
    inputs: EvaluationInputs,
    params: EvaluatorParams,
    make_pipeline: Callable[[], beam.Pipeline],
    out_dir: str,
    check_held: Callable[[], None],
) -> EvaluationResult:
    settings = params.settings
    digest = _digest_of(inputs.candidate_dir)  # before the model runs, because it could change its files
    label_map = read_exported_label_map(inputs.candidate_dir)
    _check_label_map(label_map, inputs, params.label_map)
    needs = EvaluationRequirements.of_settings(settings, params.gates, params.split)
    needs.check_classes(label_map)
    needs.check_examples(_files_of(inputs.shard_patterns))
    other_form, form_problem = find_other_form(inputs.candidate_dir, settings.runtime)
    baseline_map, baseline_problem = _read_baseline(label_map, inputs)
    files = {_CANDIDATE: ModelFile(inputs.candidate_dir, settings.runtime)}
    if inputs.baseline_dir is not None and baseline_map is not None:
        files[_BASELINE] = choose_baseline_file(inputs.baseline_dir, settings.runtime)
    variants = {**find_tflite_variants(inputs.tflite_dir), **other_form}
    keypoints = read_keypoints(inputs.candidate_dir)
    step = DetectBatch(
        {**files, **variants},
        settings.batch_size,
        needs.feature_keys,
        _shapes_of(inputs.candidate_dir, keypoints, label_map),
        Matching(label_map, areas_of(settings.sizes)),
        ClassLookup(label_map, read_unknown_classes(inputs.candidate_dir)),
    )
    records = run_inference(make_pipeline, inputs.shard_patterns, step, f"{out_dir}/{_WORK_FOLDER}")
    split = Split(ground_truth=records.truth, features=records.features, label_map=label_map, keypoints=keypoints)
    check_truth(records, label_map)
    if baseline_map is not None and (problem := find_unusable(records, _BASELINE, baseline_map)):
        baseline_problem = problem
        del files[_BASELINE]
    if problem := find_unusable(records, _CANDIDATE, label_map):
        raise InputError(f"{inputs.candidate_dir}: {problem}; the model does not fit these data.")
    logging.info("DetectionEvaluator: computing metrics.")
    timed = {name: file for name, file in {**files, **other_form}.items() if name not in records.failures}
    latency = _measure_latency(timed, inputs, params)
    found, shared = _measure_all(records, split, files, latency, params, baseline_map)
    candidate = found[_CANDIDATE]
    coco_by_variant = measure_variants(records, variants, split)
    other_name = next(iter(other_form), None)
    measured_form, output_problem = measure_other_form(records, other_name, split, coco_by_variant, latency)
    evaluation = assess(
        split,
        records.source_ids,
        candidate,
        found.get(_BASELINE),
        params.gates,
        shared=shared,
        baseline_problem=baseline_problem,
        is_blessed_already=inputs.is_blessed_already,
        contract_problem=find_contract_problem(inputs.candidate_dir, candidate.detections)
        or form_problem
        or output_problem
        or read_conversion_problem(inputs.tflite_dir),
        variants=coco_by_variant,
        other_form=measured_form,
    )
    level = logging.INFO if evaluation.decision.blessed else logging.WARNING
    logging.log(level, "DetectionEvaluator: %s", evaluation.decision.sentence)
    gates = evaluation.decision.gates
    is_same = any(gate.name.startswith(FORM_DIFFERENCE) and gate.verdict == "passed" for gate in gates)
    forms = (form_of(settings.runtime), *(other_form if is_same else ()))
    evaluation = replace(
        evaluation,
        decision=replace(evaluation.decision, model_digest=digest, forms=forms),
        pipeline=inputs.pipeline,
        lines=_describe_run(inputs, params, files, candidate.measurements),
        data_health=read_data_health(inputs.dataset_report_uri) if inputs.dataset_report_uri else (),
        training=read_training_curves(inputs.model_run_uri) if inputs.model_run_uri else {},
    )
    plans = plan_images(evaluation, settings.num_images)
    images = _draw_images(plans, evaluation, inputs.shard_patterns)
    check_held()
    write_report(out_dir, evaluation, images)
    return evaluation


def _digest_of(model_dir: str) -> str:
    """Return `Manifest.digest` of a model; another text if it contains links, so that it cannot be pushed."""
    try:
        with local_folder(model_dir, is_of_model) as folder:
            return build_manifest(folder).digest
    except InputError:
        return "not measured"


def _shapes_of(model_dir: str, keypoints: Keypoints | None, label_map: LabelMap) -> WantedShapes:
    """Return the shapes of the ground truth that the model's outputs are compared with, beyond boxes."""
    signature = read_signatures(model_dir).get(SIGNATURE_ENCODED)
    has_masks = signature is not None and MASKS in signature.outputs
    if keypoints is None:
        return WantedShapes(masks=has_masks)
    if keypoints.class_name not in label_map.names:
        raise InputError(f"{model_dir}: its keypoints are those of {keypoints.class_name!r}, which it does not detect.")
    class_id = label_map.class_ids[label_map.names.index(keypoints.class_name)]
    return WantedShapes(masks=has_masks, keypoint_class_id=class_id, num_keypoints=len(keypoints.names))


def _measure_latency(
    files: Mapping[str, ModelFile], inputs: EvaluationInputs, params: EvaluatorParams
) -> dict[str, Latency]:
    first = islice(_read_split(inputs.shard_patterns), params.gates.latency.num_images)
    return measure_latency(files, [ExampleFeatures(serialized).image_bytes for serialized in first])


def _measure_all(
    records: RecordTable,
    split: Split,
    files: Mapping[str, ModelFile],
    latency: Mapping[str, Latency],
    params: EvaluatorParams,
    baseline_map: LabelMap | None,
) -> tuple[dict[str, MeasuredModel], SharedClasses | None]:
    """Measure each model; a baseline with other classes on those that both have."""
    result, shared = {}, None
    for name, file in files.items():
        costs = ModelCosts(latency=latency.get(name), model_bytes=count_model_bytes(file.path))
        matches = records.take_matches(name)
        if name == _BASELINE and baseline_map is not None and baseline_map != split.label_map:
            shared, result[name] = _measure_shared(records, split, baseline_map, params, costs)
        else:
            result[name] = measure_model(split, records.found[name], params.settings, costs, matches=matches)
    return result, shared


def _measure_shared(
    records: RecordTable,
    split: Split,
    baseline_map: LabelMap,
    params: EvaluatorParams,
    costs: ModelCosts,
) -> tuple[SharedClasses, MeasuredModel]:
    """Measure both models on the classes that both have, with the candidate's ids."""
    label_map = shared_classes(split.label_map, baseline_map)
    assert label_map is not None
    same = {class_id: class_id for class_id in label_map.class_ids}
    ids_by_name = {name: class_id for class_id, name in label_map.names_by_id}
    of_baseline = {class_id: ids_by_name[name] for class_id, name in baseline_map.names_by_id if name in ids_by_name}
    keypoints = split.keypoints if split.keypoints and split.keypoints.class_name in ids_by_name else None
    truth = records.truth.of_classes(same)
    split = replace(split, ground_truth=truth, label_map=label_map, keypoints=keypoints)
    candidate, baseline = (
        measure_model(split, records.found[name].of_classes(ids), params.settings, costs)
        for name, ids in ((_CANDIDATE, same), (_BASELINE, of_baseline))
    )
    return SharedClasses(label_map=label_map, candidate=candidate.measurements), baseline


def _check_label_map(label_map: LabelMap, inputs: EvaluationInputs, given: str) -> None:
    """Compare the model's label map with those of the data, if any; unknown class ids are refused later."""
    texts = {"the parameter label_map": given} if given else {}
    for uri in inputs.examples_uris:
        content = open_storage(uri).read(LABEL_MAP_FILE)
        if content is not None:
            texts[f"{uri}/{LABEL_MAP_FILE}"] = content.decode("utf-8", "replace")
    for where, text in texts.items():
        of_data = parse_label_map(text, where)
        if of_data != label_map:
            raise InputError(
                f"{inputs.candidate_dir}: the model's classes {list(label_map.names_by_id)} differ from the data's, "
                f"{list(of_data.names_by_id)} in {where}; train the model on these data."
            )


def _read_baseline(label_map: LabelMap, inputs: EvaluationInputs) -> tuple[LabelMap | None, str | None]:
    """Return the baseline's label map, or None and why an existing baseline cannot be compared."""
    if inputs.baseline_dir is None:
        return None, None
    try:
        SavedModelRuntime(inputs.baseline_dir)  # an error in a worker would end the run
        of_baseline = read_exported_label_map(inputs.baseline_dir)
    except InputError as error:
        return None, str(error).rstrip(".")
    if shared_classes(label_map, of_baseline) is None:
        return None, f"it has no class in common ({describe_difference(of_baseline, label_map)})"
    return of_baseline, None


def _describe_run(
    inputs: EvaluationInputs, params: EvaluatorParams, files: Mapping[str, ModelFile], found: Measurements
) -> list[tuple[str, str]]:
    runtimes = {name: file.runtime for name, file in files.items()}
    return [
        ("Split", f"{params.split}: {found.coco.num_images} images, {found.coco.num_boxes} boxes"),
        ("Candidate", inputs.candidate_dir),
        ("Baseline", inputs.baseline_dir or "none"),
        ("Runtime", ", ".join(f"{name}: {runtime}" for name, runtime in runtimes.items())),
        *inputs.lineage,
        ("Wanted precision", f"{params.settings.wanted_precision:.0%}"),
        ("Versions", f"detloom {detloom.__version__}, TensorFlow {tf.__version__}"),
        ("Data", ", ".join(pattern.removesuffix("/*") for pattern in inputs.shard_patterns)),
    ]


def _draw_images(
    plans: Sequence[ImagePlan], evaluation: EvaluationResult, shard_patterns: Sequence[str]
) -> list[ReportImage]:
    """Draw images in the order of `plans`; hold only one image in memory at a time."""
    plans_by_name: dict[str, list[int]] = {}
    for number, plan in enumerate(plans):
        plans_by_name.setdefault(evaluation.file_names[plan.image_index], []).append(number)
    drawn: dict[int, ReportImage] = {}
    for serialized in _read_split(shard_patterns) if plans else ():
        name = parse_record(serialized).source_id
        numbers = plans_by_name.pop(name, [])
        try:
            for number in numbers:
                image_rgb = decode_image_rgb(ExampleFeatures(serialized).image_bytes, name)
                drawn[number] = draw_image(plans[number], image_rgb, name, evaluation.split.label_map)
        except InputError as error:
            logging.warning("%s The report does not show this image.", error)
        if not plans_by_name:
            break
    return [drawn[number] for number in sorted(drawn)]


def _read_split(shard_patterns: Sequence[str]) -> Iterator[bytes]:
    for path in _files_of(shard_patterns):
        compression = "GZIP" if path.endswith(".gz") else ""
        yield from tf.data.TFRecordDataset(path, compression).as_numpy_iterator()


def _files_of(shard_patterns: Sequence[str]) -> Iterator[str]:
    for pattern in shard_patterns:
        yield from sorted(tf.io.gfile.glob(pattern))


def evaluate_model(
    model: Path, files: Sequence[str], params: EvaluatorParams, out_dir: Path, baseline: Path | None
) -> EvaluationResult:
    """Evaluate an exported model on shards, and compare it with the baseline.

    Raises:
        InputError: a model is missing, `out_dir` is inside of it, or it does not fit the data.
    """
    model, baseline = find_saved_model(model), find_saved_model(baseline) if baseline else None
    if out_dir.resolve().is_relative_to(model.resolve()):
        raise InputError(
            f"{out_dir}: is inside the model's folder, which is served unchanged; set --out to another folder."
        )
    out_dir.mkdir(parents=True, exist_ok=True)
    tflite_dir = model.parent / TFLITE_FOLDER  # in a Model artifact
    inputs = EvaluationInputs(
        candidate_dir=str(model),
        baseline_dir=str(baseline) if baseline else None,
        examples_uris=sorted({str(Path(path).parent.parent) for path in files}),
        shard_patterns=_as_patterns(files),
        tflite_dir=str(tflite_dir) if tflite_dir.is_dir() else None,
    )
    return evaluate(inputs, params, lambda: beam.Pipeline(runner="DirectRunner"), str(out_dir))


def _as_patterns(files: Sequence[str]) -> list[str]:
    """Return one pattern per folder if `files` is all they contain: every pattern becomes a Beam step."""
    folders = {str(Path(file).parent) for file in files}
    whole = sorted(str(path) for folder in folders for path in Path(folder).iterdir() if path.is_file())
    return [f"{folder}/*" for folder in sorted(folders)] if whole == sorted(files) else list(files)
