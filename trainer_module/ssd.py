"""The network of the single-shot detector: MobileNetV2, FPN-lite neck, heads shared by all levels.

Structure as `ssd_mobilenet_v2_fpn_keras` in the Object Detection API. Letters: `B` images, `A` anchors, `C` class
channels (the classes, after a background channel where there is one).
"""

from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import FeatureExtractor, Fpn, WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.conv_layers import ConvLayers
from detloom.trainer_module.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.preprocess import network_hw


def build_ssd(config: Ssd, num_classes: int) -> keras.Model:
    """Network from pictures scaled to [-1, 1], [B, H, W, 3], to {"offsets_BA4", "class_logits_BAC"}, float32."""
    height, width = network_hw(config.image_resizer)
    image = keras.Input((height, width, 3), name="image")
    features = build_mobilenet_v2(config.feature_extractor, image, freeze_batchnorm=config.freeze_batchnorm)
    pyramid = _build_fpn_lite(config.feature_extractor, features, freeze_batchnorm=config.freeze_batchnorm)
    num_channels = num_classes + int(config.add_background_class)
    offsets, logits = _build_shared_heads(config, pyramid, num_channels)
    outputs = {"offsets_BA4": _concat_levels(offsets, 4), "class_logits_BAC": _concat_levels(logits, num_channels)}
    return keras.Model(image, outputs, name=f"ssd_mobilenet_v2_fpnlite_{height}x{width}")


def _separable(
    layers: ConvLayers,
    num_channels: int,
    kernel_size: int,
    name: str,
    *,
    kernels: tuple[str, ...] = ("depthwise",),
    **settings: Any,
) -> keras.Layer:
    """`kernels` get the configured initializer and penalty; `settings` are Keras'."""
    for prefix in kernels:
        settings |= layers.kernel(prefix)
    return keras.layers.SeparableConv2D(num_channels, kernel_size, padding="same", name=name, **settings)


def _build_fpn_lite(
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
        conv = _separable(layers, num_channels, 3, f"neck_smooth_{level}", use_bias=layers.use_bias)
        pyramid[level] = layers.finish(conv(merged), conv.name)
    for level in range(top + 1, neck.max_level + 1):
        conv = _separable(layers, num_channels, 3, f"neck_coarse_{level}", use_bias=layers.use_bias, strides=2)
        pyramid[level] = layers.finish(conv(pyramid[level - 1]), conv.name)
    return {level: pyramid[level] for level in sorted(pyramid)}


def _build_shared_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level. Convolutions are shared by the levels, batch norm is each level's own."""
    assert isinstance(config.box_predictor, WeightSharedConvolutionalBoxPredictor), config.box_predictor
    head, per_location = config.box_predictor, num_anchors_per_location(config.anchor_generator)
    layers = ConvLayers(head.conv_hyperparams, config.freeze_batchnorm)
    tower_bias = head.conv_hyperparams.batch_norm is None or head.conv_hyperparams.force_use_bias
    in_tower = ("depthwise", "pointwise") if head.apply_conv_hyperparams_pointwise else ("depthwise",)
    in_last = ("depthwise", "pointwise") if head.apply_conv_hyperparams_to_heads else ()
    tower = [
        _separable(layers, head.depth, head.kernel_size, f"head_conv_{i}", kernels=in_tower, use_bias=tower_bias)
        for i in range(head.num_layers_before_predictor)
    ]
    dropout = keras.layers.Dropout(1 - head.dropout_keep_probability, name="head_dropout")

    def last(num_channels: int, bias: float, name: str) -> keras.Layer:
        initial = keras.initializers.Constant(bias)
        return _separable(layers, num_channels, head.kernel_size, name, kernels=in_last, bias_initializer=initial)

    to_offsets = last(per_location * 4, 0.0, "head_offsets")
    to_logits = last(per_location * num_class_channels, head.class_prediction_bias_init, "head_classes")
    offsets, logits = [], []
    for level, feature in pyramid.items():
        for conv in tower:
            feature = layers.finish(conv(feature), f"{conv.name}_level_{level}")
        offsets.append(to_offsets(feature))
        logits.append(to_logits(dropout(feature) if head.use_dropout else feature))
    return offsets, logits


def _concat_levels(levels: list[keras.KerasTensor], depth: int) -> keras.KerasTensor:
    """[B, H, W, anchors * depth] of each level to float32 [B, A, depth]."""
    flat = [keras.layers.Reshape((-1, depth))(level) for level in levels]
    joined = keras.layers.Concatenate(axis=1)(flat) if len(flat) > 1 else flat[0]
    return keras.layers.Activation("linear", dtype=tf.float32)(joined)
