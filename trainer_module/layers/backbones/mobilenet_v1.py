"""MobileNetV1 (arXiv:1704.04861) without classifier, as the Object Detection API builds it.

Layers have the same names as in `keras.applications`. No convolution has a bias, independent of the settings.
"""

import keras

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, pad_before_stride

# Channels and stride of blocks 1 to 13: table 1 of the paper.
MOBILENET_V1_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *5 * ((512, 1),),
    (1024, 2),
    (1024, 1),
)
_LEVEL_BY_BLOCK = {3: 2, 5: 3, 11: 4, 13: 5}  # the last block of each stride
_FPN_LITE_CHANNELS = {12: 512, 13: 256}  # with a separable pyramid, the reference makes the last two blocks narrower
# The reference's settings of MobileNets that do not use `conv_hyperparams`.
MOBILENET_HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=4e-5),
    initializer=TruncatedNormalInitializer(stddev=0.09),
    activation="RELU_6",
    batch_norm=BatchNorm(decay=0.9997, scale=True, epsilon=1e-3),
)


def build_mobilenet_v1(config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool) -> Levels:
    """Build the feature maps of levels 2 to 5 from an image scaled to [-1, 1]."""
    overridden = config.override_base_feature_extractor_hyperparams
    layers = ConvLayers(config.conv_hyperparams if overridden else MOBILENET_HYPERPARAMS, freeze_batchnorm)
    features, padding = pad_before_stride(config, image, "conv1_pad")
    conv = layers.backbone_conv(_num_channels(config, 0, 32), "conv1", kernel_size=3, strides=2, padding=padding)
    features = layers.activate(layers.normalize(conv(features), "conv1_bn"), "conv1_relu")
    levels: Levels = {}
    for index, (channels, strides) in enumerate(MOBILENET_V1_BLOCKS, start=1):
        padding = "same"
        if strides > 1:
            features, padding = pad_before_stride(config, features, f"conv_pad_{index}")
        depthwise = keras.layers.DepthwiseConv2D(
            3, strides, padding, use_bias=False, name=f"conv_dw_{index}", **layers.kernel("depthwise")
        )
        features = layers.normalize(depthwise(features), f"conv_dw_{index}_bn")
        features = layers.activate(features, f"conv_dw_{index}_relu")
        pointwise = layers.backbone_conv(_num_channels(config, index, channels), f"conv_pw_{index}")
        features = layers.normalize(pointwise(features), f"conv_pw_{index}_bn")
        features = layers.activate(features, f"conv_pw_{index}_relu")
        if index in _LEVEL_BY_BLOCK:
            levels[_LEVEL_BY_BLOCK[index]] = features
    return levels


def _num_channels(config: FeatureExtractor, index: int, channels: int) -> int:
    """Return the number of channels of block `index`; 0 is the first convolution.

    The reference multiplies by `depth_multiplier` twice (in its layers and in the MobileNet of Keras), except where it
    sets the number itself. Its checkpoints have these widths.
    """
    alpha = config.depth_multiplier
    if config.use_depthwise and isinstance(config.neck, Fpn) and index in _FPN_LITE_CHANNELS:
        return max(int(_FPN_LITE_CHANNELS[index] * alpha), config.min_depth)
    return max(int(int(channels * alpha) * alpha), config.min_depth)
