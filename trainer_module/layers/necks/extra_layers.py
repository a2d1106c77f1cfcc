"""Coarser levels by stride-2 convolutions (plain SSD, arXiv:1512.02325), as the Object Detection API builds them."""

import keras

from detloom.schemas.model.network import ExtraFeatureLayers, FeatureExtractor
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, pad_before_stride, scaled_depth
from detloom.trainer_module.layers.necks.pyramid_levels import pyramid_levels

# Channels before `depth_multiplier` in the reference's extractors on MobileNetV1 and V2.
_DEPTH_BY_LEVEL = {6: 512, 7: 256, 8: 256, 9: 128}


def build_extra_layers(config: FeatureExtractor, features: Levels, *, freeze_batchnorm: bool) -> Levels:
    """Build the pyramid, by level: the maps of the backbone, then each level from the one before it."""
    assert isinstance(config.neck, ExtraFeatureLayers), config.neck
    layers = ConvLayers(config.conv_hyperparams, freeze_batchnorm)
    pyramid: Levels = {}
    for level in pyramid_levels(config.neck):
        backbones = features.get(level)
        pyramid[level] = _coarser(config, layers, pyramid[level - 1], level) if backbones is None else backbones
    return pyramid


def _coarser(
    config: FeatureExtractor, layers: ConvLayers, features: keras.KerasTensor, level: int
) -> keras.KerasTensor:
    """Halve the channels, then the size.

    As in the reference, the kernel of a depthwise convolution has the Keras initializer and no penalty.
    """
    depth, name = _DEPTH_BY_LEVEL[level], f"neck_coarse_{level}"
    squeeze = layers.conv(scaled_depth(config, depth // 2), 1, f"neck_squeeze_{level}")
    features = layers.finish(squeeze(features), squeeze.name)
    features, padding = pad_before_stride(config, features, f"{name}_pad")
    if config.use_depthwise:
        depthwise = keras.layers.DepthwiseConv2D(3, 2, padding, use_bias=layers.use_bias, name=f"{name}_depthwise")
        features = layers.finish(depthwise(features), depthwise.name)
    kernel_size, strides, padding = (1, 1, "same") if config.use_depthwise else (3, 2, padding)
    conv = layers.conv(scaled_depth(config, depth), kernel_size, name, strides=strides, padding=padding)
    return layers.finish(conv(features), name)
