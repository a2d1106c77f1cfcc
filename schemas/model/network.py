"""The network of a detector: image resizing, backbone, neck and heads.

Names and defaults are those of the Object Detection API's `pipeline.config`, so that an omitted field has the same
meaning in both. Lengths are pixels of the network's input unless a field's documentation states another unit.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from detloom.schemas.errors import NotNegative, Positive, PositiveInt, Ranged, check

MAX_IMAGE_SIDE = 8192  # a larger training image would not fit into the memory of any accelerator

MAX_REPETITIONS = 32  # of one part of the network; published detectors have at most 8 (EfficientDet-D7)
_MAX_MASK_SIDE = 512  # cells; published detectors have at most 33
_MAX_CHANNELS = 4096  # of one layer; published backbones have at most 2560 (EfficientNet-B7)

ResizeMethod = Literal["BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC", "AREA"]

# --- image resizing -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Resizer:
    resize_method: ResizeMethod = "BILINEAR"
    """Interpolation method."""
    half_pixel_centers: bool = False
    """Sample at pixel centers, like TensorFlow 2 and google/automl; false samples at pixel corners, like the Object
    Detection API, which shifts the image by up to half an original pixel."""


@dataclass(frozen=True, kw_only=True)
class FixedShapeResizer(_Resizer):
    """Resize to a fixed height and width, without keeping the aspect ratio."""

    height: int = 300
    """Height of the network's input in pixels."""
    width: int = 300
    """Width of the network's input in pixels."""

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            side = getattr(self, field)
            check(32 <= side <= MAX_IMAGE_SIDE, field, side, f"32 to {MAX_IMAGE_SIDE}")


@dataclass(frozen=True, kw_only=True)
class KeepAspectRatioResizer(_Resizer):
    """Resize the shorter side to `min_dimension`, or less if the longer side would exceed `max_dimension`."""

    min_dimension: int = 600
    """Target length of the shorter side in pixels."""
    max_dimension: int = 1024
    """Largest length of the longer side in pixels."""
    pad_to_max_dimension: bool = False
    """Pad at the bottom and at the right to a square of `max_dimension`, so that all images have the same size."""
    per_channel_pad_value: tuple[float, ...] = ()
    """Red, green and blue of the padding, after normalization; empty pads with 0."""

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
class L1Regularizer(Ranged):
    """L1 penalty: `weight` times the sum of absolute weights."""

    weight: NotNegative = 1.0
    """Factor of the penalty."""


@dataclass(frozen=True, kw_only=True)
class L2Regularizer(Ranged):
    """L2 penalty: `weight` / 2 times the sum of squared weights."""

    weight: NotNegative = 1.0
    """Factor of the penalty; it is halved as in the reference."""


Regularizer = L1Regularizer | L2Regularizer


@dataclass(frozen=True, kw_only=True)
class TruncatedNormalInitializer(Ranged):
    """Initial weights from a normal distribution, truncated at two standard deviations."""

    mean: float = 0.0
    """Mean of the weights."""
    stddev: NotNegative = 1.0
    """Standard deviation of the weights before truncation."""


@dataclass(frozen=True, kw_only=True)
class RandomNormalInitializer(Ranged):
    """Initial weights from a normal distribution."""

    mean: float = 0.0
    """Mean of the weights."""
    stddev: NotNegative = 1.0
    """Standard deviation of the weights."""


@dataclass(frozen=True, kw_only=True)
class VarianceScalingInitializer(Ranged):
    """Initial weights with a variance of `factor` / fan (arXiv:1502.01852)."""

    factor: Positive = 2.0
    """Variance times fan."""
    uniform: bool = False
    """Draw from a uniform instead of a truncated normal distribution."""
    mode: Literal["FAN_IN", "FAN_OUT", "FAN_AVG"] = "FAN_IN"
    """Fan: number of inputs, number of outputs, or their mean."""


Initializer = TruncatedNormalInitializer | RandomNormalInitializer | VarianceScalingInitializer


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Ranged):
    """Batch normalization (arXiv:1502.03167)."""

    decay: Annotated[float, "between 0 and 1"] = 0.999
    """Decay of the moving statistics per step; small data sets need less than 0.99."""
    center: bool = True
    """Learn an offset."""
    scale: bool = False
    """Learn a factor."""
    epsilon: Positive = 0.001
    """Added to the variance to avoid division by zero."""
    synchronized: bool = False
    """Compute the statistics over the images of all replicas instead of each replica's own."""


@dataclass(frozen=True, kw_only=True)
class ConvHyperparams:
    """Settings shared by a group of convolutions."""

    regularizer: Regularizer
    """Penalty of the kernels."""
    initializer: Initializer
    """Initial values of the kernels."""
    activation: Literal["NONE", "RELU", "RELU_6", "SWISH"] = "RELU"
    """Activation after batch norm."""
    batch_norm: BatchNorm | None = None
    """Batch normalization; null adds a bias instead."""
    force_use_bias: bool = False
    """Add a bias before batch norm as well."""


# --- backbone and neck ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExtraFeatureLayers(Ranged):
    """Neck of plain SSD (arXiv:1512.02325): stride-2 convolutions for coarser levels, without a top-down path."""

    num_layers: Annotated[int, "1 to 10"] = 6
    """Total number of feature maps, including those of the backbone."""


def _check_levels(min_level: int, max_level: int) -> None:
    check(2 <= min_level <= 5, "min_level", min_level, "2 to 5")
    check(min_level <= max_level <= 9, "max_level", max_level, f"{min_level} (min_level) to 9")


@dataclass(frozen=True, kw_only=True)
class Fpn:
    """Feature pyramid with a top-down path (arXiv:1612.03144); level l has a stride of 2**l pixels."""

    min_level: int = 3
    """Finest level."""
    max_level: int = 7
    """Coarsest level; stride-2 convolutions produce the levels beyond the backbone's."""
    additional_layer_depth: int = 256
    """Number of channels of each level, before `depth_multiplier` and `min_depth` are applied."""

    def __post_init__(self) -> None:
        _check_levels(self.min_level, self.max_level)
        check_channels(self, "additional_layer_depth", at_least=1)


@dataclass(frozen=True, kw_only=True)
class BiFpn:
    """Bidirectional feature pyramid, repeated (arXiv:1911.09070); level l has a stride of 2**l pixels."""

    min_level: int = 3
    """Finest level."""
    max_level: int = 7
    """Coarsest level."""
    num_iterations: int
    """Number of repetitions of the top-down and bottom-up paths."""
    num_filters: int
    """Number of channels of each level."""
    combine_method: Literal["fast_attention", "attention", "sum"] = "fast_attention"
    """Weighting of a node's inputs: `fast_attention` uses positive weights that add up to 1, `sum` uses no weights.
    `attention` equals `sum`, because the Object Detection API's softmax makes every weight 1."""
    features_of_last_blocks: bool = False
    """Take the features of each stride after its last block, like the paper and google/automl; false takes them after
    the block that is last in EfficientNet-B0, like the Object Detection API for every size."""

    def __post_init__(self) -> None:
        _check_levels(self.min_level, self.max_level)
        check(self.min_level < self.max_level, "min_level", self.min_level, "below max_level")
        _check_repetitions(self, "num_iterations", at_least=1)
        check_channels(self, "num_filters", at_least=1)


def _check_repetitions(owner: object, field: str, at_least: int) -> None:
    got = getattr(owner, field)
    check(at_least <= got <= MAX_REPETITIONS, field, got, f"{at_least} to {MAX_REPETITIONS}")


def check_channels(owner: object, *fields: str, at_least: int) -> None:
    """Raise FieldError unless each field, or each value of a tuple, is a number of channels that can be trained."""
    for field in fields:
        got = getattr(owner, field)
        values = got if isinstance(got, tuple) else (got,)
        in_range = all(at_least <= value <= _MAX_CHANNELS for value in values)
        check(in_range, field, got, f"{at_least} to {_MAX_CHANNELS} channels")


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
    "efficientnet-lite0",
    "efficientnet-lite1",
    "efficientnet-lite2",
    "efficientnet-lite3",
    "efficientnet-lite4",
]


def _check_pair(backbone: str, neck: Neck) -> None:
    """Raise FieldError unless the reference has a feature extractor with this backbone and neck."""
    if backbone.startswith("efficientnet"):
        kinds: tuple[type, ...] = (BiFpn,)
    elif backbone.startswith("resnet"):
        kinds = (Fpn,)
    else:
        kinds = (ExtraFeatureLayers, Fpn)
    names = " or ".join(kind.__name__ for kind in kinds)
    check(isinstance(neck, kinds), "neck", f"{type(neck).__name__} on {backbone}", names)


@dataclass(frozen=True, kw_only=True)
class FeatureExtractor(Ranged):
    """Backbone and neck, which compute feature maps of several strides from an image."""

    backbone: Backbone
    """Classification network that provides the feature maps."""
    neck: Neck
    """Layers that compute the detector's levels from the backbone's feature maps."""
    conv_hyperparams: ConvHyperparams
    """Settings of the neck's convolutions, and of the backbone's with `override_base_feature_extractor_hyperparams`."""
    depth_multiplier: Annotated[float, "0.1 to 2"] = 1.0
    """Factor of the backbone's channels (alpha of MobileNet), and with `Fpn` of the pyramid's channels."""
    min_depth: int = 16
    """Smallest number of channels of a layer after `depth_multiplier` is applied."""
    pad_to_multiple: PositiveInt = 1
    """Pad the resized image until its sides are multiples of this number of pixels."""
    use_explicit_padding: bool = False
    """Pad symmetrically before stride-2 convolutions instead of using TensorFlow's 'SAME' padding."""
    use_depthwise: bool = False
    """Use separable convolutions in the neck."""
    override_base_feature_extractor_hyperparams: bool = False
    """Use `conv_hyperparams` for the backbone too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self, "min_depth", at_least=1)
        _check_pair(self.backbone, self.neck)
        if self.backbone.startswith("efficientnet"):  # the reference rejects other values
            for field, only in (
                ("depth_multiplier", 1.0),
                ("use_explicit_padding", False),
                ("use_depthwise", False),
            ):
                got = getattr(self, field)
                check(got == only, field, got, f"{only} with {self.backbone}")


# --- heads ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _BoxPredictor(Ranged):
    conv_hyperparams: ConvHyperparams
    """Settings of the heads' convolutions."""
    num_layers_before_predictor: int = 0
    """Number of convolutions before the last one."""
    kernel_size: PositiveInt
    """Kernel size."""
    class_prediction_bias_init: float = 0.0
    """Initial bias of the class outputs; -4.6 corresponds to a score of 0.01 (arXiv:1708.02002, 4.1)."""
    use_dropout: bool
    """Apply dropout before the last convolution during training."""
    dropout_keep_probability: Annotated[float, "0.001 to 1"] = 0.8
    """Share of activations that dropout keeps."""
    use_depthwise: bool = False
    """Use separable convolutions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_repetitions(self, "num_layers_before_predictor", at_least=0)


@dataclass(frozen=True, kw_only=True)
class ConvolutionalBoxPredictor(_BoxPredictor):
    """Heads of plain SSD, with separate convolutions for each level; those before the last one are 1x1."""

    kernel_size: PositiveInt = 1
    """Kernel size of the last convolutions."""
    use_dropout: bool = True
    min_depth: int = 0
    """Smallest number of channels of the layers before the last."""
    max_depth: int = 0
    """Largest number of channels of the layers before the last; 0 adds no such layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self, "min_depth", "max_depth", at_least=0)


@dataclass(frozen=True, kw_only=True)
class WeightSharedConvolutionalBoxPredictor(_BoxPredictor):
    """Heads of RetinaNet and EfficientDet: convolutions shared by all levels, batch norm separate for each level."""

    kernel_size: PositiveInt = 3
    use_dropout: bool = False
    depth: int = 0
    """Number of channels of the layers before the last."""
    share_prediction_tower: bool = False
    """Share the layers before the last one between boxes and classes."""
    score_converter: Literal["IDENTITY", "SIGMOID"] = "IDENTITY"
    """Function applied to the class outputs inside the network."""
    apply_conv_hyperparams_to_heads: bool = False
    """Use `conv_hyperparams` for the last convolutions too."""
    apply_conv_hyperparams_pointwise: bool = False
    """Use initializer and regularizer for the pointwise part of separable convolutions too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channels(self, "depth", at_least=0)


@dataclass(frozen=True, kw_only=True)
class MaskRcnnBoxPredictor(Ranged):
    """Heads of the second stage: one fully connected layer for the classes and one for the boxes.

    They see the mean of the features of a region. A third head predicts masks from the features themselves.
    """

    fc_hyperparams: ConvHyperparams
    """Settings of both layers; the activation is not used."""
    use_dropout: bool = False
    """Apply dropout before both layers during training."""
    dropout_keep_probability: Annotated[float, "0.001 to 1"] = 0.5
    """Share of activations that dropout keeps."""
    share_box_across_classes: bool = False
    """Predict one box per region instead of one per class."""
    predict_instance_masks: bool = False
    """Add the head for masks (Mask R-CNN); needs `number_of_stages: 3`."""
    conv_hyperparams: ConvHyperparams | None = None
    """Settings of the convolutions of the mask head; required with `predict_instance_masks`, else not used."""
    mask_height: PositiveInt = 15
    """Rows of a mask."""
    mask_width: PositiveInt = 15
    """Columns of a mask."""
    mask_prediction_num_conv_layers: PositiveInt = 2
    """Number of 3 x 3 convolutions of the mask head, with the last one, which has a channel per class."""
    mask_prediction_conv_depth: int = 256
    """Channels of these convolutions; 0 computes them from the channels of the features and the number of classes."""
    masks_are_class_agnostic: bool = False
    """Predict one mask per region instead of one per class."""
    convolve_then_upsample_masks: bool = False
    """Enlarge the maps (nearest neighbour) before the last but one convolution; false enlarges the features of the
    region (bilinear) before the first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("mask_height", "mask_width"):
            side = getattr(self, field)
            check(side <= _MAX_MASK_SIDE, field, side, f"at most {_MAX_MASK_SIDE}")
        check_channels(self, "mask_prediction_conv_depth", at_least=0)
        has_layers = self.conv_hyperparams is not None or not self.predict_instance_masks
        check(has_layers, "conv_hyperparams", "null", "a value with predict_instance_masks", "predict_instance_masks")


BoxPredictor = ConvolutionalBoxPredictor | WeightSharedConvolutionalBoxPredictor
