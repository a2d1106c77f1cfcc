"""EfficientNet (arXiv:1905.11946) without classifier, as the Object Detection API and google/automl build it.

Layers have the same names as in `keras.applications`. `top_conv`, `top_bn` and blocks after the last feature map are
not built; the reference keeps them in the model but never uses them.

EfficientNet-Lite is google/automl's variant for phones and boards (backbone/efficientnet_lite_builder.py there): no
squeeze and excitation, ReLU6 instead of swish, and neither the channels of the stem nor the repetitions of the first
and last stage are scaled.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import keras

from detloom.schemas.model.network import (
    BatchNorm,
    BiFpn,
    ConvHyperparams,
    FeatureExtractor,
    L2Regularizer,
    VarianceScalingInitializer,
)
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, build_regularizer, round_channels

# Kernel size, expansion, channels, repetitions, stride of the first block: B0, table 1 of the paper.
_STAGES = (
    (3, 1, 16, 1, 1),
    (3, 6, 24, 2, 2),
    (5, 6, 40, 2, 2),
    (3, 6, 80, 3, 2),
    (5, 6, 112, 3, 1),
    (5, 6, 192, 4, 2),
    (3, 6, 320, 1, 1),
)
_LEVEL_BY_STAGE = {1: 2, 2: 3, 4: 4, 6: 5}  # the last stage of each stride
# Factors of channels and repetitions, from efficientnet_builder.py and efficientnet_lite_builder.py of google/automl.
_SCALING = {
    "efficientnet-b0": (1.0, 1.0),
    "efficientnet-b1": (1.0, 1.1),
    "efficientnet-b2": (1.1, 1.2),
    "efficientnet-b3": (1.2, 1.4),
    "efficientnet-b4": (1.4, 1.8),
    "efficientnet-b5": (1.6, 2.2),
    "efficientnet-b6": (1.8, 2.6),
    "efficientnet-b7": (2.0, 3.1),
    "efficientnet-lite0": (1.0, 1.0),
    "efficientnet-lite1": (1.0, 1.1),
    "efficientnet-lite2": (1.1, 1.2),
    "efficientnet-lite3": (1.2, 1.4),
    "efficientnet-lite4": (1.4, 1.8),
}
_STEM_CHANNELS = 32
_SE_RATIO = 0.25  # of the input channels of the block
_DROP_CONNECT_RATE = 0.2  # at the end of the network; it increases linearly from 0 at the beginning
_OWN_HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=1e-5),
    initializer=VarianceScalingInitializer(factor=2.0, mode="FAN_OUT"),
    activation="SWISH",
    batch_norm=BatchNorm(decay=0.99, scale=True, epsilon=1e-3),
)


@dataclass(frozen=True)
class EfficientNetBlock:
    """One inverted residual."""

    name: str
    kernel_size: int
    expansion: int
    channels_in: int
    channels_out: int
    stride: int
    drop_rate: float
    level: int | None
    """The pyramid level of this block's feature map; None if its output is not one of them."""
    has_squeeze_and_excitation: bool

    @property
    def has_shortcut(self) -> bool:
        return self.stride == 1 and self.channels_in == self.channels_out


def is_efficientnet_lite(backbone: str) -> bool:
    return backbone.startswith("efficientnet-lite")


def efficientnet_blocks(config: FeatureExtractor) -> list[EfficientNetBlock]:
    """Return all blocks up to the last one whose features the neck needs."""
    assert isinstance(config.neck, BiFpn), config.neck
    blocks = _all_blocks(config.backbone, last_of_stride=config.neck.features_of_last_blocks)
    top = min(config.neck.max_level, 5)
    return blocks[: 1 + next(index for index, block in enumerate(blocks) if block.level == top)]


def build_efficientnet(config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool) -> Levels:
    """Build the feature maps of levels 2 to 5, or of fewer if the neck needs fewer, from a normalized image.

    In training, blocks with a shortcut are skipped at random per image (arXiv:1603.09382), as in the reference.
    """
    own = _OWN_HYPERPARAMS
    if config.override_base_feature_extractor_hyperparams:  # overrides only the penalty, as in the reference
        own = replace(own, regularizer=config.conv_hyperparams.regularizer)
    if is_efficientnet_lite(config.backbone):
        own = replace(own, activation="RELU_6")
    layers = ConvLayers(own, freeze_batchnorm)
    blocks = efficientnet_blocks(config)
    stem = layers.backbone_conv(blocks[0].channels_in, "stem_conv", kernel_size=3, strides=2)(image)
    features = layers.activate(layers.normalize(stem, "stem_bn"), "stem_activation")
    levels: Levels = {}
    for block in blocks:
        features = _inverted_residual(layers, features, block)
        if block.level is not None:
            levels[block.level] = features
    return levels


def _all_blocks(backbone: str, *, last_of_stride: bool) -> list[EfficientNetBlock]:
    width, depth = _SCALING[backbone]
    is_lite, last = is_efficientnet_lite(backbone), len(_STAGES) - 1
    repetitions = [
        stage[3] if is_lite and index in (0, last) else math.ceil(depth * stage[3])
        for index, stage in enumerate(_STAGES)
    ]
    total, channels_in = sum(repetitions), _STEM_CHANNELS if is_lite else round_channels(_STEM_CHANNELS * width)
    blocks: list[EfficientNetBlock] = []
    for index, (kernel_size, expansion, channels, repetitions_of_b0, first_stride) in enumerate(_STAGES):
        channels_out = round_channels(channels * width)
        source = repetitions[index] if last_of_stride else repetitions_of_b0
        for repetition in range(repetitions[index]):
            block = EfficientNetBlock(
                name=f"block{index + 1}{chr(ord('a') + repetition)}",
                kernel_size=kernel_size,
                expansion=expansion,
                channels_in=channels_in,
                channels_out=channels_out,
                stride=first_stride if repetition == 0 else 1,
                drop_rate=_DROP_CONNECT_RATE * len(blocks) / total,
                level=_LEVEL_BY_STAGE.get(index) if repetition == source - 1 else None,
                has_squeeze_and_excitation=not is_lite,
            )
            blocks.append(block)
            channels_in = channels_out
    return blocks


def _inverted_residual(layers: ConvLayers, inputs: keras.KerasTensor, block: EfficientNetBlock) -> keras.KerasTensor:
    """Expand, convolve each channel, weight the channels (not in Lite), project; add the input if it has the shape."""
    name, features, channels = block.name, inputs, block.channels_in * block.expansion
    if block.expansion > 1:
        features = layers.backbone_conv(channels, f"{name}_expand_conv")(features)
        features = layers.normalize(features, f"{name}_expand_bn")
        features = layers.activate(features, f"{name}_expand_activation")
    # No penalty: the reference passes it under a name that the layer does not read.
    initializer = layers.kernel("depthwise")["depthwise_initializer"]
    depthwise = keras.layers.DepthwiseConv2D(
        block.kernel_size,
        block.stride,
        "same",
        use_bias=False,
        depthwise_initializer=initializer,
        name=f"{name}_dwconv",
    )
    features = layers.activate(layers.normalize(depthwise(features), f"{name}_bn"), f"{name}_activation")
    if block.has_squeeze_and_excitation:
        features = _squeeze_and_excite(layers, features, block)
    features = layers.backbone_conv(block.channels_out, f"{name}_project_conv")(features)
    features = layers.normalize(features, f"{name}_project_bn")
    if block.has_shortcut:
        if block.drop_rate > 0:
            drop = keras.layers.Dropout(block.drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}_drop")
            features = drop(features)
        features = keras.layers.Add(name=f"{name}_add")([features, inputs])
    return features


def _squeeze_and_excite(layers: ConvLayers, features: keras.KerasTensor, block: EfficientNetBlock) -> keras.KerasTensor:
    """Scale the channels by factors computed from their means (arXiv:1709.01507)."""
    name = block.name
    means = keras.layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_se_squeeze")(features)
    num_reduced = max(1, int(block.channels_in * _SE_RATIO))
    # As in the reference, biases are penalized like kernels.
    bias: dict[str, Any] = {"use_bias": True, "bias_regularizer": build_regularizer(layers.hyperparams.regularizer)}
    reduced = layers.backbone_conv(num_reduced, f"{name}_se_reduce", **bias)(means)
    reduced = layers.activate(reduced, f"{name}_se_reduce_activation")
    factors = layers.backbone_conv(features.shape[-1], f"{name}_se_expand", **bias)(reduced)
    factors = keras.layers.Activation("sigmoid", name=f"{name}_se_expand_activation")(factors)
    return keras.layers.Multiply(name=f"{name}_se_excite")([features, factors])
