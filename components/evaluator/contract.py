"""Does an exported model keep its contract (`schemas/detections.py`), so that whoever serves it can rely on it?"""

from collections.abc import Sequence

import numpy as np

from detloom.schemas.detections import SIGNATURE_INPUTS
from detloom.schemas.errors import InputError
from detloom.trainer_module.coco_metrics import ImageDetections
from detloom.trainer_module.predict import check_signature

_ROUNDING = 1e-5  # float32 boxes at the border of the image


def find_contract_problem(model_dir: str, detections: Sequence[ImageDetections]) -> str | None:
    """What is wrong with the model or with what it answered, as a sentence without its end; None if nothing is.

    Args:
        detections: what it found in every image of the split.
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
            return f"{where} have a box whose end lies before its beginning"
    return None
