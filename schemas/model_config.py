"""The detector: its network, anchors, targets, losses and post-processing.

Names and defaults are those of the Object Detection API's `pipeline.config`, so that a field left out means here what
it means there.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields
from detloom.schemas.network_config import BiFpn, BoxPredictor, ExtraFeatureLayers, FeatureExtractor, Fpn, ImageResizer

# --- anchors --------------------------------------------------------------------------------------------------------


def _check_aspect_ratios(ratios: tuple[float, ...]) -> None:
    check(bool(ratios) and min(ratios) > 0, "aspect_ratios", ratios, "at least one, all above 0")


@dataclass(frozen=True, kw_only=True)
class MultiscaleAnchorGenerator:
    """Anchors of level l have sides of anchor_scale * 2**l * 2**(i / scales_per_octave) pixels."""

    aspect_ratios: tuple[float, ...]
    """Width / height of the anchors at each place."""
    min_level: int = 3
    """Finest level; the neck's."""
    max_level: int = 7
    """Coarsest level; the neck's."""
    anchor_scale: float = 4.0
    """Side of a square anchor, in strides of its level."""
    scales_per_octave: int = 2
    """Sizes of anchor at each place."""

    def __post_init__(self) -> None:
        _check_aspect_ratios(self.aspect_ratios)
        check_fields(self, "above 0", "anchor_scale")
        check(1 <= self.scales_per_octave <= 8, "scales_per_octave", self.scales_per_octave, "1 to 8")
        check(0 <= self.min_level <= self.max_level <= 9, "min_level", self.min_level, "0 to max_level, at most 9")


@dataclass(frozen=True, kw_only=True)
class SsdAnchorGenerator:
    """Anchors of plain SSD (arXiv:1512.02325, 2.2): one scale a feature map, and one in between for square anchors."""

    aspect_ratios: tuple[float, ...]
    """Width / height of the anchors at each place."""
    num_layers: int = 6
    """Feature maps; the neck's."""
    min_scale: float = 0.2
    """Scale of the finest map's anchors, as a share of the picture's side."""
    max_scale: float = 0.95
    """Scale of the coarsest map's anchors."""
    scales: tuple[float, ...] = ()
    """One scale a feature map, instead of `min_scale` to `max_scale` in equal steps."""
    reduce_boxes_in_lowest_layer: bool = True
    """Three anchors a place in the finest map, whatever `aspect_ratios` says."""
    base_anchor_height: float = 1.0
    """Height that scales multiply, as a share of the picture's shorter side."""
    base_anchor_width: float = 1.0
    """Width that scales multiply, as a share of the picture's shorter side."""
    height_stride: tuple[int, ...] = ()
    """Pixels between anchors, one a feature map; empty takes them from the maps' sizes."""
    width_stride: tuple[int, ...] = ()
    """Pixels between anchors, one a feature map; empty takes them from the maps' sizes."""
    height_offset: tuple[int, ...] = ()
    """Pixels from the picture's edge to the first anchor's centre, one a feature map; empty is half a stride."""
    width_offset: tuple[int, ...] = ()
    """Pixels from the picture's edge to the first anchor's centre, one a feature map; empty is half a stride."""
    interpolated_scale_aspect_ratio: float = 1.0
    """Aspect ratio of the anchor between two scales; 0 leaves it out."""

    def __post_init__(self) -> None:
        _check_aspect_ratios(self.aspect_ratios)
        check(1 <= self.num_layers <= 10, "num_layers", self.num_layers, "1 to 10")
        check(0 < self.min_scale <= self.max_scale, "min_scale", self.min_scale, "above 0, at most max_scale")
        check_fields(self, "above 0", "base_anchor_height", "base_anchor_width")
        check_fields(self, "0 or more", "interpolated_scale_aspect_ratio")
        for field in ("scales", "height_stride", "width_stride", "height_offset", "width_offset"):
            values = getattr(self, field)
            check(len(values) in (0, self.num_layers), field, values, f"none, or num_layers ({self.num_layers})")
            check(all(value >= 0 for value in values), field, values, "0 or more")
        for height, width in (("height_stride", "width_stride"), ("height_offset", "width_offset")):
            both = bool(getattr(self, height)) == bool(getattr(self, width))
            check(both, height, getattr(self, height), f"set together with {width}, or neither")


@dataclass(frozen=True, kw_only=True)
class GridAnchorGenerator:
    """The same anchors at each place of one feature map, in pixels (arXiv:1506.01497, 3.1.1)."""

    scales: tuple[float, ...]
    """Factors of `height` and `width`."""
    aspect_ratios: tuple[float, ...]
    """Width / height of the anchors at each place."""
    height: int = 256
    """Height that scales multiply, in pixels."""
    width: int = 256
    """Width that scales multiply, in pixels."""
    height_stride: int = 16
    """Pixels between anchors, from top to bottom."""
    width_stride: int = 16
    """Pixels between anchors, from left to right."""
    height_offset: int = 0
    """Pixels from the picture's upper edge to the first anchor's centre."""
    width_offset: int = 0
    """Pixels from the picture's left edge to the first anchor's centre."""

    def __post_init__(self) -> None:
        check(bool(self.scales) and min(self.scales) > 0, "scales", self.scales, "at least one, all above 0")
        _check_aspect_ratios(self.aspect_ratios)
        check_fields(self, "1 or more", "height", "width", "height_stride", "width_stride")


AnchorGenerator = MultiscaleAnchorGenerator | SsdAnchorGenerator | GridAnchorGenerator

# --- targets --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder:
    """Offsets from anchors (arXiv:1506.01497, equation 2), multiplied so that the loss sees numbers near 1."""

    UNTAGGED = True  # `typed_dict.py`: configurations from before there were other coders stay what they are

    y_scale: float = 10.0
    """Factor of the centre's vertical offset."""
    x_scale: float = 10.0
    """Factor of the centre's horizontal offset."""
    height_scale: float = 5.0
    """Factor of the logarithm of the height."""
    width_scale: float = 5.0
    """Factor of the logarithm of the width."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "y_scale", "x_scale", "height_scale", "width_scale")


@dataclass(frozen=True, kw_only=True)
class KeypointBoxCoder:
    """Offsets of boxes as in `FasterRcnnBoxCoder`, then those of keypoints from the anchor's centre, in its sides."""

    num_keypoints: int = 0
    """Keypoints of a box."""
    y_scale: float = 10.0
    """Factor of the vertical offset of centre and keypoints."""
    x_scale: float = 10.0
    """Factor of the horizontal offset of centre and keypoints."""
    height_scale: float = 5.0
    """Factor of the logarithm of the height."""
    width_scale: float = 5.0
    """Factor of the logarithm of the width."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "num_keypoints")
        check_fields(self, "above 0", "y_scale", "x_scale", "height_scale", "width_scale")


BoxCoder = FasterRcnnBoxCoder | KeypointBoxCoder


@dataclass(frozen=True, kw_only=True)
class ArgMaxMatcher:
    """Each anchor is matched to the box with which it overlaps most."""

    matched_threshold: float = 0.5
    """IoU from which an anchor is foreground."""
    unmatched_threshold: float = 0.5
    """IoU below which an anchor is background."""
    ignore_thresholds: bool = False
    """No thresholds: every anchor is foreground."""
    negatives_lower_than_unmatched: bool = True
    """Ignore anchors between the thresholds; False makes them background and ignores those below."""
    force_match_for_each_row: bool = False
    """Make the best anchor of every box foreground, whatever its IoU."""

    def __post_init__(self) -> None:
        check_fields(self, "0 to 1", "matched_threshold", "unmatched_threshold")
        allowed = "at most matched_threshold"
        check(
            self.unmatched_threshold <= self.matched_threshold, "unmatched_threshold", self.unmatched_threshold, allowed
        )
        if not self.negatives_lower_than_unmatched:  # the reference refuses it too: nothing would be background
            equal = self.unmatched_threshold == self.matched_threshold
            allowed = "true where both thresholds are equal"
            check(not equal, "negatives_lower_than_unmatched", "false", allowed)


# --- losses ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WeightedSigmoid:
    """Cross-entropy of independent classes."""


@dataclass(frozen=True, kw_only=True)
class WeightedSoftmax:
    """Cross-entropy of exclusive classes."""

    logit_scale: float = 1.0
    """Divides the logits."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "logit_scale")


@dataclass(frozen=True, kw_only=True)
class SigmoidFocal:
    """Focal loss (arXiv:1708.02002, equation 5)."""

    gamma: float = 2.0
    """How much less an anchor that is already right counts."""
    alpha: float | None = None
    """Weight of positives, 1 - alpha that of negatives; None weighs both with 1."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "gamma")
        check_fields(self, "0 to 1", "alpha")


@dataclass(frozen=True, kw_only=True)
class PenaltyReducedFocal:
    """Focal loss of a heat map of Gaussians (arXiv:1904.07850, equation 1); CenterNet only."""

    alpha: float = 2.0
    """How much less a cell that is already right counts."""
    beta: float = 4.0
    """How much less a cell near an object's centre counts as background."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "alpha", "beta")


ClassificationLoss = WeightedSigmoid | WeightedSoftmax | SigmoidFocal | PenaltyReducedFocal


@dataclass(frozen=True, kw_only=True)
class WeightedL2:
    """Half the squared error of the offsets."""


@dataclass(frozen=True, kw_only=True)
class WeightedSmoothL1:
    """Huber loss of the offsets: quadratic up to `delta`, linear beyond."""

    delta: float = 1.0
    """Error at which the loss becomes linear."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "delta")


@dataclass(frozen=True, kw_only=True)
class WeightedL1:
    """The error's size; CenterNet only."""


@dataclass(frozen=True, kw_only=True)
class WeightedIou:
    """1 - IoU of the decoded boxes."""


@dataclass(frozen=True, kw_only=True)
class WeightedGiou:
    """1 - generalized IoU of the decoded boxes (arXiv:1902.09630)."""


@dataclass(frozen=True, kw_only=True)
class WeightedCiou:
    """1 - complete IoU of the decoded boxes (arXiv:1911.08287): IoU, distance of the centres and aspect ratio."""


LocalizationLoss = WeightedL2 | WeightedSmoothL1 | WeightedL1 | WeightedIou | WeightedGiou | WeightedCiou


@dataclass(frozen=True, kw_only=True)
class HardExampleMiner:
    """Count only the anchors with the highest loss, after NMS among them (arXiv:1604.03540)."""

    num_hard_examples: int = 64
    """Most anchors of a picture that count; 0 sets no limit."""
    iou_threshold: float = 0.7
    """IoU above which the lesser of two anchors is left out."""
    loss_type: Literal["BOTH", "CLASSIFICATION", "LOCALIZATION"] = "BOTH"
    """The loss by which anchors are ranked."""
    max_negatives_per_positive: int = 0
    """Most background anchors for each foreground anchor; 0 sets no limit."""
    min_negatives_per_image: int = 0
    """Fewest background anchors of a picture."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "num_hard_examples", "max_negatives_per_positive", "min_negatives_per_image")
        check_fields(self, "0 to 1", "iou_threshold")


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What training minimizes, apart from regularization."""

    classification_loss: ClassificationLoss
    """Of the class outputs of all anchors."""
    localization_loss: LocalizationLoss
    """Of the box offsets of foreground anchors."""
    hard_example_miner: HardExampleMiner | None = None
    """Choice of the anchors that count; None takes all."""
    classification_weight: float = 1.0
    """Factor of the classification loss."""
    localization_weight: float = 1.0
    """Factor of the localization loss."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "classification_weight", "localization_weight")
        for field, of_center_net in (("classification_loss", PenaltyReducedFocal), ("localization_loss", WeightedL1)):
            loss = getattr(self, field)
            check(not isinstance(loss, of_center_net), field, type(loss).__name__, "another: this one is CenterNet's")
        if self.hard_example_miner is not None:  # the reference refuses it too: both choose among the negatives
            is_focal = isinstance(self.classification_loss, SigmoidFocal)
            check(not is_focal, "hard_example_miner", "one with SigmoidFocal", "another classification loss")


# --- post-processing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BatchNonMaxSuppression:
    """Which of the overlapping boxes are kept."""

    score_threshold: float = 0.0
    """Boxes with a lower score are dropped first."""
    iou_threshold: float = 0.6
    """IoU above which the box with the lower score is suppressed."""
    max_detections_per_class: int = 100
    """Most boxes of a class in a picture."""
    max_total_detections: int = 100
    """Most boxes in a picture."""
    use_class_agnostic_nms: bool = False
    """Suppress across classes."""
    max_classes_per_detection: int = 1
    """Classes reported for a box, with class-agnostic suppression."""
    soft_nms_sigma: float = 0.0
    """Lower the scores of overlapping boxes by a Gaussian of this width instead (arXiv:1704.04503); 0 suppresses."""

    def __post_init__(self) -> None:
        check_fields(self, "0 up to 1", "score_threshold")
        check_fields(self, "0 to 1", "iou_threshold")
        check_fields(self, "0 or more", "soft_nms_sigma")
        check_fields(self, "1 or more", "max_detections_per_class", "max_total_detections", "max_classes_per_detection")
        of_class, total = self.max_detections_per_class, self.max_total_detections
        allowed = f"at most max_total_detections ({total})"
        check(of_class <= total, "max_detections_per_class", of_class, allowed, "max_total_detections")


@dataclass(frozen=True, kw_only=True)
class PostProcessing:
    """From raw outputs to detections."""

    batch_non_max_suppression: BatchNonMaxSuppression = BatchNonMaxSuppression()
    """Non-maximum suppression."""
    score_converter: Literal["IDENTITY", "SIGMOID", "SOFTMAX"] = "IDENTITY"
    """From class outputs to scores."""
    logit_scale: float = 1.0
    """Divides the class outputs before the conversion."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "logit_scale")


_NECK = "feature_extractor.neck"

# --- the whole ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ssd:
    """Single-shot detectors: SSD, RetinaNet, EfficientDet."""

    UNTAGGED = True  # `typed_dict.py`: configurations from before there were other detectors stay what they are

    image_resizer: ImageResizer
    """From pictures to the network's input."""
    feature_extractor: FeatureExtractor
    """Backbone and neck."""
    anchor_generator: AnchorGenerator
    """The boxes that outputs are relative to."""
    box_predictor: BoxPredictor
    """The heads."""
    loss: Loss
    """What training minimizes."""
    num_classes: int | None = None
    """Classes of the heads; None takes the label map's number, another number than the label map's is refused."""
    box_coder: BoxCoder = FasterRcnnBoxCoder()
    """From boxes to offsets."""
    matcher: ArgMaxMatcher = ArgMaxMatcher()
    """From boxes to anchors."""
    post_processing: PostProcessing = PostProcessing()
    """From raw outputs to detections."""
    normalize_loss_by_num_matches: bool = True
    """Divide both losses by the number of foreground anchors in the batch."""
    normalize_loc_loss_by_codesize: bool = False
    """Divide the localization loss by 4, the numbers of a box."""
    add_background_class: bool = True
    """Give the heads one more channel, for background."""
    encode_background_as_zeros: bool = False
    """The target of background anchors is 0 in all channels, instead of 1 in the background's."""
    negative_class_weight: float = 1.0
    """Factor of the classification loss of background anchors."""
    freeze_batchnorm: bool = False
    """Normalize with the restored statistics in training too, and leave them so; factors and offsets are trained."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "num_classes")
        check_fields(self, "0 to 1", "negative_class_weight")
        neck, anchors = self.feature_extractor.neck, self.anchor_generator
        field = "anchor_generator"
        if isinstance(neck, ExtraFeatureLayers):
            got = type(anchors).__name__
            check(isinstance(anchors, SsdAnchorGenerator), field, got, "SsdAnchorGenerator for this neck", _NECK)
            assert isinstance(anchors, SsdAnchorGenerator)
            layers = (anchors.num_layers, neck.num_layers)
            allowed = f"the neck's {layers[1]}"
            check(layers[0] == layers[1], f"{field}.num_layers", layers[0], allowed, f"{_NECK}.num_layers")
        elif isinstance(anchors, MultiscaleAnchorGenerator):
            assert isinstance(neck, Fpn | BiFpn)
            for level in ("min_level", "max_level"):
                got, wanted = getattr(anchors, level), getattr(neck, level)
                check(got == wanted, f"{field}.{level}", got, f"the neck's {wanted}", f"{_NECK}.{level}")
        else:
            assert isinstance(neck, Fpn | BiFpn)
            num_levels = neck.max_level - neck.min_level + 1
            if isinstance(anchors, GridAnchorGenerator):
                got = type(anchors).__name__
                check(num_levels == 1, field, got, "another generator for a neck of several levels", _NECK)
                return
            allowed = f"{num_levels}, the neck's levels"
            check(anchors.num_layers == num_levels, f"{field}.num_layers", anchors.num_layers, allowed, _NECK)
