"""The network of a detector: image resizing, backbone, neck and heads.

Names and defaults are those of the Object Detection API's `pipeline.config`, so that a field left out means here what
it means there. Lengths are pixels of the network's input unless a field says otherwise.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields

MAX_IMAGE_SIDE = 8192  # more would not fit any accelerator's memory as a training picture

ResizeMethod = Literal["BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC", "AREA"]

# --- image resizing -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer:
    """Resize to one height and width; the picture's aspect ratio is not kept."""

    height: int = 300
    """Height of the network's input in pixels."""
    width: int = 300
    """Width of the network's input in pixels."""
    resize_method: ResizeMethod = "BILINEAR"
    """How pixels are interpolated."""
    half_pixel_centers: bool = False
    """Sample at pixels' centres, as TensorFlow 2 and google/automl; else at their corners, as the Object Detection API:
    up to half a pixel of the original picture further up and left."""

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            side = getattr(self, field)
            check(32 <= side <= MAX_IMAGE_SIDE, field, side, f"32 to {MAX_IMAGE_SIDE}")


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer:
    """Resize so that the shorter side is `min_dimension`, or less where the longer would exceed `max_dimension`."""

    min_dimension: int = 600
    """Wanted length of the shorter side in pixels."""
    max_dimension: int = 1024
    """Largest length of the longer side in pixels."""
    resize_method: ResizeMethod = "BILINEAR"
    """How pixels are interpolated."""
    half_pixel_centers: bool = False
    """Sample at pixels' centres, as TensorFlow 2 and google/automl; else at their corners, as the Object Detection API:
    up to half a pixel of the original picture further up and left."""
    pad_to_max_dimension: bool = False
    """Pad below and to the right to a square of `max_dimension`, so that all pictures have one size."""
    per_channel_pad_value: tuple[float, ...] = ()
    """Red, green and blue of the padding, in the network's units: it comes after normalization; empty pads with 0."""

    def __post_init__(self) -> None:
        for field in ("min_dimension", "max_dimension"):
            side = getattr(self, field)
            check(32 <= side <= MAX_IMAGE_SIDE, field, side, f"32 to {MAX_IMAGE_SIDE}")
        check(self.min_dimension <= self.max_dimension, "min_dimension", self.min_dimension, "at most max_dimension")
        values = self.per_channel_pad_value
        check(len(values) in (0, 3), "per_channel_pad_value", values, "none, or three numbers")


ImageResizer = FixedShapeResizer | KeepAspectRatioResizer

# --- convolutions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class L1Regularizer:
    """Adds `weight` times the sum of absolute weights to the loss."""

    weight: float = 1.0
    """Factor of the penalty, without unit."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "weight")


@dataclass(frozen=True, kw_only=True)
class L2Regularizer:
    """Adds `weight` / 2 times the sum of squared weights to the loss."""

    weight: float = 1.0
    """Factor of the penalty, without unit; the half is the reference's."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "weight")


Regularizer = L1Regularizer | L2Regularizer


@dataclass(frozen=True, kw_only=True)
class TruncatedNormalInitializer:
    """First weights from a normal distribution, drawn again beyond two standard deviations."""

    mean: float = 0.0
    """Mean of the weights."""
    stddev: float = 1.0
    """Standard deviation of the weights before truncation."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "stddev")


@dataclass(frozen=True, kw_only=True)
class RandomNormalInitializer:
    """First weights from a normal distribution."""

    mean: float = 0.0
    """Mean of the weights."""
    stddev: float = 1.0
    """Standard deviation of the weights."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "stddev")


@dataclass(frozen=True, kw_only=True)
class VarianceScalingInitializer:
    """First weights with a variance of `factor` / fan (arXiv:1502.01852)."""

    factor: float = 2.0
    """Variance times fan."""
    uniform: bool = False
    """Draw from a uniform instead of a truncated normal distribution."""
    mode: Literal["FAN_IN", "FAN_OUT", "FAN_AVG"] = "FAN_IN"
    """Which fan: inputs, outputs, or their mean."""

    def __post_init__(self) -> None:
        check_fields(self, "above 0", "factor")


Initializer = TruncatedNormalInitializer | RandomNormalInitializer | VarianceScalingInitializer


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Batch normalization (arXiv:1502.03167)."""

    decay: float = 0.999
    """Share of the old moving statistics kept at each step; small data sets need less than 0.99."""
    center: bool = True
    """Learn an offset."""
    scale: bool = False
    """Learn a factor."""
    epsilon: float = 0.001
    """Added to the variance, against division by zero."""
    synchronized: bool = False
    """Normalize by the pictures of all replicas instead of each replica's own."""

    def __post_init__(self) -> None:
        check_fields(self, "between 0 and 1", "decay")
        check_fields(self, "above 0", "epsilon")


@dataclass(frozen=True, kw_only=True)
class ConvHyperparams:
    """What a group of convolutions has in common."""

    regularizer: Regularizer
    """Penalty on the kernels."""
    initializer: Initializer
    """First values of the kernels."""
    activation: Literal["NONE", "RELU", "RELU_6", "SWISH"] = "RELU"
    """Applied after batch norm."""
    batch_norm: BatchNorm | None = None
    """None adds a bias instead."""
    force_use_bias: bool = False
    """Add a bias before batch norm as well."""


# --- backbone and neck ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExtraFeatureLayers:
    """Plain SSD (arXiv:1512.02325): coarser levels by stride-2 convolutions, no top-down path."""

    num_layers: int = 6
    """Feature maps in all, those of the backbone included."""

    def __post_init__(self) -> None:
        check(1 <= self.num_layers <= 10, "num_layers", self.num_layers, "1 to 10")


def _check_levels(min_level: int, max_level: int) -> None:
    check(2 <= min_level <= 5, "min_level", min_level, "2 to 5")
    check(min_level <= max_level <= 9, "max_level", max_level, "min_level to 9")


@dataclass(frozen=True, kw_only=True)
class Fpn:
    """Feature pyramid with a top-down path (arXiv:1612.03144); level l has a stride of 2**l pixels."""

    min_level: int = 3
    """Finest level."""
    max_level: int = 7
    """Coarsest level; those beyond the backbone's come from stride-2 convolutions."""
    additional_layer_depth: int = 256
    """Channels of each level, before `depth_multiplier` and `min_depth`."""

    def __post_init__(self) -> None:
        _check_levels(self.min_level, self.max_level)
        check_fields(self, "1 or more", "additional_layer_depth")


@dataclass(frozen=True, kw_only=True)
class BiFpn:
    """Bidirectional feature pyramid, repeated (arXiv:1911.09070); level l has a stride of 2**l pixels."""

    min_level: int = 3
    """Finest level."""
    max_level: int = 7
    """Coarsest level."""
    num_iterations: int
    """How often the top-down and bottom-up paths are repeated."""
    num_filters: int
    """Channels of each level."""
    combine_method: Literal["fast_attention", "attention", "sum"] = "fast_attention"
    """How inputs of a node are weighted: `fast_attention` by positive weights that add up to 1, `sum` not at all.
    `attention` is a sum too: the Object Detection API's softmax makes every weight 1."""
    features_of_last_blocks: bool = False
    """Take each stride's features behind its last block, as the paper and google/automl; else behind the block that is
    the last of EfficientNet-B0, as the Object Detection API does for every size."""

    def __post_init__(self) -> None:
        _check_levels(self.min_level, self.max_level)
        check(self.min_level < self.max_level, "min_level", self.min_level, "below max_level")
        check_fields(self, "1 or more", "num_iterations", "num_filters")


Neck = ExtraFeatureLayers | Fpn | BiFpn
Backbone = Literal[
    "mobilenet_v1",
    "mobilenet_v2",
    "resnet50_v1",
    "resnet101_v1",
    "resnet152_v1",
    "efficientnet-b0",
    "efficientnet-b1",
    "efficientnet-b2",
    "efficientnet-b3",
    "efficientnet-b4",
    "efficientnet-b5",
    "efficientnet-b6",
    "efficientnet-b7",
]


def _check_pair(backbone: str, neck: Neck) -> None:
    """Which necks a backbone is made for, as the reference's feature extractors."""
    if backbone.startswith("efficientnet"):
        kinds: tuple[type, ...] = (BiFpn,)
    elif backbone.startswith("resnet"):
        kinds = (Fpn,)
    else:
        kinds = (ExtraFeatureLayers, Fpn)
    names = " or ".join(kind.__name__ for kind in kinds)
    check(isinstance(neck, kinds), "neck", f"{type(neck).__name__} on {backbone}", names)


@dataclass(frozen=True, kw_only=True)
class FeatureExtractor:
    """Backbone and neck: from pictures to feature maps of several strides."""

    backbone: Backbone
    """The classification network whose inner feature maps are used."""
    neck: Neck
    """What makes the detector's levels from them."""
    conv_hyperparams: ConvHyperparams
    """Of the neck's convolutions, and of the backbone's with `override_base_feature_extractor_hyperparams`."""
    depth_multiplier: float = 1.0
    """Factor of the backbone's channels (alpha of MobileNet), and of the pyramid's with `Fpn`."""
    min_depth: int = 16
    """Fewest channels of any layer after `depth_multiplier`."""
    pad_to_multiple: int = 1
    """Pad the resized picture so that its sides are multiples of this, in pixels."""
    use_explicit_padding: bool = False
    """Pad before stride-2 convolutions symmetrically instead of as TensorFlow's 'SAME'."""
    use_depthwise: bool = False
    """Separable instead of full convolutions in the neck."""
    override_base_feature_extractor_hyperparams: bool = False
    """Use `conv_hyperparams` for the backbone too."""

    def __post_init__(self) -> None:
        check(0.1 <= self.depth_multiplier <= 2, "depth_multiplier", self.depth_multiplier, "0.1 to 2")
        check_fields(self, "1 or more", "min_depth", "pad_to_multiple")
        _check_pair(self.backbone, self.neck)
        if self.backbone.startswith("efficientnet"):  # the reference refuses them
            for field, only in (
                ("depth_multiplier", 1.0),
                ("use_explicit_padding", False),
                ("use_depthwise", False),
            ):
                got = getattr(self, field)
                check(got == only, field, got, f"{only} with {self.backbone}")


# --- heads ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConvolutionalBoxPredictor:
    """Heads of plain SSD: each level has convolutions of its own."""

    conv_hyperparams: ConvHyperparams
    """Of the heads' convolutions."""
    min_depth: int = 0
    """Fewest channels of the layers before the last."""
    max_depth: int = 0
    """Most channels of the layers before the last; 0 adds no such layer."""
    num_layers_before_predictor: int = 0
    """1x1 convolutions before the last."""
    use_dropout: bool = True
    """Drop activations before the last convolution in training."""
    dropout_keep_probability: float = 0.8
    """Share of activations that dropout keeps."""
    kernel_size: int = 1
    """Side of the last convolutions' kernels."""
    class_prediction_bias_init: float = 0.0
    """First bias of the class outputs; -4.6 is a score of 0.01 (arXiv:1708.02002, 4.1)."""
    use_depthwise: bool = False
    """Separable instead of full convolutions."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "min_depth", "max_depth", "num_layers_before_predictor")
        check_fields(self, "1 or more", "kernel_size")
        check_fields(self, "above 0, at most 1", "dropout_keep_probability")


@dataclass(frozen=True, kw_only=True)
class WeightSharedConvolutionalBoxPredictor:
    """Heads of RetinaNet and EfficientDet: convolutions shared by all levels, batch norm each level's own."""

    conv_hyperparams: ConvHyperparams
    """Of the heads' convolutions."""
    depth: int = 0
    """Channels of the layers before the last."""
    num_layers_before_predictor: int = 0
    """Convolutions before the last."""
    kernel_size: int = 3
    """Side of the kernels."""
    class_prediction_bias_init: float = 0.0
    """First bias of the class outputs; -4.6 is a score of 0.01 (arXiv:1708.02002, 4.1)."""
    use_dropout: bool = False
    """Drop activations before the last convolution in training."""
    dropout_keep_probability: float = 0.8
    """Share of activations that dropout keeps."""
    share_prediction_tower: bool = False
    """One stack of layers before the last for boxes and classes, instead of one each."""
    use_depthwise: bool = False
    """Separable instead of full convolutions."""
    score_converter: Literal["IDENTITY", "SIGMOID"] = "IDENTITY"
    """Applied to class outputs inside the network."""
    apply_conv_hyperparams_to_heads: bool = False
    """Use `conv_hyperparams` for the last convolutions too."""
    apply_conv_hyperparams_pointwise: bool = False
    """Put initializer and penalty on the pointwise part of separable convolutions too."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "depth", "num_layers_before_predictor")
        check_fields(self, "1 or more", "kernel_size")
        check_fields(self, "above 0, at most 1", "dropout_keep_probability")


BoxPredictor = ConvolutionalBoxPredictor | WeightSharedConvolutionalBoxPredictor
