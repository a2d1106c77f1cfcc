"""COCO's keypoint metrics, equal to pycocotools to the last digit."""

from detloom.schemas.contracts.keypoint_sigmas import sigmas_of
from detloom.schemas.model.config import Eval
from detloom.trainer_module.detectors.detector import Keypoints


def measured_keypoints(keypoints: Keypoints | None, settings: Eval) -> Keypoints | None:
    """Return the keypoints of a detector family with the tolerances of `eval.keypoint_sigmas`, or their defaults."""
    if keypoints is None:
        return None
    given = {each.name: each.sigma for each in settings.keypoint_sigmas}
    return keypoints._replace(sigmas=sigmas_of(keypoints.names, given))
