"""Post-processing: scores of the outputs, and non-maximum suppression with the number of boxes that it keeps."""

from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import NotNegative, Positive, Ranged, Share, check


@dataclass(frozen=True, kw_only=True)
class BatchNonMaxSuppression(Ranged):
    """Non-maximum suppression of overlapping boxes."""

    score_threshold: Annotated[float, "0 up to 1"] = 0.0
    """Boxes with a lower score are dropped before suppression."""
    iou_threshold: Share = 0.6
    """IoU above which the box with the lower score is suppressed."""
    max_detections_per_class: Annotated[int, "1 to 10000"] = 100
    """Largest number of boxes of a class per image."""
    max_total_detections: Annotated[int, "1 to 10000"] = 100
    """Largest number of boxes per image."""
    use_class_agnostic_nms: bool = False
    """Suppress boxes of different classes too."""
    max_classes_per_detection: Annotated[int, "1 to 10000"] = 1
    """Number of classes reported per box, with class-agnostic suppression."""
    soft_nms_sigma: NotNegative = 0.0
    """Width of the Gaussian that lowers the scores of overlapping boxes instead of removing them (arXiv:1704.04503); 0
    removes them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        of_class, total = self.max_detections_per_class, self.max_total_detections
        allowed = f"at most max_total_detections ({total})"
        check(of_class <= total, "max_detections_per_class", of_class, allowed, "max_total_detections")


@dataclass(frozen=True, kw_only=True)
class PostProcessing(Ranged):
    """Conversion of raw outputs to detections."""

    batch_non_max_suppression: BatchNonMaxSuppression = BatchNonMaxSuppression()
    """Non-maximum suppression."""
    score_converter: Literal["IDENTITY", "SIGMOID", "SOFTMAX"] = "IDENTITY"
    """Function that converts class outputs to scores."""
    logit_scale: Positive = 1.0
    """Divisor of the class outputs before the conversion."""
