"""The network of the single-shot detector: MobileNetV2, FPN-lite neck, heads shared by all levels.

Structure as `ssd_mobilenet_v2_fpn_keras` in the Object Detection API. Letters: `B` images, `A` anchors, `K` classes.
"""

import math

import keras
import tensorflow as tf

from detloom.schemas.config import BatchNorm, FpnLite, Ssd
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.fused_batch_norm import FusedBatchNorm

BACKBONE_TAPS = {3: "block_5_add", 4: "block_12_add", 5: "out_relu"}  # layer whose output has a stride of 2**level
_FINAL_STDDEV = 0.01  # of the last convolutions' weights, so that training starts at the prior (arXiv:1708.02002, 4.1)


def build_ssd(detector: Ssd, num_classes: int) -> keras.Model:
    """Network from pictures scaled to [-1, 1], [B, H, W, 3], to {"offsets_BA4", "class_logits_BAK"}, float32."""
    size = detector.image_size
    backbone = _build_mobilenet_v2(detector)
    neck = detector.neck
    features = {
        level: backbone.get_layer(name).output for level, name in BACKBONE_TAPS.items() if level >= neck.min_level
    }
    pyramid = _build_fpn_lite(neck, detector.batch_norm, features)
    offsets, logits = _build_shared_heads(detector, pyramid, num_classes)
    outputs = {"offsets_BA4": _concat_levels(offsets, 4), "class_logits_BAK": _concat_levels(logits, num_classes)}
    return keras.Model(backbone.input, outputs, name=f"ssd_mobilenet_v2_fpnlite_{size.height}x{size.width}")


def _build_mobilenet_v2(detector: Ssd) -> keras.Model:
    size = detector.image_size
    model = keras.applications.MobileNetV2(
        input_shape=(size.height, size.width, 3),
        alpha=detector.backbone.width_multiplier,
        include_top=False,
        weights=None,
    )

    def with_our_batch_norm(layer: keras.Layer) -> keras.Layer:  # keras.applications fixes momentum at 0.999
        if isinstance(layer, keras.layers.BatchNormalization):
            return _batch_norm(detector.batch_norm, layer.name)
        return type(layer).from_config(layer.get_config())

    return keras.models.clone_model(model, clone_function=with_our_batch_norm)


def _batch_norm(config: BatchNorm, name: str) -> keras.Layer:
    return FusedBatchNorm(momentum=config.momentum, epsilon=config.epsilon, name=name)


def _separable(num_channels: int, name: str, strides: int = 1) -> keras.Layer:
    return keras.layers.SeparableConv2D(
        num_channels,
        kernel_size=3,
        strides=strides,
        padding="same",
        use_bias=False,
        depthwise_initializer="he_normal",
        pointwise_initializer="he_normal",
        name=name,
    )


def _build_fpn_lite(
    neck: FpnLite, batch_norm: BatchNorm, features: dict[int, keras.KerasTensor]
) -> dict[int, keras.KerasTensor]:
    """Pyramid by level. Top-down path with nearest-neighbour upsampling; coarser levels by stride-2 convolutions."""

    def lateral(level: int) -> keras.KerasTensor:
        conv = keras.layers.Conv2D(neck.num_channels, 1, padding="same", name=f"neck_lateral_{level}")
        return conv(features[level])

    top = max(features)
    merged = lateral(top)
    pyramid = {top: merged}
    for level in range(top - 1, neck.min_level - 1, -1):
        upsampled = keras.layers.UpSampling2D(2, interpolation="nearest", name=f"neck_upsample_{level}")(merged)
        merged = keras.layers.Add(name=f"neck_merge_{level}")([lateral(level), upsampled])
        smooth = _separable(neck.num_channels, f"neck_smooth_{level}")(merged)
        smooth = _batch_norm(batch_norm, f"neck_smooth_{level}_bn")(smooth)
        pyramid[level] = keras.layers.ReLU(6.0, name=f"neck_smooth_{level}_relu")(smooth)
    for level in range(top + 1, neck.max_level + 1):
        coarse = _separable(neck.num_channels, f"neck_coarse_{level}", strides=2)(pyramid[level - 1])
        coarse = _batch_norm(batch_norm, f"neck_coarse_{level}_bn")(coarse)
        pyramid[level] = keras.layers.ReLU(6.0, name=f"neck_coarse_{level}_relu")(coarse)
    return {level: pyramid[level] for level in sorted(pyramid)}


def _build_shared_heads(
    detector: Ssd, pyramid: dict[int, keras.KerasTensor], num_classes: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level. Convolutions are shared by the levels, batch norm is each level's own."""
    head, per_location = detector.head, num_anchors_per_location(detector)
    tower = [_separable(head.num_channels, f"head_conv_{i}") for i in range(head.num_layers)]

    def final(num_channels: int, bias: float, name: str) -> keras.Layer:
        return keras.layers.SeparableConv2D(
            num_channels,
            kernel_size=3,
            padding="same",
            depthwise_initializer="he_normal",
            pointwise_initializer=keras.initializers.RandomNormal(stddev=_FINAL_STDDEV),
            bias_initializer=keras.initializers.Constant(bias),
            name=name,
        )

    prior_logit = -math.log((1 - head.class_prior) / head.class_prior)
    to_offsets = final(per_location * 4, 0.0, "head_offsets")
    to_logits = final(per_location * num_classes, prior_logit, "head_classes")
    offsets, logits = [], []
    for level, feature in pyramid.items():
        for i, conv in enumerate(tower):
            feature = _batch_norm(detector.batch_norm, f"head_conv_{i}_level_{level}_bn")(conv(feature))
            feature = keras.layers.ReLU(6.0, name=f"head_conv_{i}_level_{level}_relu")(feature)
        offsets.append(to_offsets(feature))
        logits.append(to_logits(feature))
    return offsets, logits


def _concat_levels(levels: list[keras.KerasTensor], depth: int) -> keras.KerasTensor:
    """[B, H, W, anchors * depth] of each level to float32 [B, A, depth]."""
    flat = [keras.layers.Reshape((-1, depth))(level) for level in levels]
    joined = keras.layers.Concatenate(axis=1)(flat) if len(flat) > 1 else flat[0]
    return keras.layers.Activation("linear", dtype=tf.float32)(joined)
