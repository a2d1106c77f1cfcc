"""Bidirectional feature pyramid (arXiv:1911.09070, section 3), as the Object Detection API builds it.

If the finer level has an odd side, the upsampled map is cropped to it. The Object Detection API refuses such images;
google/automl resizes from n to 2n - 1 rows by nearest neighbour, which gives the same map.
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model.network import BiFpn, FeatureExtractor
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels

_TOP_BACKBONE_LEVEL = 5
_EPSILON = 1e-4  # section 3.3 of the paper; prevents a division by zero


@dataclass(frozen=True)
class BiFpnNode:
    """One feature map in the graph of the pyramid."""

    name: str
    level: int
    inputs: tuple[str, ...]
    """Names of nodes; `0_up_<level>` up to level 5 are the feature maps of the backbone."""


def bifpn_nodes(neck: BiFpn) -> list[BiFpnNode]:
    """Return the nodes in the order of the reference: coarser levels first, then the two paths of each iteration."""
    low, high = neck.min_level, neck.max_level
    nodes = [
        BiFpnNode(f"0_up_{level}", level, (f"0_up_{level - 1}",)) for level in range(_TOP_BACKBONE_LEVEL + 1, high + 1)
    ]
    for iteration in range(1, neck.num_iterations + 1):
        before = iteration - 1
        for level in range(high - 1, low - 1, -1):
            above = f"{iteration}_down_{level + 1}" if level < high - 1 else f"{before}_up_{high}"
            # The finest level has one node per iteration, in the top-down path.
            same = f"{before}_down_{level}" if level == low and before else f"{before}_up_{level}"
            nodes.append(BiFpnNode(f"{iteration}_down_{level}", level, (same, above)))
        for level in range(low + 1, high + 1):
            below = f"{iteration}_up_{level - 1}" if level > low + 1 else f"{iteration}_down_{low}"
            same_level = (f"{before}_up_{level}",) + ((f"{iteration}_down_{level}",) if level < high else ())
            nodes.append(BiFpnNode(f"{iteration}_up_{level}", level, (*same_level, below)))
    return nodes


def is_backbone_feature(name: str) -> bool:
    """Return True for a feature map of the backbone, which needs a convolution to the channels of the pyramid."""
    iteration, _, level = name.split("_")
    return iteration == "0" and int(level) <= _TOP_BACKBONE_LEVEL


def build_bifpn(config: FeatureExtractor, features: Levels, *, freeze_batchnorm: bool) -> Levels:
    """Build the pyramid, by level. Layers of node `n` are named `neck_<n>_...`, of its input `i` `..._input_<i>_...`.

    Each feature map must have half the rows and columns of the finer one, rounded up.
    """
    assert isinstance(config.neck, BiFpn), config.neck
    neck, layers = config.neck, ConvLayers(config.conv_hyperparams, freeze_batchnorm)
    num_channels = max(neck.num_filters, config.min_depth)
    levels = {f"0_up_{level}": level for level in features}
    maps = {f"0_up_{level}": feature for level, feature in features.items()}
    for node in bifpn_nodes(neck):
        resampled: list[keras.KerasTensor] = []
        for index, name in enumerate(node.inputs):
            feature = maps[name]
            if is_backbone_feature(name):
                conv_name = f"neck_{node.name}_input_{index}"
                feature = layers.conv(num_channels, 1, f"{conv_name}_conv")(feature)
                feature = layers.normalize(feature, f"{conv_name}_bn")
            like = resampled[0] if resampled else None
            resampled.append(_resample(feature, node.level - levels[name], like, f"neck_{node.name}_input_{index}"))
        maps[node.name] = resampled[0] if len(resampled) == 1 else _combine(layers, neck, node, resampled)
        levels[node.name] = node.level
    last = neck.num_iterations
    finest = {neck.min_level: maps[f"{last}_down_{neck.min_level}"]}
    return finest | {level: maps[f"{last}_up_{level}"] for level in range(neck.min_level + 1, neck.max_level + 1)}


def _resample(
    feature: keras.KerasTensor, levels_up: int, like: keras.KerasTensor | None, name: str
) -> keras.KerasTensor:
    """Resample to the same level (0), the next coarser (1), or the next finer one (-1), with the sides of `like`."""
    if levels_up == 1:
        return keras.layers.MaxPooling2D(3, 2, "same", name=f"{name}_downsample")(feature)
    if levels_up == -1:
        doubled = keras.layers.UpSampling2D(2, interpolation="nearest", name=f"{name}_upsample")(feature)
        assert like is not None, name  # the first input of a node has its level
        rows, columns = (doubled.shape[side] - like.shape[side] for side in (1, 2))
        assert {rows, columns} <= {0, 1}, (doubled.shape, like.shape)
        if rows == 0 and columns == 0:
            return doubled
        return keras.layers.Cropping2D(((0, rows), (0, columns)), name=f"{name}_cut")(doubled)
    assert levels_up == 0, levels_up
    return feature


def _combine(layers: ConvLayers, neck: BiFpn, node: BiFpnNode, inputs: list[keras.KerasTensor]) -> keras.KerasTensor:
    """Apply weighted sum, activation, separable convolution and batch norm."""
    name, num_channels = f"neck_{node.name}", inputs[0].shape[-1]
    fused = _build_fusion(neck, f"{name}_combine")(inputs)
    fused = layers.activate(fused, f"{name}_activation")
    kernels = ("depthwise", "pointwise")
    conv = layers.conv(num_channels, 3, f"{name}_conv", use_depthwise=True, kernels=kernels)
    return layers.normalize(conv(fused), f"{name}_bn")


class WeightedSum(keras.layers.Layer):
    """Weighted sum of feature maps of one shape; `is_fast` selects the paper's fast fusion, otherwise softmax.

    The reference computes the softmax over an axis of length 1. Every weight is 1 and none is trained, so `attention`
    means a plain sum. It means the same here, so that models trained there give the same numbers.
    """

    def __init__(self, *, is_fast: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.is_fast = is_fast

    def build(self, input_shapes: list[tuple[int | None, ...]]) -> None:
        shape = (len(input_shapes), 1)
        self.bifpn_combine_weights = self.add_weight(name="bifpn_combine_weights", shape=shape, initializer="ones")

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        weights = tf.convert_to_tensor(self.bifpn_combine_weights)
        if self.is_fast:
            weights = tf.nn.relu(weights)
            weights = weights / (tf.reduce_sum(weights) + _EPSILON)
        else:
            weights = tf.nn.softmax(weights, axis=-1)
        return tf.add_n([feature * weight[0] for feature, weight in zip(inputs, tf.unstack(weights), strict=True)])


def _build_fusion(neck: BiFpn, name: str) -> keras.Layer:
    match neck.combine_method:
        case "sum":
            return keras.layers.Add(name=name)
        case "attention" | "fast_attention":
            return WeightedSum(is_fast=neck.combine_method == "fast_attention", name=name)
    raise AssertionError(f"no such combine_method: {neck.combine_method}")
