"""Post-processing: scores of the outputs, and non-maximum suppression with the number of boxes that it keeps."""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import check, check_fields


@dataclass(frozen=True, kw_only=True)
class BatchNonMaxSuppression:
    """Non-maximum suppression of overlapping boxes."""

    score_threshold: float = 0.0
    """Boxes with a lower score are dropped before suppression."""
    iou_threshold: float = 0.6
    """IoU above which the box with the lower score is suppressed."""
    max_detections_per_class: int = 100
    """Largest number of boxes of a class per image."""
    max_total_detections: int = 100
    """Largest number of boxes per image."""
    use_class_agnostic_nms: bool = False
    """Suppress boxes of different classes too."""
    max_classes_per_detection: int = 1
    """Number of classes reported per box, with class-agnostic suppression."""
    soft_nms_sigma: float = 0.0
    """Width of the Gaussian that lowers the scores of overlapping boxes instead of removing them (arXiv:1704.04503); 0
    removes them."""

    def __post_init__(self) -> None:
        check_fields(self, "0 up to 1", "score_threshold")
        check_fields(self, "0 to 1", "iou_threshold")
        check_fields(self, "0 or more", "soft_nms_sigma")
        numbers = ("max_detections_per_class", "max_total_detections", "max_classes_per_detection")
        check_fields(self, "1 to 10000", *numbers)
        of_class, total = self.max_detections_per_class, self.max_total_detections
        allowed = f"at most max_total_detections ({total})"
        check(of_class <= total, "max_detections_per_class", of_class, allowed, "max_total_detections")


@dataclass(frozen=True, kw_only=True)
class PostProcessing:
    """Conversion of raw outputs to detections."""

    batch_non_max_suppression: BatchNonMaxSuppression = BatchNonMaxSuppression()
    """Non-maximum suppression."""
    score_converter: Literal["IDENTITY", "SIGMOID", "SOFTMAX"] = "IDENTITY"
    """Function that converts class outputs to scores."""
    logit_scale: float = 1.0
    """Divisor of the class outputs before the conversion."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "logit_scale")
