"""Stacked hourglasses (arXiv:1603.06937), in the form of the CenterNet paper (arXiv:1904.07850) and of the reference.

An hourglass halves the map several times, down to its inner blocks, and doubles it again; at each size, a path of
residual blocks goes around the smaller maps. Each hourglass of a stack refines the output of the one before it. The
reference has no weight penalty and uses the Keras initializers.
"""

from __future__ import annotations

import itertools
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

    def name_of(self, number: int) -> str:
        """Return the start of the names of the layers of an hourglass, counted from 1."""
        return f"{self.prefix}hourglass{number}"


HOURGLASSES = {
    "hourglass_10": Hourglass(32, (64, 64), (1, 1)),
    "hourglass_20": Hourglass(48, (96, 96, 144), (1, 2, 2)),
    "hourglass_32": Hourglass(48, (96, 96, 144, 144), (2, 2, 2, 2)),
    "hourglass_52": Hourglass(64, (128, 128, 192, 192, 192, 256), (2, 2, 2, 2, 2, 4)),
    "hourglass_104": Hourglass(128, (256, 256, 384, 384, 384, 512), (2, 2, 2, 2, 2, 4), num_stacked=2),
}


class ResidualBlock(NamedTuple):
    """Two 3x3 convolutions; the shortcut is a 1x1 convolution if the shape changes."""

    name: str
    channels: int
    strides: int = 1
    has_conv_shortcut: bool = False


class HourglassLevel(NamedTuple):
    """The paths of one level.

    Attributes:
        around: keeps the size.
        down: the first block halves the size.
        inside: the next level, or the inner blocks of the last one.
        up: its output is doubled and added to that of `around`.
    """

    around: tuple[ResidualBlock, ...]
    down: tuple[ResidualBlock, ...]
    inside: HourglassLevel | tuple[ResidualBlock, ...]
    up: tuple[ResidualBlock, ...]


def stem_block(config: Hourglass) -> ResidualBlock:
    """Return the block after the first convolution."""
    strides = 2 if config.is_stem_strided else 1
    return ResidualBlock(f"{config.prefix}stem_block", config.channels[0], strides, has_conv_shortcut=True)


def block_between(config: Hourglass, number: int) -> ResidualBlock:
    """Return the block between an hourglass, counted from 1, and the next one."""
    return ResidualBlock(f"{config.name_of(number)}_next_block", config.channels[0])


def hourglass_level(config: Hourglass, number: int, level: int = 1) -> HourglassLevel:
    """Return the blocks of an hourglass from a level on; `number` and `level` count from 1."""
    name = f"{config.name_of(number)}_level{level}"
    channels, inner_channels = config.channels[level - 1 : level + 1]
    count, inner_count = config.num_blocks[level - 1 : level + 1]
    is_last = level == len(config.channels) - 1
    return HourglassLevel(
        around=_blocks(f"{name}_around", (channels,) * count),
        down=_blocks(f"{name}_down", (inner_channels,) * count, strides=2),
        inside=_blocks(f"{name}_inside", (inner_channels,) * inner_count)
        if is_last
        else hourglass_level(config, number, level + 1),
        up=_blocks(f"{name}_up", (*(inner_channels,) * (count - 1), channels)),
    )


def _blocks(name: str, channels: tuple[int, ...], strides: int = 1) -> tuple[ResidualBlock, ...]:
    """Return a sequence of blocks, the first with `strides`."""
    steps = [strides, *(1 for _ in channels[1:])]
    changes = [strides > 1, *(one != other for one, other in itertools.pairwise(channels))]
    return tuple(
        ResidualBlock(f"{name}{number}", *settings)
        for number, settings in enumerate(zip(channels, steps, changes, strict=True), start=1)
    )


def build_hourglasses(config: Hourglass, image: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Build the output of each hourglass, [B, H, W, `channels[0]`], of the stride of the stem.

    Sides of the image must be multiples of the stride of the last level.
    """
    kernel_size, strides = (7, 2) if config.is_stem_strided else (3, 1)
    features = _conv(image, config.stem_channels, kernel_size, f"{config.prefix}stem", strides=strides)
    features = _residual(features, stem_block(config))
    outputs: list[keras.KerasTensor] = []
    for number in range(1, config.num_stacked + 1):
        inside = _build_level(features, hourglass_level(config, number))
        outputs.append(_conv(inside, config.channels[0], 3, f"{config.name_of(number)}_output"))
        if number < config.num_stacked:
            name = f"{config.name_of(number)}_next"
            merged = keras.layers.Add(name=f"{name}_add")(
                [
                    _conv(features, config.channels[0], 1, f"{name}_input", activate=False),
                    _conv(outputs[-1], config.channels[0], 1, f"{name}_output", activate=False),
                ]
            )
            merged = keras.layers.ReLU(name=f"{name}_relu")(merged)
            features = _residual(merged, block_between(config, number))
    return outputs


def _build_level(features: keras.KerasTensor, level: HourglassLevel) -> keras.KerasTensor:
    around = _sequence(features, level.around)
    inside = _sequence(features, level.down)
    if isinstance(level.inside, HourglassLevel):
        inside = _build_level(inside, level.inside)
    else:
        inside = _sequence(inside, level.inside)
    name = level.up[-1].name
    doubled = keras.layers.UpSampling2D(2, name=f"{name}_upsample")(_sequence(inside, level.up))
    return keras.layers.Add(name=f"{name}_merge")([around, doubled])


def _sequence(features: keras.KerasTensor, blocks: tuple[ResidualBlock, ...]) -> keras.KerasTensor:
    for block in blocks:
        features = _residual(features, block)
    return features


def _residual(inputs: keras.KerasTensor, block: ResidualBlock) -> keras.KerasTensor:
    name, channels, strides, has_conv_shortcut = block
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
