"""MobileNetV2 (arXiv:1801.04381) without classifier, as the Object Detection API builds it.

Layers have the same names as in `keras.applications`. No convolution has a bias, independent of the settings.
"""

import keras

from detloom.schemas.model.network import ExtraFeatureLayers, FeatureExtractor
from detloom.trainer_module.layers.backbones.mobilenet_v1 import MOBILENET_HYPERPARAMS
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, pad_before_stride, round_channels

# Expansion, channels, repetitions, stride of the first block: table 2 of the paper.
MOBILENET_V2_BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LEVEL_BY_BLOCK = {2: 2, 5: 3, 12: 4}  # the last block of each stride; level 5 is the last layer
_SSD_BLOCK = 13  # level 4 of plain SSD is the input of this block's stride-2 convolution


def build_mobilenet_v2(config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool) -> Levels:
    """Build the feature maps of levels 2 to 5 from an image scaled to [-1, 1]."""
    overridden = config.override_base_feature_extractor_hyperparams
    layers = ConvLayers(config.conv_hyperparams if overridden else MOBILENET_HYPERPARAMS, freeze_batchnorm)
    alpha, min_depth = config.depth_multiplier, config.min_depth
    features, padding = pad_before_stride(config, image, "Conv1_pad")
    num_channels = max(round_channels(32 * alpha), min_depth)
    conv = layers.backbone_conv(num_channels, "Conv1", kernel_size=3, strides=2, padding=padding)
    features = layers.activate(layers.normalize(conv(features), "bn_Conv1"), "Conv1_relu")
    levels: Levels = {}
    index = 0
    for expansion, channels, repetitions, first_stride in MOBILENET_V2_BLOCKS:
        num_channels = round_channels(int(channels * alpha))
        for repetition in range(repetitions):
            strides = first_stride if repetition == 0 else 1
            expanded = _expand(layers, features, index, expansion)
            features = _inverted_residual(config, layers, features, expanded, index, num_channels, strides)
            if index in _LEVEL_BY_BLOCK:
                levels[_LEVEL_BY_BLOCK[index]] = features
            if index == _SSD_BLOCK and isinstance(config.neck, ExtraFeatureLayers):
                levels[4] = expanded
            index += 1
    last = max(round_channels(1280 * min(alpha, 1.0)), min_depth)
    features = layers.normalize(layers.backbone_conv(last, "Conv_1")(features), "Conv_1_bn")
    levels[5] = layers.activate(features, "out_relu")
    return levels


def _expand(layers: ConvLayers, inputs: keras.KerasTensor, index: int, expansion: int) -> keras.KerasTensor:
    """Apply the first part of a block, the expansion."""
    if expansion == 1:
        return inputs
    name = _block_name(index)
    features = layers.backbone_conv(expansion * inputs.shape[-1], f"{name}_expand")(inputs)
    return layers.activate(layers.normalize(features, f"{name}_expand_BN"), f"{name}_expand_relu")


def _inverted_residual(
    config: FeatureExtractor,
    layers: ConvLayers,
    inputs: keras.KerasTensor,
    expanded: keras.KerasTensor,
    index: int,
    num_channels: int,
    strides: int,
) -> keras.KerasTensor:
    """Apply the rest of a block: convolve each channel, project, and add the input if the shape is unchanged.

    As in the reference, a block that `min_depth` widened to the channels of its input has no such shortcut.
    """
    name = _block_name(index)
    features, padding = expanded, "same"
    if strides > 1:
        features, padding = pad_before_stride(config, features, f"{name}_pad")
    depthwise = keras.layers.DepthwiseConv2D(
        3, strides, padding, use_bias=False, name=f"{name}_depthwise", **layers.kernel("depthwise")
    )
    features = layers.normalize(depthwise(features), f"{name}_depthwise_BN")
    features = layers.activate(features, f"{name}_depthwise_relu")
    features = layers.backbone_conv(max(num_channels, config.min_depth), f"{name}_project")(features)
    features = layers.normalize(features, f"{name}_project_BN")
    if inputs.shape[-1] == num_channels and strides == 1:
        features = keras.layers.Add(name=f"{name}_add")([inputs, features])
    return features


def _block_name(index: int) -> str:
    return f"block_{index}" if index else "expanded_conv"
