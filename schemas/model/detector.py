"""The detector: its network, anchors and targets.

Names and defaults are those of the Object Detection API's `pipeline.config`, so that an omitted field has the same
meaning in both.
"""

from dataclasses import dataclass
from typing import Annotated

from detloom.schemas.errors import (
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    Ranged,
    Share,
    check,
    check_fields,
)
from detloom.schemas.model.export_and_quantization import Export, check_onnx_resizer, refuse_export
from detloom.schemas.model.losses import Loss
from detloom.schemas.model.network import BiFpn, BoxPredictor, ExtraFeatureLayers, FeatureExtractor, Fpn, ImageResizer
from detloom.schemas.model.non_max_suppression import PostProcessing

# --- anchors --------------------------------------------------------------------------------------------------------


def _check_aspect_ratios(ratios: tuple[float, ...]) -> None:
    check(bool(ratios) and min(ratios) > 0, "aspect_ratios", ratios, "at least one, all above 0")


@dataclass(frozen=True, kw_only=True)
class MultiscaleAnchorGenerator(Ranged):
    """Anchors whose sides at level l are anchor_scale * 2**l * 2**(i / scales_per_octave) pixels."""

    aspect_ratios: tuple[float, ...]
    """Aspect ratios (width / height) of the anchors at each position."""
    min_level: Annotated[int, "0 to 9"] = 3
    """Finest level; must equal the neck's."""
    max_level: int = 7
    """Coarsest level; must equal the neck's."""
    anchor_scale: Positive = 4.0
    """Side of a square anchor, in strides of its level."""
    scales_per_octave: Annotated[int, "1 to 8"] = 2
    """Number of anchor sizes at each position."""
    strides_from_feature_maps: bool = False
    """Use the image's side divided by that of the feature map instead of 2**l, like google/automl, so that the anchors
    of every level are centered on the image. The two differ if 2**l does not divide the side; the Object Detection API
    then starts the level at the image's edge."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_aspect_ratios(self.aspect_ratios)
        check(self.min_level <= self.max_level <= 9, "max_level", self.max_level, f"{self.min_level} (min_level) to 9")


@dataclass(frozen=True, kw_only=True)
class SsdAnchorGenerator(Ranged):
    """Anchors of plain SSD (arXiv:1512.02325, 2.2): one scale per feature map, and one in between for square
    anchors."""

    aspect_ratios: tuple[float, ...]
    """Aspect ratios (width / height) of the anchors at each position."""
    num_layers: Annotated[int, "1 to 10"] = 6
    """Number of feature maps; must equal the neck's."""
    min_scale: float = 0.2
    """Scale of the anchors of the finest feature map, as a share of the image's side."""
    max_scale: float = 0.95
    """Scale of the anchors of the coarsest feature map, as a share of the image's side."""
    scales: tuple[float, ...] = ()
    """One scale per feature map, instead of equal steps from `min_scale` to `max_scale`."""
    reduce_boxes_in_lowest_layer: bool = True
    """Use three anchors per position in the finest feature map, independent of `aspect_ratios`."""
    base_anchor_height: Positive = 1.0
    """Height multiplied by the scales, as a share of the image's shorter side."""
    base_anchor_width: Positive = 1.0
    """Width multiplied by the scales, as a share of the image's shorter side."""
    height_stride: tuple[int, ...] = ()
    """Vertical distance between anchors in pixels, one value per feature map; empty derives it from the map's size."""
    width_stride: tuple[int, ...] = ()
    """Horizontal distance between anchors in pixels, one value per feature map; empty derives it from the map's
    size."""
    height_offset: tuple[int, ...] = ()
    """Distance of the first anchor's center from the image's upper edge in pixels, one value per feature map; empty is
    half a stride."""
    width_offset: tuple[int, ...] = ()
    """Distance of the first anchor's center from the image's left edge in pixels, one value per feature map; empty is
    half a stride."""
    interpolated_scale_aspect_ratio: NotNegative = 1.0
    """Aspect ratio of the anchor between two scales; 0 omits this anchor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_aspect_ratios(self.aspect_ratios)
        check(0 < self.min_scale <= self.max_scale, "min_scale", self.min_scale, "above 0, at most max_scale")
        for field in ("scales", "height_stride", "width_stride", "height_offset", "width_offset"):
            values = getattr(self, field)
            check(len(values) in (0, self.num_layers), field, values, f"none, or num_layers ({self.num_layers})")
            check(all(value >= 0 for value in values), field, values, "0 or more")
        for height, width in (("height_stride", "width_stride"), ("height_offset", "width_offset")):
            values = getattr(self, height)
            both = bool(values) == bool(getattr(self, width))
            check(both, height, values, f"set together with {width}, or neither")


@dataclass(frozen=True, kw_only=True)
class GridAnchorGenerator:
    """The same anchors, in pixels, at each position of one feature map (arXiv:1506.01497, 3.1.1)."""

    scales: tuple[float, ...]
    """Factors of `height` and `width`."""
    aspect_ratios: tuple[float, ...]
    """Aspect ratios (width / height) of the anchors at each position."""
    height: int = 256
    """Height multiplied by the scales, in pixels."""
    width: int = 256
    """Width multiplied by the scales, in pixels."""
    height_stride: int = 16
    """Vertical distance between anchors in pixels."""
    width_stride: int = 16
    """Horizontal distance between anchors in pixels."""
    height_offset: int = 0
    """Distance of the first anchor's center from the image's upper edge in pixels."""
    width_offset: int = 0
    """Distance of the first anchor's center from the image's left edge in pixels."""

    def __post_init__(self) -> None:
        check(bool(self.scales) and min(self.scales) > 0, "scales", self.scales, "at least one, all above 0")
        _check_aspect_ratios(self.aspect_ratios)
        check_fields(self, "1 or more", "height", "width", "height_stride", "width_stride")


AnchorGenerator = MultiscaleAnchorGenerator | SsdAnchorGenerator | GridAnchorGenerator

# --- targets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _BoxCoder(Ranged):
    y_scale: Positive = 10.0
    """Factor of vertical offsets."""
    x_scale: Positive = 10.0
    """Factor of horizontal offsets."""
    height_scale: Positive = 5.0
    """Factor of the logarithm of the height."""
    width_scale: Positive = 5.0
    """Factor of the logarithm of the width."""


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder(_BoxCoder):
    """Offsets from anchors (arXiv:1506.01497, equation 2), scaled to values near 1 for the loss."""

    UNTAGGED = True  # `typed_dict.py`: older configurations, without a choice of coders, stay valid


@dataclass(frozen=True, kw_only=True)
class KeypointBoxCoder(_BoxCoder):
    """Box offsets as in `FasterRcnnBoxCoder`, followed by the offsets of keypoints from the anchor's center.

    Keypoint offsets are relative to the anchor's sides.
    """

    num_keypoints: NotNegativeInt = 0
    """Number of keypoints per box."""


BoxCoder = FasterRcnnBoxCoder | KeypointBoxCoder


@dataclass(frozen=True, kw_only=True)
class ArgMaxMatcher:
    """Match each anchor to the ground-truth box with the highest IoU."""

    matched_threshold: float = 0.5
    """IoU at or above which an anchor is foreground."""
    unmatched_threshold: float = 0.5
    """IoU below which an anchor is background."""
    ignore_thresholds: bool = False
    """Make every anchor foreground, without thresholds."""
    negatives_lower_than_unmatched: bool = True
    """Ignore anchors between the thresholds; false makes them background and ignores those below."""
    force_match_for_each_row: bool = False
    """Make the best anchor of every box foreground, regardless of its IoU."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "matched_threshold", "unmatched_threshold")
        allowed = "at most matched_threshold"
        check(
            self.unmatched_threshold <= self.matched_threshold, "unmatched_threshold", self.unmatched_threshold, allowed
        )
        if not self.negatives_lower_than_unmatched:  # as in the reference: otherwise no anchor is background
            equal = self.unmatched_threshold == self.matched_threshold
            allowed = "true if both thresholds are equal"
            check(not equal, "negatives_lower_than_unmatched", "false", allowed)


_NECK = "feature_extractor.neck"

# --- the detector ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ssd(Ranged):
    """Single-shot detectors: SSD, RetinaNet, EfficientDet."""

    UNTAGGED = True  # `typed_dict.py`: older configurations, without a choice of detectors, stay valid

    image_resizer: ImageResizer
    """Resizing of images to the network's input."""
    feature_extractor: FeatureExtractor
    """Backbone and neck."""
    anchor_generator: AnchorGenerator
    """Reference boxes of the network's outputs."""
    box_predictor: BoxPredictor
    """Heads for boxes and classes."""
    loss: Loss
    """Losses of the training."""
    num_classes: PositiveInt | None = None
    """Number of classes; null uses the number in the label map. A number that differs from the label map is
    rejected."""
    box_coder: BoxCoder = FasterRcnnBoxCoder()
    """Encoding of boxes as offsets from anchors."""
    matcher: ArgMaxMatcher = ArgMaxMatcher()
    """Matching of anchors to ground-truth boxes."""
    post_processing: PostProcessing = PostProcessing()
    """Conversion of raw outputs to detections."""
    normalize_loss_by_num_matches: bool = True
    """Divide both losses by the number of foreground anchors in the batch."""
    normalize_loc_loss_by_codesize: bool = False
    """Divide the localization loss by 4, the number of coordinates of a box."""
    add_background_class: bool = True
    """Add a channel for background to the class outputs."""
    encode_background_as_zeros: bool = False
    """Set the target of background anchors to 0 in all channels, instead of 1 in the background channel."""
    negative_class_weight: Share = 1.0
    """Factor of the classification loss of background anchors."""
    freeze_batchnorm: bool = False
    """Normalize with the restored batch-norm statistics during training and do not update them; scales and offsets are
    still trained."""

    @property
    def max_detections(self) -> int:
        """Maximum number of detections per image."""
        return self.post_processing.batch_non_max_suppression.max_total_detections

    def check_export(self, export: Export) -> None:
        """Raise FieldError for formats to which the detector cannot be converted."""
        check_onnx_resizer(export, self.image_resizer.resize_method)
        nms = self.post_processing.batch_non_max_suppression
        if export.tflite and isinstance(self.box_coder, KeypointBoxCoder):
            refuse_export("tflite", list(export.tflite), "TensorFlow Lite's NMS cannot decode a keypoint_box_coder")
        if export.tflite and export.tflite_outputs == "detections" and nms.iou_threshold <= 0:
            refuse_export("tflite", list(export.tflite), "TensorFlow Lite's NMS needs an iou_threshold above 0")
        if export.tflite and export.tflite_outputs == "raw":
            if "int8" in export.tflite:
                refuse_export("tflite_outputs", "raw", "boxes in 8 bits are too coarse; with int8 use detections")
            if nms.use_class_agnostic_nms:
                refuse_export("tflite_outputs", "raw", "class-agnostic NMS is not evaluated on them; use detections")

    def __post_init__(self) -> None:
        super().__post_init__()
        neck, anchors = self.feature_extractor.neck, self.anchor_generator
        field = "anchor_generator"
        if isinstance(neck, ExtraFeatureLayers):
            got = type(anchors).__name__
            check(isinstance(anchors, SsdAnchorGenerator), field, got, "SsdAnchorGenerator for this neck", _NECK)
            assert isinstance(anchors, SsdAnchorGenerator)
            layers = (anchors.num_layers, neck.num_layers)
            allowed = f"{layers[1]}, as the neck"
            check(layers[0] == layers[1], f"{field}.num_layers", layers[0], allowed, f"{_NECK}.num_layers")
        elif isinstance(anchors, MultiscaleAnchorGenerator):
            assert isinstance(neck, Fpn | BiFpn)
            for level in ("min_level", "max_level"):
                got, wanted = getattr(anchors, level), getattr(neck, level)
                check(got == wanted, f"{field}.{level}", got, f"{wanted}, as the neck", f"{_NECK}.{level}")
        else:
            assert isinstance(neck, Fpn | BiFpn)
            num_levels = neck.max_level - neck.min_level + 1
            if isinstance(anchors, GridAnchorGenerator):
                got = type(anchors).__name__
                check(num_levels == 1, field, got, "another generator for a neck with several levels", _NECK)
                return
            allowed = f"{num_levels}, the number of levels of the neck"
            check(anchors.num_layers == num_levels, f"{field}.num_layers", anchors.num_layers, allowed, _NECK)
