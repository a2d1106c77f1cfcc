"""CenterNet (arXiv:1904.07850): objects as peaks of a heat map, one channel a class, with a size and an offset.

Names and defaults are those of the Object Detection API's `pipeline.config`, as in `model_config.py`.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.model_config import (
    ClassificationLoss,
    LocalizationLoss,
    PenaltyReducedFocal,
    WeightedL1,
)
from detloom.schemas.network_config import ImageResizer, KeepAspectRatioResizer

_MAX_STRIDE = 32  # of the backbone's coarsest map


@dataclass(frozen=True, kw_only=True)
class CenterNetFeatureExtractor:
    """A backbone, and the path back up to a stride of 4."""

    backbone: Literal["mobilenet_v2", "resnet50_v1", "resnet101_v1"]
    """Classification network without its classifier."""
    channel_means: tuple[float, ...] = ()
    """Subtracted from the picture's channels, 0 to 255, before the backbone's own scaling; empty is 0."""
    channel_stds: tuple[float, ...] = ()
    """Divide the channels after that; empty is 1."""
    bgr_ordering: bool = False
    """Reverse the order of the channels before that; means and deviations are then blue, green, red."""
    depth_multiplier: float = 1.0
    """Factor of MobileNet's channels."""
    use_separable_conv: bool = False
    """Separable instead of full convolutions on the path up; MobileNet only."""
    upsampling_interpolation: Literal["nearest", "bilinear"] = "nearest"
    """How the path up doubles a map; MobileNet only."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "depth_multiplier")
        for field in ("channel_means", "channel_stds"):
            values = getattr(self, field)
            check(len(values) in (0, 3), field, values, "none, or three numbers")
        check(all(value > 0 for value in self.channel_stds), "channel_stds", self.channel_stds, "above 0")
        if self.backbone != "mobilenet_v2":
            for field, default in (
                ("depth_multiplier", 1.0),
                ("use_separable_conv", False),
                ("upsampling_interpolation", "nearest"),
            ):
                got = getattr(self, field)
                shown = str(got).lower() if isinstance(got, bool) else got
                allowed = f"{str(default).lower()} with {self.backbone}"
                check(got == default, field, shown, allowed, "backbone")


@dataclass(frozen=True, kw_only=True)
class PredictionHeadParams:
    """The convolutions of a head before its last one."""

    num_filters: tuple[int, ...] = ()
    """Channels of each."""
    kernel_sizes: tuple[int, ...] = ()
    """Side of each one's kernel."""

    def __post_init__(self) -> None:
        for field in ("num_filters", "kernel_sizes"):
            values = getattr(self, field)
            check(all(value >= 1 for value in values), field, values, "1 or more")
        pair = (len(self.num_filters), len(self.kernel_sizes))
        check(pair[0] == pair[1], "kernel_sizes", f"{pair[1]} of them", f"{pair[0]}, one for each of num_filters")


_ONE_LAYER = PredictionHeadParams(num_filters=(256,), kernel_sizes=(3,))


@dataclass(frozen=True, kw_only=True)
class ObjectDetection:
    """Size and offset of the box around a peak."""

    localization_loss: LocalizationLoss
    """Of sizes and offsets at the boxes' centres, in cells of the heat map."""
    task_loss_weight: float = 1.0
    """Factor of both losses."""
    offset_loss_weight: float = 1.0
    """Factor of the offsets' loss."""
    scale_loss_weight: float = 0.1
    """Factor of the sizes' loss, which grows with the network's input."""
    scale_head_params: PredictionHeadParams = _ONE_LAYER
    """Head of the sizes."""
    offset_head_params: PredictionHeadParams = _ONE_LAYER
    """Head of the offsets."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "task_loss_weight", "offset_loss_weight", "scale_loss_weight")
        got = type(self.localization_loss).__name__
        check(isinstance(self.localization_loss, WeightedL1), "localization_loss", got, "WeightedL1")


@dataclass(frozen=True, kw_only=True)
class ObjectCenterParams:
    """The heat map of the objects' centres."""

    classification_loss: ClassificationLoss
    """Of every cell and class of the heat map."""
    object_center_loss_weight: float = 1.0
    """Factor of that loss."""
    heatmap_bias_init: float = -2.19
    """First bias of the heat map's last convolution: log(p / (1 - p)) for peaks of probability p."""
    min_box_overlap_iou: float = 0.7
    """A centre is hardly penalized while a box of the right size around it overlaps the object this much."""
    max_box_predictions: int = 100
    """Peaks of a picture that become detections."""
    peak_max_pool_kernel_size: int = 3
    """A peak is the largest value of its class among so many cells a side; 1 takes every cell for a peak."""
    center_head_params: PredictionHeadParams = _ONE_LAYER
    """Head of the heat map."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "object_center_loss_weight")
        check_fields(self, "between 0 and 1", "min_box_overlap_iou")
        check_fields(self, "1 or more", "max_box_predictions", "peak_max_pool_kernel_size")
        got = type(self.classification_loss).__name__
        is_penalty_reduced = isinstance(self.classification_loss, PenaltyReducedFocal)
        check(is_penalty_reduced, "classification_loss", got, "PenaltyReducedFocal")


@dataclass(frozen=True, kw_only=True)
class CenterNet:
    """Detectors without anchors and without suppression."""

    image_resizer: ImageResizer
    """From pictures to the network's input."""
    feature_extractor: CenterNetFeatureExtractor
    """Backbone and the path back up."""
    object_detection_task: ObjectDetection
    """The boxes."""
    object_center_params: ObjectCenterParams
    """The heat map."""
    num_classes: int | None = None
    """Classes of the heat map; None takes the label map's number, another number than the label map's is refused."""
    use_depthwise: bool = False
    """Separable instead of full convolutions in the heads."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "num_classes")
        resizer = self.image_resizer
        if isinstance(resizer, KeepAspectRatioResizer):
            sides = {"max_dimension": resizer.max_dimension}
        else:
            sides = {"height": resizer.height, "width": resizer.width}
        for name, side in sides.items():
            nearest = max(round(side / _MAX_STRIDE), 1) * _MAX_STRIDE
            allowed = f"a multiple of {_MAX_STRIDE}, as {nearest}: the path up doubles the coarsest map"
            check(side % _MAX_STRIDE == 0, f"image_resizer.{name}", side, allowed)
