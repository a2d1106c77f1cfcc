"""CenterNet (arXiv:1904.07850): objects are peaks of a heatmap with one channel per class, a size and an offset.

It can predict the keypoints of one class, or a mask of each object, too.

Names and defaults are those of the Object Detection API's `pipeline.config`, as in `model_config.py`.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.contracts.keypoint_sigmas import COCO_SIGMAS
from detloom.schemas.errors import NotNegative, Positive, Ranged, check, check_fields
from detloom.schemas.model.deepmac import DeepMac
from detloom.schemas.model.export_and_quantization import Export, check_onnx_resizer, refuse_export
from detloom.schemas.model.losses import ClassificationLoss, LocalizationLoss, PenaltyReducedFocal, WeightedL1
from detloom.schemas.model.network import (
    MAX_REPETITIONS,
    ImageResizer,
    KeepAspectRatioResizer,
    check_channels,
)

CenterNetBackbone = Literal[
    "mobilenet_v2",
    "resnet50_v1",
    "resnet101_v1",
    "resnet50_v2",
    "resnet101_v2",
    "hourglass_10",
    "hourglass_20",
    "hourglass_32",
    "hourglass_52",
    "hourglass_104",
]
_MAX_PEAK_RADIUS = 16  # each training step gathers some 3 r^2 cells for each keypoint of each object
_MAX_STRIDE = 32  # stride of the backbone's coarsest feature map
_MAX_STRIDE_OF_HOURGLASS = {
    "hourglass_10": 8,
    "hourglass_20": 16,
    "hourglass_32": 32,
    "hourglass_52": 128,
    "hourglass_104": 128,
}


@dataclass(frozen=True, kw_only=True)
class CenterNetFeatureExtractor:
    """A backbone, followed by upsampling layers to a stride of 4."""

    backbone: CenterNetBackbone
    """Classification network without its classifier, or stacked hourglasses, which upsample themselves."""
    channel_means: tuple[float, ...] = ()
    """Values subtracted from the image's channels (0 to 255) before the backbone's own scaling; empty is 0."""
    channel_stds: tuple[float, ...] = ()
    """Divisors of the channels after the subtraction; empty is 1."""
    bgr_ordering: bool = False
    """Reverse the order of the channels first; `channel_means` and `channel_stds` are then blue, green, red."""
    depth_multiplier: float = 1.0
    """Factor of MobileNet's channels."""
    use_separable_conv: bool = False
    """Use separable convolutions in the upsampling layers; MobileNet only."""
    upsampling_interpolation: Literal["nearest", "bilinear"] = "nearest"
    """Interpolation of the upsampling layers; MobileNet only."""

    def __post_init__(self) -> None:
        check(0 < self.depth_multiplier <= 2, "depth_multiplier", self.depth_multiplier, "above 0, at most 2")
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
    """Convolutions of a head before its last one."""

    num_filters: tuple[int, ...] = ()
    """Number of channels of each convolution."""
    kernel_sizes: tuple[int, ...] = ()
    """Kernel size of each convolution."""

    def __post_init__(self) -> None:
        check_channels(self, "num_filters", at_least=1)
        check(all(size >= 1 for size in self.kernel_sizes), "kernel_sizes", self.kernel_sizes, "1 or more")
        pair = (len(self.num_filters), len(self.kernel_sizes))
        check(pair[0] <= MAX_REPETITIONS, "num_filters", f"{pair[0]} values", f"at most {MAX_REPETITIONS}")
        check(pair[0] == pair[1], "kernel_sizes", f"{pair[1]} values", f"{pair[0]}, one for each of num_filters")


_ONE_LAYER = PredictionHeadParams(num_filters=(256,), kernel_sizes=(3,))


@dataclass(frozen=True, kw_only=True)
class ObjectDetection:
    """Size and offset of the box around a peak."""

    localization_loss: LocalizationLoss
    """Loss of sizes and offsets at the centers of the boxes, in cells of the heatmap."""
    task_loss_weight: float = 1.0
    """Factor of both losses."""
    offset_loss_weight: float = 1.0
    """Factor of the loss of the offsets."""
    scale_loss_weight: float = 0.1
    """Factor of the loss of the sizes, which grows with the size of the network's input."""
    scale_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for sizes."""
    offset_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for offsets."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "task_loss_weight", "offset_loss_weight", "scale_loss_weight")
        _check_l1(self.localization_loss)


@dataclass(frozen=True, kw_only=True)
class ObjectCenterParams(Ranged):
    """Heatmap of the object centers."""

    classification_loss: ClassificationLoss
    """Loss of every cell and class of the heatmap."""
    object_center_loss_weight: NotNegative = 1.0
    """Factor of the classification loss."""
    heatmap_bias_init: float = -2.19
    """Initial bias of the heatmap's last convolution: log(p / (1 - p)) for an initial probability p."""
    min_box_overlap_iou: Annotated[float, "between 0 and 1"] = 0.7
    """IoU that sets the radius of reduced penalty: cells around a center are penalized less if a box of the object's
    size around them overlaps the object at least this much."""
    max_box_predictions: Annotated[int, "1 to 10000"] = 100
    """Largest number of peaks per image that become detections."""
    peak_max_pool_kernel_size: Annotated[int, "1 to 1000"] = 3
    """Side, in cells, of the window in which a peak must be the maximum of its class; 1 makes every cell a peak."""
    center_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for the heatmap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_penalty_reduced(self.classification_loss)


@dataclass(frozen=True, kw_only=True)
class KeypointStd:
    """Size of the peak of one keypoint in the heatmap."""

    name: str
    """Name of the keypoint."""
    std: float
    """Standard deviation of its Gaussian, as a multiple of that of the object's center."""

    def __post_init__(self) -> None:
        check(bool(self.name), "name", "nothing", "a name")
        check_fields(self, "above 0", "std")


@dataclass(frozen=True, kw_only=True)
class KeypointLoss:
    """Losses of the keypoints."""

    classification_loss: ClassificationLoss
    """Loss of every cell and keypoint of the heatmap."""
    localization_loss: LocalizationLoss
    """Loss of the offsets and of the regression, in cells of the heatmap."""

    def __post_init__(self) -> None:
        _check_penalty_reduced(self.classification_loss)
        _check_l1(self.localization_loss)


@dataclass(frozen=True, kw_only=True)
class KeypointEstimation(Ranged):
    """Keypoints of the objects of one class (arXiv:1904.07850, section 4.2).

    An object's center predicts where its keypoints are. Each is moved to the nearest peak of a heatmap of its kind, if
    there is one in the object's box.
    """

    task_name: str
    """Name of the heads in checkpoints of the Object Detection API; letters, digits and underscores."""
    loss: KeypointLoss
    """Losses of heatmap, offsets and regression."""
    keypoint_class_name: str
    """Class whose objects have the keypoints."""
    keypoint_label_to_std: tuple[KeypointStd, ...]
    """The keypoints, in the order of the data. COCO's 17 keypoints of a person are taken in COCO's order, however they
    are written."""
    task_loss_weight: NotNegative = 1.0
    """Factor of all losses of the keypoints."""
    keypoint_regression_loss_weight: NotNegative = 1.0
    """Factor of the loss of the regression from the object's center."""
    keypoint_heatmap_loss_weight: NotNegative = 1.0
    """Factor of the loss of the heatmap."""
    keypoint_offset_loss_weight: NotNegative = 1.0
    """Factor of the loss of the offsets from the cells of the heatmap."""
    heatmap_bias_init: float = -2.19
    """Initial bias of the heatmap's last convolution: log(p / (1 - p)) for an initial probability p."""
    keypoint_candidate_score_threshold: Annotated[float, "between 0 and 1"] = 0.1
    """Smallest score of a peak of the heatmap."""
    num_candidates_per_keypoint: Annotated[int, "1 to 10000"] = 100
    """Largest number of peaks of each kind of keypoint per image."""
    peak_max_pool_kernel_size: Annotated[int, "1 to 1000"] = 3
    """Side, in cells, of the window in which a peak must be the maximum of its kind; 1 makes every cell a peak."""
    unmatched_keypoint_score: Annotated[float, "between 0 and 1"] = 0.1
    """Score of a keypoint that no peak confirms."""
    box_scale: Positive = 1.2
    """Factor of the sides of an object's box in which its peaks are searched."""
    candidate_search_scale: Positive = 0.3
    """Largest distance of a peak from the regression, as a multiple of the longer side of the scaled box."""
    offset_peak_radius: Annotated[int, f"0 to {_MAX_PEAK_RADIUS}"] = 0
    """Radius, in cells, around a keypoint and around an object's center in which offsets and regression are trained."""
    per_keypoint_offset: bool = False
    """Predict offsets for each kind of keypoint; otherwise all share one pair of channels."""
    clip_out_of_frame_keypoints: bool = False
    """Move keypoints outside the image to its edge, with score 0."""
    heatmap_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for the heatmap."""
    offset_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for the offsets."""
    regress_head_params: PredictionHeadParams = _ONE_LAYER
    """Head for the regression."""

    @property
    def points(self) -> tuple[KeypointStd, ...]:
        """The keypoints in the order of data and outputs."""
        by_name = {point.name: point for point in self.keypoint_label_to_std}
        if set(by_name) == set(COCO_SIGMAS):
            return tuple(by_name[name] for name in COCO_SIGMAS)
        return self.keypoint_label_to_std

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name = re.fullmatch(r"\w+", self.task_name, re.ASCII) is not None
        check(is_name, "task_name", self.task_name or "nothing", "letters, digits and underscores, such as human_pose")
        check(bool(self.keypoint_class_name), "keypoint_class_name", "nothing", "the name of a class")
        names = [point.name for point in self.keypoint_label_to_std]
        check(bool(names), "keypoint_label_to_std", "nothing", "at least one keypoint")
        check(len(set(names)) == len(names), "keypoint_label_to_std", names, "each keypoint once")


def _check_l1(loss: LocalizationLoss) -> None:
    check(isinstance(loss, WeightedL1), "localization_loss", type(loss).__name__, "WeightedL1")


def _check_penalty_reduced(loss: ClassificationLoss) -> None:
    is_penalty_reduced = isinstance(loss, PenaltyReducedFocal)
    check(is_penalty_reduced, "classification_loss", type(loss).__name__, "PenaltyReducedFocal")


@dataclass(frozen=True, kw_only=True)
class CenterNet:
    """Detectors without anchors and without NMS."""

    image_resizer: ImageResizer
    """Resizing of images to the network's input."""
    feature_extractor: CenterNetFeatureExtractor
    """Backbone and upsampling layers."""
    object_detection_task: ObjectDetection
    """Sizes and offsets of the boxes."""
    object_center_params: ObjectCenterParams
    """Heatmap of the object centers."""
    keypoint_estimation_task: KeypointEstimation | None = None
    """Keypoints of the objects of one class; null predicts none."""
    deepmac_mask_estimation: DeepMac | None = None
    """A mask of each object (Deep-MAC); null predicts none."""
    num_classes: int | None = None
    """Number of classes; null uses the number in the label map. A number that differs from the label map is
    rejected."""
    use_depthwise: bool = False
    """Use separable convolutions in the heads."""

    @property
    def max_detections(self) -> int:
        """Maximum number of detections per image."""
        return self.object_center_params.max_box_predictions

    def check_export(self, export: Export) -> None:
        """Raise FieldError for formats to which the detector cannot be converted."""
        check_onnx_resizer(export, self.image_resizer.resize_method)
        has_masks = self.deepmac_mask_estimation is not None
        if export.tflite and (has_masks or self.keypoint_estimation_task is not None):
            what = "masks" if has_masks else "keypoints"
            refuse_export("tflite", list(export.tflite), f"TensorFlow Lite files have no {what}; use the SavedModel")
        if "int8" in export.tflite:
            refuse_export("tflite", "int8", "8 bits lose the peaks, and the model detects nothing; use float16")
        if export.onnx and export.onnx_outputs == "raw":
            refuse_export("onnx_outputs", "raw", "CenterNet has no NMS to omit; use detections")
        if export.tflite and export.tflite_outputs == "raw":
            refuse_export("tflite_outputs", "raw", "CenterNet has no NMS to omit; use detections")

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "num_classes")
        both = self.keypoint_estimation_task is not None and self.deepmac_mask_estimation is not None
        allowed = "null with keypoint_estimation_task: the Object Detection API has no such detector"
        check(not both, "deepmac_mask_estimation", "set", allowed, "keypoint_estimation_task")
        resizer = self.image_resizer
        if isinstance(resizer, KeepAspectRatioResizer):
            sides = {"max_dimension": resizer.max_dimension}
        else:
            sides = {"height": resizer.height, "width": resizer.width}
        for name, side in sides.items():
            stride = _MAX_STRIDE_OF_HOURGLASS.get(self.feature_extractor.backbone, _MAX_STRIDE)
            nearest = max(round(side / stride), 1) * stride
            allowed = f"a multiple of {stride}, such as {nearest}: upsampling doubles the coarsest feature map"
            check(side % stride == 0, f"image_resizer.{name}", side, allowed)
