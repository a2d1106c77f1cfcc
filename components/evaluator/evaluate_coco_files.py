"""Evaluate COCO files without a model or Beam; show example images if they are available."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from absl import logging

from detloom.components.evaluation_requirements import EvaluationRequirements
from detloom.components.evaluator.coco_file_metrics import (
    compute_coco_file_metrics,
    compute_coco_keypoint_metrics,
    iou_types_of,
)
from detloom.components.evaluator.coco_files import CocoSplit, read_coco_detections, read_coco_ground_truth
from detloom.components.evaluator.evaluation_result import (
    EvaluationResult,
    EvaluatorParams,
    MeasuredModel,
    ReportImage,
    assess,
    measure_model,
)
from detloom.components.evaluator.report.example_images import ImagePlan, draw_image, plan_images
from detloom.components.evaluator.report.output_files import LOCK_FILE, write_report
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.errors import InputError
from detloom.trainer_module.drawing.draw import decode_image_rgb

OTHER_METRICS_FILE = "other_metrics.json"  # {"candidate": {"segm": ..., "keypoints": ...}, "baseline": ... or null}


@dataclass(frozen=True, kw_only=True)
class FileInputs:
    """COCO files: annotations and the results of one or two models; without `images_dir` no images are shown."""

    ground_truth: Path
    detections: Path
    baseline_detections: Path | None = None
    images_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FileEvaluation:
    """An evaluation, and the metrics of masks (`segm`) and `keypoints` if the files have them."""

    evaluation: EvaluationResult
    candidate_others: Mapping[str, Any]
    baseline_others: Mapping[str, Any] | None


def evaluate_files(inputs: FileInputs, params: EvaluatorParams, out_dir: Path) -> FileEvaluation:
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
    candidate, candidate_others = _measure(inputs.detections, truth, params)
    baseline, baseline_others = None, None
    if inputs.baseline_detections is not None:
        baseline, baseline_others = _measure(inputs.baseline_detections, truth, params)
    evaluation = assess(truth.split, truth.file_names, candidate, baseline, params.gates)
    logging.info("%s", evaluation.decision.sentence)
    coco = candidate.measurements.coco
    lines = [
        ("Ground truth", f"{inputs.ground_truth}: {coco.num_images} images, {coco.num_boxes} boxes"),
        ("Candidate", str(inputs.detections)),
        ("Baseline", str(inputs.baseline_detections or "none")),
    ]
    evaluation = replace(evaluation, lines=lines)
    plans = plan_images(evaluation, params.settings.num_images, baseline=baseline.detections if baseline else ())
    images = _draw(plans, evaluation, paths)
    others = {"candidate": candidate_others, "baseline": baseline_others}
    with hold_output(str(out_dir), LOCK_FILE, "evaluation"):
        (out_dir / OTHER_METRICS_FILE).unlink(missing_ok=True)  # left by an earlier evaluation
        if any(others.values()):
            text = json.dumps(others, allow_nan=False, indent=1) + "\n"
            (out_dir / OTHER_METRICS_FILE).write_text(text, encoding="utf-8")
        write_report(str(out_dir), evaluation, images)
    return FileEvaluation(evaluation=evaluation, candidate_others=candidate_others, baseline_others=baseline_others)


def _measure(path: Path, truth: CocoSplit, params: EvaluatorParams) -> tuple[MeasuredModel, dict[str, Any]]:
    """Measure boxes as for any model, and masks and keypoints if the files have them."""
    found = read_coco_detections(path, truth)
    kinds = iou_types_of(found.results, truth)
    others: dict[str, Any] = {}
    measured = measure_model(truth.split, found.detections, params.settings)
    shapes: dict[str, Any] = {}
    if "segm" in kinds:
        sizes = [(each.name, each.min_side_px**2, each.max_side_px**2) for each in params.settings.sizes]
        shapes["masks"] = compute_coco_file_metrics(truth, found.results, "segm", sizes=sizes)
        others["segm"] = shapes["masks"].to_dict()
    if "keypoints" in kinds:
        shapes["keypoints"] = compute_coco_keypoint_metrics(truth, found.results)
        others["keypoints"] = shapes["keypoints"].to_dict()
    return replace(measured, measurements=replace(measured.measurements, **shapes)), others


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
