"""Names of the metrics that training can measure: the twelve COCO metrics, the AP of one class, and the loss.

Masks have the same metrics with the prefix `mask_`, keypoints have ten with `keypoint_`, such as `mask_AP/cat` and
`keypoint_AP50`.

Source of the COCO names: https://cocodataset.org/#detection-eval.
"""

from detloom.schemas.errors import check

METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
LOSS = "loss"  # sum of the losses; the only metric for which lower is better
LEARNING_RATE = "learning_rate"  # in the log of a training run
CLASS_AP = "AP/"  # prefix of a class name: the AP of that class


MASK = "mask_"  # prefix of the metrics of masks
KEYPOINT = "keypoint_"  # prefix of the metrics of keypoints, which those of one class do not have
KEYPOINT_METRIC_NAMES = ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl")
ALLOWED = (
    f"{', '.join(METRIC_NAMES)}, these with {MASK}, or {', '.join(KEYPOINT_METRIC_NAMES)} with {KEYPOINT} (as in "
    f"{MASK}AP, {KEYPOINT}AP)"
)


def is_coco_metric(name: str) -> bool:
    """Return whether this is a metric of boxes, masks or keypoints, over all classes."""
    if name.startswith(KEYPOINT):
        return name.removeprefix(KEYPOINT) in KEYPOINT_METRIC_NAMES
    return name.removeprefix(MASK) in METRIC_NAMES


def check_metric(field: str, metric: str) -> None:
    """Raise InputError unless training can measure the metric. The label map is not known here, so any class passes."""
    of_class = metric.removeprefix(MASK)
    known = is_coco_metric(metric) or metric == LOSS or (of_class.startswith(CLASS_AP) and of_class != CLASS_AP)
    check(known, field, repr(metric), f"{ALLOWED}, {LOSS}, or {CLASS_AP}<class name>")


def is_better(metric: str, value: float, than: float, *, min_delta: float = 0.0) -> bool:
    """Return True if `value` is better than `than` by more than `min_delta`; a lower loss is better."""
    gain = than - value if metric == LOSS else value - than
    return gain > min_delta
