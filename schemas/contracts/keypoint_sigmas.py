"""Tolerances of the object keypoint similarity by keypoint name (https://cocodataset.org/#keypoints-eval).

A sigma is the standard deviation of a point's labels over the square root of the object's area.
"""

from collections.abc import Mapping, Sequence

# COCO's keypoints of a person in its order, with 10 times their sigma (pycocotools, cocoeval.py, `setKpParams`).
_COCO_TENFOLD = {
    "nose": 0.26,
    "left_eye": 0.25,
    "right_eye": 0.25,
    "left_ear": 0.35,
    "right_ear": 0.35,
    "left_shoulder": 0.79,
    "right_shoulder": 0.79,
    "left_elbow": 0.72,
    "right_elbow": 0.72,
    "left_wrist": 0.62,
    "right_wrist": 0.62,
    "left_hip": 1.07,
    "right_hip": 1.07,
    "left_knee": 0.87,
    "right_knee": 0.87,
    "left_ankle": 0.89,
    "right_ankle": 0.89,
}
COCO_SIGMAS = {name: sigma / 10.0 for name, sigma in _COCO_TENFOLD.items()}
DEFAULT_SIGMA = 0.05  # of other keypoints; the Object Detection API's default (coco_evaluation.py, oks_sigmas)


def sigmas_of(names: Sequence[str], given: Mapping[str, float]) -> tuple[float, ...]:
    """Return the sigma of each keypoint: `given` if it is not empty, else COCO's by name, else the default."""
    if given:
        return tuple(given[name] for name in names)
    return tuple(COCO_SIGMAS.get(name, DEFAULT_SIGMA) for name in names)
