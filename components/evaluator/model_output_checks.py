"""Checks of data, model outputs and serving contract; messages name the record or the class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detloom.components.evaluator.record_table import RecordTable
from detloom.schemas.contracts.arrays import BoolArray
from detloom.schemas.contracts.detections import SIGNATURE_INPUTS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_images import ImageDetections
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.inference.saved_model_runtime import check_signature

_ROUNDING = 1e-5  # rounding of float32 boxes at the image border


def check_truth(records: RecordTable, label_map: LabelMap) -> None:
    """Raise InputError for a record with a class id that the label map lacks, or with a box that is not finite."""
    boxes = records.truth.columns["boxes_yxyx_rel"]
    problem = _find_problem(records.truth, label_map, {"a box": np.isfinite(boxes).all(axis=1)})
    if problem is not None:
        raise InputError(f"record '{records.source_ids[problem[0]]}': has {problem[1]}.")


def find_unusable(records: RecordTable, name: str, label_map: LabelMap) -> str | None:
    """Return the first model output that is missing or cannot be measured, as the end of a sentence, or None."""
    if name in records.failures:
        return records.failures[name]
    columns = records.found[name].columns
    is_finite = np.isfinite(columns["boxes_yxyx_rel"]).all(axis=1) & np.isfinite(columns["scores"])
    checks = {"a box or score": is_finite}
    if "keypoints_yx_rel" in columns:
        checks["a keypoint"] = np.isfinite(columns["keypoints_yx_rel"]).all(axis=(1, 2))
    problem = _find_problem(records.found[name], label_map, checks)
    return problem and f"in record '{records.source_ids[problem[0]]}' it returned {problem[1]}"


def _find_problem(
    table: ImageTable[Any], label_map: LabelMap, is_finite_by_noun: Mapping[str, BoolArray]
) -> tuple[int, str] | None:
    """Return the position of the first image with an unknown class id or a value that is not finite, and the value."""
    class_ids = table.columns["class_ids"]
    is_known = np.isin(class_ids, label_map.class_ids)
    is_sound = np.logical_and.reduce([is_known, *is_finite_by_noun.values()])
    if is_sound.all():
        return None
    index = int(np.searchsorted(table.offsets_I1, np.flatnonzero(~is_sound)[0], side="right")) - 1
    rows = table.rows(index, index + 1)
    unknown = class_ids[rows][~is_known[rows]]
    if unknown.size:
        return index, f"the class id {unknown.min()}, which is not among {_count_classes(label_map)} of the label map"
    noun = next(noun for noun, is_finite in is_finite_by_noun.items() if not is_finite[rows].all())
    return index, f"{noun} that is not finite"


def _count_classes(label_map: LabelMap) -> str:
    ids = label_map.class_ids
    return f"the {len(ids)} class ids ({ids[0]} to {ids[-1]})"


def find_contract_problem(model_dir: str, detections: Sequence[ImageDetections]) -> str | None:
    """Return the first violation of the contract as a sentence without a full stop, or None.

    Args:
        detections: the model's detections in every image of the split.
    """
    for signature in SIGNATURE_INPUTS:
        try:
            check_signature(model_dir, signature)
        except InputError as error:
            return str(error).rstrip(".")
    return find_output_problem(detections, "the model")


def find_output_problem(detections: Sequence[ImageDetections], model: str) -> str | None:
    """Return the first violation of the contract by detections, as a sentence without a full stop, or None."""
    for image in detections:
        scores, boxes = np.asarray(image.scores), np.asarray(image.boxes_yxyx_rel)
        where = f"the detections of {model} in image {image.image_id}"
        if len(scores) and (scores.min() < 0 or scores.max() > 1):
            return f"{where} have scores from {scores.min():g} to {scores.max():g}, allowed: 0 to 1"
        if (np.diff(scores) > 0).any():
            return f"{where} are not sorted by descending score"
        if len(boxes) and (boxes.min() < -_ROUNDING or boxes.max() > 1 + _ROUNDING):
            return f"{where} have box corners from {boxes.min():g} to {boxes.max():g}, allowed: 0 to 1"
        if (boxes[:, 2:] < boxes[:, :2]).any():
            return f"{where} have a box whose maximum is below its minimum"
    return None
