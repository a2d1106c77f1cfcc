"""Feature pyramid with a top-down path (arXiv:1612.03144), as the Object Detection API builds it."""

import keras

from detloom.schemas.model.network import FeatureExtractor, Fpn
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, pad_before_stride, scaled_depth


def build_fpn(config: FeatureExtractor, features: Levels, *, freeze_batchnorm: bool) -> Levels:
    """Build the pyramid, by level: a top-down path with nearest-neighbour upsampling, coarser levels by convolutions.

    With `use_explicit_padding`, an upsampled map is cropped to the finer level. Otherwise each level must have exactly
    twice the sides of the next.
    """
    assert isinstance(config.neck, Fpn), config.neck
    neck, layers = config.neck, ConvLayers(config.conv_hyperparams, freeze_batchnorm)
    num_channels = scaled_depth(config, neck.additional_layer_depth)

    def lateral(level: int) -> keras.KerasTensor:
        return layers.conv(num_channels, 1, f"neck_lateral_{level}", use_bias=True)(features[level])

    def conv3x3(inputs: keras.KerasTensor, name: str, *, strides: int = 1) -> keras.KerasTensor:
        padded, padding = pad_before_stride(config, inputs, f"{name}_pad") if strides > 1 else (inputs, "same")
        conv = layers.conv(num_channels, 3, name, use_depthwise=config.use_depthwise, padding=padding, strides=strides)
        return layers.finish(conv(padded), name)

    top = min(neck.max_level, max(features))
    pyramid = {top: lateral(top)}
    for level in range(top - 1, neck.min_level - 1, -1):
        finer = lateral(level)
        doubled = keras.layers.UpSampling2D(2, interpolation="nearest", name=f"neck_upsample_{level}")
        coarser = doubled(pyramid[level + 1])
        if config.use_explicit_padding:
            coarser = _cut(coarser, finer, f"neck_cut_{level}")
        merged = keras.layers.Add(name=f"neck_merge_{level}")([finer, coarser])
        pyramid[level] = conv3x3(merged, f"neck_smooth_{level}")
    for level in range(top + 1, neck.max_level + 1):
        pyramid[level] = conv3x3(pyramid[level - 1], f"neck_coarse_{level}", strides=2)
    return {level: pyramid[level] for level in sorted(pyramid)}


def _cut(features: keras.KerasTensor, like: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Crop the last row or column if `like` has one less."""
    rows, columns = (features.shape[side] - like.shape[side] for side in (1, 2))
    return keras.layers.Cropping2D(((0, rows), (0, columns)), name=name)(features)
