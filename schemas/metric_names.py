"""The twelve COCO numbers by the names that the field uses (https://cocodataset.org/#detection-eval), and what else can
be measured in training."""

from detloom.schemas.checks import check

METRIC_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
LOSS = "loss"  # the sum of the losses; the only one of which less is better
CLASS_AP = "AP/"  # before a class's name: its AP


def check_metric(field: str, metric: str) -> None:
    """Raise InputError unless training can measure it. Whether a class is in the label map is not known here."""
    known = metric in (*METRIC_NAMES, LOSS) or (metric.startswith(CLASS_AP) and metric != CLASS_AP)
    check(known, field, repr(metric), f"{', '.join(METRIC_NAMES)}, {LOSS}, or {CLASS_AP}<class name>")


def is_better(metric: str, value: float, than: float, *, min_delta: float = 0.0) -> bool:
    """Whether `value` improves on `than` by more than `min_delta`; a loss improves by falling."""
    gain = than - value if metric == LOSS else value - than
    return gain > min_delta
