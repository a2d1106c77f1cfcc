"""Checks of gates, data, model outputs and serving contract; messages name the record or the class."""

from collections.abc import Sequence

import numpy as np

from detloom.components.evaluator.image_record import ImageRecord
from detloom.schemas.contracts.detections import SIGNATURE_INPUTS
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import nearest_hint
from detloom.schemas.run_file.evaluator_and_gates import Gates
from detloom.trainer_module.evaluation.coco_images import ImageDetections
from detloom.trainer_module.export.predict import check_signature

_ROUNDING = 1e-5  # rounding of float32 boxes at the image border


def check_gates(gates: Gates, label_map: LabelMap) -> None:
    """Raise InputError if a gate names a class that the model does not have."""
    for metric in [each.metric for each in gates.floors] + [each.metric for each in gates.changes]:
        _, slash, class_name = metric.partition("/")
        if slash and class_name not in label_map.names:
            hint = nearest_hint(class_name, label_map.names)
            raise InputError(
                f"gates: got the metric '{metric}', allowed: one of the model's {len(label_map.names)} classes.{hint}"
            )


def check_truth(records: Sequence[ImageRecord], label_map: LabelMap) -> None:
    """Raise InputError for a record with a class id that the label map lacks, or with a box that is not finite."""
    for record in records:
        truth = record.ground_truth(0)
        unknown = set(truth.class_ids.tolist()) - set(label_map.class_ids)
        if unknown or not np.isfinite(truth.boxes_yxyx_rel).all():
            got = f"the class id {min(unknown)}" if unknown else "a box that is not finite"
            allowed = f"{_count_classes(label_map)} of the label map, finite boxes"
            raise InputError(f"record '{record.source_id}': got {got}, allowed: {allowed}.")


def find_unusable(records: Sequence[ImageRecord], name: str, label_map: LabelMap) -> str | None:
    """Return the first model output that cannot be measured, as the end of a sentence, or None."""
    for record in records:
        detections = record.detections(0, name)
        unknown = set(detections.class_ids.tolist()) - set(label_map.class_ids)
        if unknown:
            found = f"the class id {min(unknown)}, which is not among {_count_classes(label_map)} of the label map"
            return f"in record '{record.source_id}' it returned {found}"
        if not (np.isfinite(detections.boxes_yxyx_rel).all() and np.isfinite(detections.scores).all()):
            return f"in record '{record.source_id}' it returned a box or score that is not finite"
        points = detections.keypoints_yx_rel
        if points is not None and not np.isfinite(points).all():
            return f"in record '{record.source_id}' it returned a keypoint that is not finite"
    return None


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
