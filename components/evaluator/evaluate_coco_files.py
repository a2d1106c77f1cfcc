"""Evaluate COCO files without a model or Beam; show example images if they are available.

Metrics of boxes, masks and keypoints equal those of pycocotools to the last digit, except that a detection with a mask
and no box counts as small, medium or large by the area around its mask when boxes are measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from absl import logging

from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.evaluator.coco_files import (
    CocoSplit,
    read_coco_detections,
    read_coco_ground_truth,
    read_keypoints,
)
from detloom.components.evaluator.evaluation_result import (
    EvaluationResult,
    EvaluatorParams,
    MeasuredModel,
    ReportImage,
    assess,
    measure_model,
)
from detloom.components.evaluator.measurements import areas_of
from detloom.components.evaluator.report.example_images import ImagePlan, draw_image, plan_images
from detloom.components.evaluator.report.output_files import LOCK_FILE, write_report
from detloom.components.example_gen.coco_masks import encode_mask
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.trainer_module.drawing.draw import decode_image_rgb
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, summarize_coco_datasets
from detloom.trainer_module.evaluation.keypoint_metrics import KeypointMetrics, summarize_keypoints

_NUM_KEYPOINTS = 17  # COCO's keypoints of persons, if no category names others


@dataclass(frozen=True, kw_only=True)
class FileInputs:
    """COCO files: annotations and the results of one or two models; without `images_dir` no images are shown."""

    ground_truth: Path
    detections: Path
    baseline_detections: Path | None = None
    images_dir: Path | None = None


def evaluate_files(inputs: FileInputs, params: EvaluatorParams, out_dir: Path) -> EvaluationResult:
    """Measure, compare, decide, and write the report into `out_dir`. COCO metrics equal those of pycocotools.

    Raises:
        FolderBusyError: another evaluation writes into `out_dir`.
        InputError: invalid COCO files, or a slice feature that the ground truth lacks.
    """
    truth = read_coco_ground_truth(inputs.ground_truth)
    EvaluationRequirements.of_settings(params.settings, params.gates, str(inputs.ground_truth)).check_features(
        truth.split.features
    )
    paths = _find_images(truth.file_names, inputs.images_dir)
    candidate = _measure(inputs.detections, truth, params.settings)
    before = inputs.baseline_detections
    baseline = _measure(before, truth, params.settings) if before is not None else None
    evaluation = assess(truth.split, truth.file_names, candidate, baseline, params.gates)
    logging.info("%s", evaluation.decision.sentence)
    coco = candidate.measurements.coco
    lines = [
        ("Ground truth", f"{inputs.ground_truth}: {coco.num_images} images, {coco.num_boxes} boxes"),
        ("Candidate", str(inputs.detections)),
        ("Baseline", str(before or "none")),
    ]
    evaluation = replace(evaluation, lines=lines)
    images = _draw(plan_images(evaluation, params.settings.num_images), evaluation, paths)
    with hold_output(str(out_dir), LOCK_FILE, "evaluation"):
        write_report(str(out_dir), evaluation, images)
    return evaluation


def _measure(path: Path, truth: CocoSplit, settings: EvaluatorSettings) -> MeasuredModel:
    """Measure boxes as for any model, and masks and keypoints if both files have them."""
    found = read_coco_detections(path, truth)
    measured = measure_model(truth.split, found.detections, settings)
    shapes: dict[str, Any] = {}
    if _have_both("segmentation", truth, found.results):
        sizes = [(each.name, *area) for each, area in zip(settings.sizes, areas_of(settings.sizes), strict=True)]
        shapes["masks"] = measure_file_masks(truth, found.results, sizes)
    if _have_both("keypoints", truth, found.results):
        shapes["keypoints"] = measure_file_keypoints(truth, found.results)
    return replace(measured, measurements=replace(measured.measurements, **shapes))


def _have_both(key: str, truth: CocoSplit, results: Sequence[Mapping[str, Any]]) -> bool:
    return bool(results) and key in results[0] and any(key in row for row in truth.dataset["annotations"])


def measure_file_masks(
    truth: CocoSplit, results: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[str, float, float]] = ()
) -> CocoMetrics:
    """Compute the twelve COCO metrics of the masks of `CocoDetections.results`; see `compute_coco_metrics`.

    Raises:
        InputError: an annotation without a valid mask.
    """
    dataset = _complete(truth, _with_mask)
    return summarize_coco_datasets(dataset, results, truth.split.label_map, iou_type="segm", sizes=sizes)


def measure_file_keypoints(truth: CocoSplit, results: Sequence[Mapping[str, Any]]) -> KeypointMetrics:
    """Compute the ten COCO keypoint metrics of `CocoDetections.results`.

    A category of the annotation file names its keypoints; otherwise they are COCO's 17 of a person. An annotation
    without `keypoints` has no labelled keypoints: detections on it are ignored, as on a crowd. A missing
    `num_keypoints` is the number of keypoints with a visibility above 0.

    Raises:
        InputError: another number of keypoints.
    """
    keypoints = truth.split.keypoints
    num_points = _NUM_KEYPOINTS if keypoints is None else len(keypoints.names)
    for index, row in enumerate(results):
        if len(row["keypoints"]) != 3 * num_points:
            raise InputError(f"results[{index}]: {_wrong_keypoints(row['keypoints'], num_points)}.")
    dataset = _complete(truth, lambda row, _: _with_keypoints(row, num_points))
    return summarize_keypoints(dataset, results, keypoints.sigmas if keypoints else None)


def _find_images(file_names: Sequence[str], images_dir: Path | None) -> dict[str, Path]:
    """Return the paths of the images by their names in the file; empty without a folder.

    Raises:
        InputError: a name points outside the folder.
    """
    if images_dir is None:
        return {}
    root = images_dir.resolve()
    paths = {name: (root / name).resolve() for name in file_names}
    for name, path in paths.items():
        if not path.is_relative_to(root):
            raise InputError(f"{name}: points outside of {images_dir}, allowed: file names below it.")
    return paths


def _draw(plans: Sequence[ImagePlan], evaluation: EvaluationResult, paths: Mapping[str, Path]) -> list[ReportImage]:
    """Draw the images that exist and can be read."""
    images = []
    for plan in plans:
        name = evaluation.file_names[plan.image_index]
        if name not in paths:
            continue
        try:
            image_rgb = decode_image_rgb(paths[name].read_bytes(), name)
        except (OSError, InputError) as error:
            logging.warning("%s: the report does not show this image (%s).", name, error)
            continue
        images.append(draw_image(plan, image_rgb, name, evaluation.split.label_map))
    return images


def _complete(
    truth: CocoSplit, complete: Callable[[dict[str, Any], tuple[int, int]], dict[str, Any]]
) -> dict[str, Any]:
    """Complete every annotation of the dataset; turn a ValueError into an InputError with file and annotation."""
    hw_by_id = {image.image_id: image.image_hw for image in truth.split.ground_truth}
    annotations = []
    for index, row in enumerate(truth.dataset["annotations"]):
        try:
            annotations.append({**row, **complete(row, hw_by_id[row["image_id"]])})
        except ValueError as error:
            raise InputError(f"{escape(str(truth.path))}: annotations[{index}]: {error}.") from None
    return {**truth.dataset, "annotations": annotations}


def _with_mask(row: dict[str, Any], image_hw: tuple[int, int]) -> dict[str, Any]:
    if "segmentation" not in row:
        raise ValueError("has no 'segmentation', which 'segm' metrics need; add masks to all annotations or to none")
    return {"segmentation": encode_mask(row["segmentation"], image_hw)}


def _with_keypoints(row: dict[str, Any], num_points: int) -> dict[str, Any]:
    keypoints = read_keypoints(row) if "keypoints" in row else [0] * (3 * num_points)
    if len(keypoints) != 3 * num_points:
        raise ValueError(_wrong_keypoints(keypoints, num_points))
    num_keypoints = row.get("num_keypoints", sum(visibility > 0 for visibility in keypoints[2::3]))
    if type(num_keypoints) is not int or num_keypoints < 0:
        raise ValueError(f"'num_keypoints' must be an integer of 0 or more, got {num_keypoints!r:.60}")
    return {"keypoints": keypoints, "num_keypoints": num_keypoints}


def _wrong_keypoints(keypoints: Sequence[float], num_points: int) -> str:
    allowed = f"{3 * num_points} (x, y, visibility of {num_points} points)"
    return f"'keypoints' has {len(keypoints)} numbers, allowed: {allowed}"
