"""Stacked hourglasses (arXiv:1603.06937), in the form of the CenterNet paper (arXiv:1904.07850) and of the reference.

An hourglass halves the map several times, down to its inner blocks, and doubles it again; at each size, a path of
residual blocks goes around the smaller maps. Each hourglass of a stack refines the output of the one before it. The
reference has no weight penalty and uses the Keras initializers.
"""

from typing import NamedTuple

import keras

from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

_MOMENTUM = 0.1  # share of the old moving statistics, as in the reference
_EPSILON = 1e-5


class Hourglass(NamedTuple):
    """The settings of a network.

    Attributes:
        stem_channels: channels of the first convolution.
        channels: channels by level; level 1 has the stride of the stem, each further level twice the stride.
        num_blocks: residual blocks by level, for each of its paths.
        num_stacked: number of hourglasses, each with an output.
        is_stem_strided: the stem has stride 4 and a first convolution of 7x7; otherwise stride 1 and 3x3.
        prefix: start of the names of all layers.
    """

    stem_channels: int
    channels: tuple[int, ...]
    num_blocks: tuple[int, ...]
    num_stacked: int = 1
    is_stem_strided: bool = True
    prefix: str = ""


HOURGLASSES = {
    "hourglass_10": Hourglass(32, (64, 64), (1, 1)),
    "hourglass_20": Hourglass(48, (96, 96, 144), (1, 2, 2)),
    "hourglass_32": Hourglass(48, (96, 96, 144, 144), (2, 2, 2, 2)),
    "hourglass_52": Hourglass(64, (128, 128, 192, 192, 192, 256), (2, 2, 2, 2, 2, 4)),
    "hourglass_104": Hourglass(128, (256, 256, 384, 384, 384, 512), (2, 2, 2, 2, 2, 4), num_stacked=2),
}


def build_hourglasses(config: Hourglass, image: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Build the output of each hourglass, [B, H, W, `channels[0]`], of the stride of the stem.

    Sides of the image must be multiples of the stride of the last level.
    """
    kernel_size, strides = (7, 2) if config.is_stem_strided else (3, 1)
    features = _conv(image, config.stem_channels, kernel_size, f"{config.prefix}stem", strides=strides)
    name = f"{config.prefix}stem_block"
    features = _residual(features, config.channels[0], name, strides=strides, has_conv_shortcut=True)
    outputs: list[keras.KerasTensor] = []
    for number in range(1, config.num_stacked + 1):
        name = f"{config.prefix}hourglass{number}"
        inside = _build_level(config, features, name)
        outputs.append(_conv(inside, config.channels[0], 3, f"{name}_output"))
        if number < config.num_stacked:
            merged = keras.layers.Add(name=f"{name}_next_add")(
                [
                    _conv(features, config.channels[0], 1, f"{name}_next_input", activate=False),
                    _conv(outputs[-1], config.channels[0], 1, f"{name}_next_output", activate=False),
                ]
            )
            merged = keras.layers.ReLU(name=f"{name}_next_relu")(merged)
            features = _residual(merged, config.channels[0], f"{name}_next_block")
    return outputs


def _build_level(config: Hourglass, features: keras.KerasTensor, hourglass: str, level: int = 1) -> keras.KerasTensor:
    """Build an hourglass from a level on, counted from 1."""
    name = f"{hourglass}_level{level}"
    channels, inner_channels = config.channels[level - 1 : level + 1]
    count, inner_count = config.num_blocks[level - 1 : level + 1]
    around = _blocks(features, (channels,) * count, f"{name}_around")
    inside = _blocks(features, (inner_channels,) * count, f"{name}_down", strides=2)
    if level < len(config.channels) - 1:
        inside = _build_level(config, inside, hourglass, level + 1)
    else:
        inside = _blocks(inside, (inner_channels,) * inner_count, f"{name}_inside")
    up = _blocks(inside, (*(inner_channels,) * (count - 1), channels), f"{name}_up")
    doubled = keras.layers.UpSampling2D(2, name=f"{name}_up{count}_upsample")(up)
    return keras.layers.Add(name=f"{name}_up{count}_merge")([around, doubled])


def _blocks(features: keras.KerasTensor, channels: tuple[int, ...], name: str, strides: int = 1) -> keras.KerasTensor:
    """Apply residual blocks, the first with `strides`."""
    for number, num_channels in enumerate(channels, start=1):
        changes_shape = strides > 1 or features.shape[-1] != num_channels
        block = f"{name}{number}"
        features = _residual(features, num_channels, block, strides=strides, has_conv_shortcut=changes_shape)
        strides = 1
    return features


def _residual(
    inputs: keras.KerasTensor, channels: int, name: str, *, strides: int = 1, has_conv_shortcut: bool = False
) -> keras.KerasTensor:
    """Apply two 3x3 convolutions; the shortcut is a 1x1 convolution if the shape changes."""
    features = _conv(inputs, channels, 3, f"{name}_1", strides=strides)
    features = _conv(features, channels, 3, f"{name}_2", activate=False)
    shortcut = inputs
    if has_conv_shortcut:
        shortcut = _conv(inputs, channels, 1, f"{name}_0", strides=strides, activate=False)
    return keras.layers.ReLU(name=f"{name}_out")(keras.layers.Add(name=f"{name}_add")([features, shortcut]))


def _conv(
    features: keras.KerasTensor,
    channels: int,
    kernel_size: int,
    name: str,
    *,
    strides: int = 1,
    activate: bool = True,
) -> keras.KerasTensor:
    """Apply convolution, batch norm and activation; the padding is half of the kernel on all sides."""
    padding = "same"
    if strides > 1 and kernel_size > 1:  # 'same' would pad less at the top and left
        features = keras.layers.ZeroPadding2D(kernel_size // 2, name=f"{name}_pad")(features)
        padding = "valid"
    conv = keras.layers.Conv2D(channels, kernel_size, strides, padding, use_bias=False, name=f"{name}_conv")
    norm = FusedBatchNorm(
        momentum=_MOMENTUM, epsilon=_EPSILON, synchronized=True, unbiased_variance=False, name=f"{name}_bn"
    )
    features = norm(conv(features))
    return keras.layers.ReLU(name=f"{name}_relu")(features) if activate else features
