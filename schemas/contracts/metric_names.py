"""Names of the metrics that training can measure: the twelve COCO metrics, the AP of one class, and the loss.

Source of the COCO names: https://cocodataset.org/#detection-eval.
"""

from detloom.schemas.errors import check

METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
LOSS = "loss"  # sum of the losses; the only metric for which lower is better
CLASS_AP = "AP/"  # prefix of a class name: the AP of that class


def check_metric(field: str, metric: str) -> None:
    """Raise InputError unless training can measure the metric. The label map is not known here, so any class passes."""
    known = metric in (*METRIC_NAMES, LOSS) or (metric.startswith(CLASS_AP) and metric != CLASS_AP)
    check(known, field, repr(metric), f"{', '.join(METRIC_NAMES)}, {LOSS}, or {CLASS_AP}<class name>")


def is_better(metric: str, value: float, than: float, *, min_delta: float = 0.0) -> bool:
    """Return True if `value` is better than `than` by more than `min_delta`; a lower loss is better."""
    gain = than - value if metric == LOSS else value - than
    return gain > min_delta
