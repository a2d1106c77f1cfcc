"""Feature pyramid with a top-down path (arXiv:1612.03144), as the Object Detection API builds it."""

import keras

from detloom.schemas.network_config import FeatureExtractor, Fpn
from detloom.trainer_module.conv_layers import ConvLayers, separable


def build_fpn(
    config: FeatureExtractor, features: dict[int, keras.KerasTensor], *, freeze_batchnorm: bool
) -> dict[int, keras.KerasTensor]:
    """Pyramid by level. Top-down path with nearest-neighbour upsampling; coarser levels by stride-2 convolutions."""
    assert isinstance(config.neck, Fpn), config.neck
    neck, layers = config.neck, ConvLayers(config.conv_hyperparams, freeze_batchnorm)
    num_channels = max(int(neck.additional_layer_depth * config.depth_multiplier), config.min_depth)

    def lateral(level: int) -> keras.KerasTensor:
        conv = keras.layers.Conv2D(num_channels, 1, padding="same", name=f"neck_lateral_{level}", **layers.kernel())
        return conv(features[level])

    top = min(neck.max_level, max(features))
    pyramid = {top: lateral(top)}
    for level in range(top - 1, neck.min_level - 1, -1):
        upsample = keras.layers.UpSampling2D(2, interpolation="nearest", name=f"neck_upsample_{level}")
        merged = keras.layers.Add(name=f"neck_merge_{level}")([lateral(level), upsample(pyramid[level + 1])])
        conv = separable(layers, num_channels, 3, f"neck_smooth_{level}", use_bias=layers.use_bias)
        pyramid[level] = layers.finish(conv(merged), conv.name)
    for level in range(top + 1, neck.max_level + 1):
        conv = separable(layers, num_channels, 3, f"neck_coarse_{level}", use_bias=layers.use_bias, strides=2)
        pyramid[level] = layers.finish(conv(pyramid[level - 1]), conv.name)
    return {level: pyramid[level] for level in sorted(pyramid)}
