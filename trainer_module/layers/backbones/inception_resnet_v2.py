"""Inception-ResNet V2 (arXiv:1602.07261) without classifier, as the Object Detection API builds it for Faster R-CNN.

The structure is that of `keras.applications`, but all convolutions and poolings use 'SAME' padding, so that the cells
of all feature maps are aligned, and no batch norm has a scale. It has two parts: the first ends at a stride of 16, the
second is applied to each region.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import keras

from detloom.schemas.model.network import BatchNorm, ConvHyperparams, L2Regularizer, VarianceScalingInitializer
from detloom.trainer_module.layers.conv_layers import ConvLayers

# The reference's settings; Keras starts kernels like this by default (Glorot), and there is no penalty.
_HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=0.0),
    initializer=VarianceScalingInitializer(factor=1.0, uniform=True, mode="FAN_AVG"),
    activation="RELU",
    batch_norm=BatchNorm(decay=0.9997, scale=False, epsilon=0.001),
)


class Conv(NamedTuple):
    """A convolution with batch norm and ReLU."""

    channels: int
    kernel_hw: tuple[int, int]
    strides: int = 1


def _square(channels: int, side: int, strides: int = 1) -> Conv:
    return Conv(channels, (side, side), strides)


Branches = tuple[tuple[Conv, ...], ...]


class Mixed(NamedTuple):
    """Parallel branches, whose results are concatenated; the last one starts with a pooling of 3 x 3.

    Attributes:
        pool_strides: of the pooling; 1 takes means, 2 maxima.
    """

    branches: Branches
    pool_strides: Literal[1, 2]


class Residual(NamedTuple):
    """Repeated blocks that add `scale` times the convolved branches to their input; the last one may differ.

    Attributes:
        is_last_linear: the last block adds its branches unscaled, and has no ReLU.
    """

    branches: Branches
    scale: float
    repetitions: int
    is_last_linear: bool = False


# The figures of the paper that show each: 3, 16 (35), 7 (reduction), 17, 18 (reduction), 19, in the variant of Keras.
STEM_BEFORE_POOL = (_square(32, 3, 2), _square(32, 3), _square(64, 3))
STEM_AFTER_POOL = (_square(80, 1), _square(192, 3))
FIRST_PART: dict[str, Mixed | Residual] = {
    "mixed_5b": Mixed(
        (
            (_square(96, 1),),
            (_square(48, 1), _square(64, 5)),
            (_square(64, 1), _square(96, 3), _square(96, 3)),
            (_square(64, 1),),
        ),
        pool_strides=1,
    ),
    "block35": Residual(
        ((_square(32, 1),), (_square(32, 1), _square(32, 3)), (_square(32, 1), _square(48, 3), _square(64, 3))),
        scale=0.17,
        repetitions=10,
    ),
    "mixed_6a": Mixed(
        ((_square(384, 3, 2),), (_square(256, 1), _square(256, 3), _square(384, 3, 2)), ()), pool_strides=2
    ),
    "block17": Residual(
        ((_square(192, 1),), (_square(128, 1), Conv(160, (1, 7)), Conv(192, (7, 1)))), scale=0.1, repetitions=20
    ),
}
SECOND_PART: dict[str, Mixed | Residual] = {
    "mixed_7a": Mixed(
        (
            (_square(256, 1), _square(384, 3, 2)),
            (_square(256, 1), _square(288, 3, 2)),
            (_square(256, 1), _square(288, 3), _square(320, 3, 2)),
            (),
        ),
        pool_strides=2,
    ),
    "block8": Residual(
        ((_square(192, 1),), (_square(192, 1), Conv(224, (1, 3)), Conv(256, (3, 1)))),
        scale=0.2,
        repetitions=10,
        is_last_linear=True,
    ),
}
LAST = _square(1536, 1)


class ScaledSum(keras.layers.Layer):
    """Adds `scale` times its second input to its first one."""

    def __init__(self, scale: float, name: str) -> None:
        super().__init__(name=name)
        self._scale = scale

    def call(self, inputs: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
        return inputs[0] + inputs[1] * self._scale


def build_first_part(image: keras.KerasTensor, *, freeze_batchnorm: bool) -> keras.KerasTensor:
    """Build the features of stride 16 from an image with colors of -1 to 1."""
    layers = ConvLayers(_HYPERPARAMS, freeze_batchnorm)
    features = image
    for index, conv in enumerate((*STEM_BEFORE_POOL, *STEM_AFTER_POOL)):
        if index == len(STEM_BEFORE_POOL):
            features = keras.layers.MaxPooling2D(3, 2, "same", name="stem_pool_1")(features)
        features = _apply(layers, features, conv, f"stem_{index}")
    features = keras.layers.MaxPooling2D(3, 2, "same", name="stem_pool_2")(features)
    return _apply_blocks(layers, features, FIRST_PART)


def build_second_part(regions: keras.KerasTensor, *, freeze_batchnorm: bool) -> keras.KerasTensor:
    """Build the features of regions from crops of the first part's features."""
    layers = ConvLayers(_HYPERPARAMS, freeze_batchnorm)
    return _apply(layers, _apply_blocks(layers, regions, SECOND_PART), LAST, "conv_7b")


def _apply_blocks(
    layers: ConvLayers, features: keras.KerasTensor, blocks: dict[str, Mixed | Residual]
) -> keras.KerasTensor:
    for name, block in blocks.items():
        if isinstance(block, Mixed):
            features = _apply_mixed(layers, features, block, name)
            continue
        for number in range(1, block.repetitions + 1):
            is_linear = block.is_last_linear and number == block.repetitions
            features = _apply_residual(layers, features, block, f"{name}_{number}", is_linear=is_linear)
    return features


def _apply_mixed(layers: ConvLayers, inputs: keras.KerasTensor, block: Mixed, name: str) -> keras.KerasTensor:
    pool = keras.layers.AveragePooling2D if block.pool_strides == 1 else keras.layers.MaxPooling2D
    pooled = pool(3, block.pool_strides, "same", name=f"{name}_pool")(inputs)
    starts = [*[inputs] * (len(block.branches) - 1), pooled]
    branches = _apply_branches(layers, starts, block.branches, name)
    return keras.layers.Concatenate(name=f"{name}_concat")(branches)


def _apply_residual(
    layers: ConvLayers, inputs: keras.KerasTensor, block: Residual, name: str, *, is_linear: bool
) -> keras.KerasTensor:
    branches = _apply_branches(layers, [inputs] * len(block.branches), block.branches, name)
    mixed = keras.layers.Concatenate(name=f"{name}_concat")(branches)
    added = layers.backbone_conv(inputs.shape[-1], f"{name}_conv", use_bias=True)(mixed)
    scale = 1.0 if is_linear else block.scale
    features = ScaledSum(scale, name=f"{name}_add")([inputs, added])
    return features if is_linear else layers.activate(features, f"{name}_ac")


def _apply_branches(
    layers: ConvLayers, starts: Sequence[keras.KerasTensor], branches: Branches, name: str
) -> list[keras.KerasTensor]:
    ends = []
    for number, (features, convs) in enumerate(zip(starts, branches, strict=True)):
        for index, conv in enumerate(convs):
            features = _apply(layers, features, conv, f"{name}_{number}_{index}")
        ends.append(features)
    return ends


def _apply(layers: ConvLayers, features: keras.KerasTensor, conv: Conv, name: str) -> keras.KerasTensor:
    """Apply convolution, batch norm and ReLU."""
    layer = layers.backbone_conv(
        conv.channels, f"{name}_conv", kernel_size=conv.kernel_hw, strides=conv.strides, padding="same"
    )
    return layers.activate(layers.normalize(layer(features), f"{name}_bn"), f"{name}_ac")
