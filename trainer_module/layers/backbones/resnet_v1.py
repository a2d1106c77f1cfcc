"""ResNet-50, -101 and -152 (arXiv:1512.03385) without classifier, as the Object Detection API builds them.

Layers have the same names as in `keras.applications`, but no convolution has a bias. The first 1x1 convolution of a
block has the stride. The pooling uses 'SAME' padding, which adds nothing at the top and left of an even size;
`keras.applications` adds one pixel.
"""

from typing import Any

import keras

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    L2Regularizer,
    VarianceScalingInitializer,
)
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels

# Blocks of levels 2 to 5: table 1 of the paper.
RESNET_V1_BLOCKS = {
    "resnet50_v1": (3, 4, 6, 3),
    "resnet101_v1": (3, 4, 23, 3),
    "resnet152_v1": (3, 8, 36, 3),
}
_EXPANSION = 4  # output channels of a block over its inner channels
# The reference's settings of backbones that do not use `conv_hyperparams`.
RESNET_V1_HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=2e-4),  # the reference adds 1e-4 times the sum of squares, not half of it
    initializer=VarianceScalingInitializer(factor=1.0, mode="FAN_IN"),
    activation="RELU",
    batch_norm=BatchNorm(decay=0.997, scale=True, epsilon=1e-5),  # the fused kernel raises it to 1.001e-5 in both
)


def build_resnet_v1(
    config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool, max_level: int = 5
) -> Levels:
    """Build the feature maps of levels 2 to `max_level` from an image from which the channel means are subtracted."""
    layers = _layers_of(config, freeze_batchnorm=freeze_batchnorm)
    features = keras.layers.ZeroPadding2D(3, name="conv1_pad")(image)
    features = _conv(layers, features, _num_channels(config, 64), "conv1", kernel_size=7, strides=2, padding="valid")
    features = layers.activate(features, "conv1_relu")
    features = keras.layers.MaxPooling2D(3, 2, "same", name="pool1_pool")(features)
    levels: Levels = {}
    for level in range(2, max_level + 1):
        features = levels[level] = build_resnet_v1_level(config, features, level, freeze_batchnorm=freeze_batchnorm)
    return levels


def build_resnet_v1_level(
    config: FeatureExtractor, features: keras.KerasTensor, level: int, *, freeze_batchnorm: bool
) -> keras.KerasTensor:
    """Build the feature map of one level from that of the level before it."""
    layers = _layers_of(config, freeze_batchnorm=freeze_batchnorm)
    channels = 64 * 2 ** (level - 2)
    for block in range(1, RESNET_V1_BLOCKS[config.backbone][level - 2] + 1):
        strides = 2 if block == 1 and level > 2 else 1
        features = _bottleneck(config, layers, features, channels, strides, f"conv{level}_block{block}", block == 1)
    return features


def _layers_of(config: FeatureExtractor, *, freeze_batchnorm: bool) -> ConvLayers:
    overridden = config.override_base_feature_extractor_hyperparams
    return ConvLayers(config.conv_hyperparams if overridden else RESNET_V1_HYPERPARAMS, freeze_batchnorm)


def _bottleneck(
    config: FeatureExtractor,
    layers: ConvLayers,
    inputs: keras.KerasTensor,
    channels: int,
    strides: int,
    name: str,
    has_conv_shortcut: bool,
) -> keras.KerasTensor:
    """Reduce, convolve, expand; add the input, through a convolution if the shape changes."""
    inner, outer = _num_channels(config, channels), _num_channels(config, _EXPANSION * channels)
    shortcut = _conv(layers, inputs, outer, f"{name}_0", strides=strides) if has_conv_shortcut else inputs
    features = layers.activate(_conv(layers, inputs, inner, f"{name}_1", strides=strides), f"{name}_1_relu")
    features = layers.activate(_conv(layers, features, inner, f"{name}_2", kernel_size=3), f"{name}_2_relu")
    features = _conv(layers, features, outer, f"{name}_3")
    return layers.activate(keras.layers.Add(name=f"{name}_add")([shortcut, features]), f"{name}_out")


def _conv(
    layers: ConvLayers, features: keras.KerasTensor, num_channels: int, name: str, **settings: Any
) -> keras.KerasTensor:
    """Apply convolution and batch norm; `settings` are those of `backbone_conv`."""
    conv = layers.backbone_conv(num_channels, f"{name}_conv", **settings)
    return layers.normalize(conv(features), f"{name}_bn")


def _num_channels(config: FeatureExtractor, channels: int) -> int:
    return max(int(channels * config.depth_multiplier), config.min_depth)
