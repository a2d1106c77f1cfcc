"""Checks of data, model outputs and serving contract; messages name the record or the class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detloom.components.evaluator.record_table import RecordTable
from detloom.schemas.contracts.detections import SIGNATURE_INPUTS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_images import ImageDetections
from detloom.trainer_module.evaluation.image_table import ImageTable
from detloom.trainer_module.export.predict import check_signature

_ROUNDING = 1e-5  # rounding of float32 boxes at the image border


def check_truth(records: RecordTable, label_map: LabelMap) -> None:
    """Raise InputError for a record with a class id that the label map lacks, or with a box that is not finite."""
    columns = records.truth.columns
    is_known = np.isin(columns["class_ids"], label_map.class_ids)
    is_sound = is_known & np.isfinite(columns["boxes_yxyx_rel"]).all(axis=1)
    if not is_sound.all():
        index, rows = _first_image(records.truth, ~is_sound)
        unknown = columns["class_ids"][rows][~is_known[rows]]
        got = f"the class id {unknown.min()}" if unknown.size else "a box that is not finite"
        allowed = f"{_count_classes(label_map)} of the label map, finite boxes"
        raise InputError(f"record '{records.source_ids[index]}': got {got}, allowed: {allowed}.")


def find_unusable(records: RecordTable, name: str, label_map: LabelMap) -> str | None:
    """Return the first model output that cannot be measured, as the end of a sentence, or None."""
    found = records.found[name]
    is_known = np.isin(found.columns["class_ids"], label_map.class_ids)
    is_finite = np.isfinite(found.columns["boxes_yxyx_rel"]).all(axis=1) & np.isfinite(found.columns["scores"])
    points = found.columns.get("keypoints_yx_rel")
    has_points = np.ones(len(is_finite), bool) if points is None else np.isfinite(points).all(axis=(1, 2))
    is_sound = is_known & is_finite & has_points
    if is_sound.all():
        return None
    index, rows = _first_image(found, ~is_sound)
    where = f"in record '{records.source_ids[index]}' it returned"
    unknown = found.columns["class_ids"][rows][~is_known[rows]]
    if unknown.size:
        return f"{where} the class id {unknown.min()}, which is not among {_count_classes(label_map)} of the label map"
    if not is_finite[rows].all():
        return f"{where} a box or score that is not finite"
    return f"{where} a keypoint that is not finite"


def _first_image(table: ImageTable[Any], is_wrong: npt.NDArray[np.bool_]) -> tuple[int, slice]:
    """Return the position and the rows of the image with the first wrong row."""
    index = int(np.searchsorted(table.offsets_I1, np.flatnonzero(is_wrong)[0], side="right")) - 1
    return index, table.rows(index, index + 1)


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
    for image in detections:
        scores, boxes = np.asarray(image.scores), np.asarray(image.boxes_yxyx_rel)
        where = f"the model's detections in image {image.image_id}"
        if len(scores) and (scores.min() < 0 or scores.max() > 1):
            return f"{where} have scores from {scores.min():g} to {scores.max():g}, allowed: 0 to 1"
        if (np.diff(scores) > 0).any():
            return f"{where} are not sorted by descending score"
        if len(boxes) and (boxes.min() < -_ROUNDING or boxes.max() > 1 + _ROUNDING):
            return f"{where} have box corners from {boxes.min():g} to {boxes.max():g}, allowed: 0 to 1"
        if (boxes[:, 2:] < boxes[:, :2]).any():
            return f"{where} have a box whose maximum is below its minimum"
    return None
