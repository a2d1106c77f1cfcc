"""Heads of plain SSD (arXiv:1512.02325): each level has convolutions of its own."""

import keras

from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import ConvolutionalBoxPredictor
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.conv_layers import ConvLayers


def build_level_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level; layers are named by the level's place, from 0."""
    assert isinstance(config.box_predictor, ConvolutionalBoxPredictor), config.box_predictor
    head, layers = config.box_predictor, ConvLayers(config.box_predictor.conv_hyperparams, config.freeze_batchnorm)
    offsets, logits = [], []
    per_level = zip(pyramid.values(), num_anchors_per_location(config.anchor_generator), strict=True)
    for index, (feature, per_location) in enumerate(per_level):
        feature = _tower(head, layers, feature, index)
        offsets.append(_last(head, layers, feature, index, "box", "head_offsets", per_location * 4, 0.0))
        if head.use_dropout:
            dropout = keras.layers.Dropout(1 - head.dropout_keep_probability, name=f"head_class_dropout_{index}")
            feature = dropout(feature)
        num_channels, bias = per_location * num_class_channels, head.class_prediction_bias_init
        logits.append(_last(head, layers, feature, index, "class", "head_classes", num_channels, bias))
    return offsets, logits


def _tower(
    head: ConvolutionalBoxPredictor, layers: ConvLayers, features: keras.KerasTensor, index: int
) -> keras.KerasTensor:
    """1x1 convolutions that boxes and classes share."""
    depth = max(min(features.shape[-1], head.max_depth), head.min_depth)
    for i in range(head.num_layers_before_predictor if depth > 0 else 0):
        conv = keras.layers.Conv2D(depth, 1, use_bias=layers.use_bias, name=f"head_conv_{i}_{index}", **layers.kernel())
        features = layers.finish(conv(features), conv.name)
    return features


def _last(
    head: ConvolutionalBoxPredictor,
    layers: ConvLayers,
    features: keras.KerasTensor,
    index: int,
    what: str,
    name: str,
    num_channels: int,
    bias: float,
) -> keras.KerasTensor:
    """One convolution, or with `use_depthwise` two, of which the first has Keras' initializer and no penalty."""
    kernel_size = head.kernel_size
    if head.use_depthwise:
        depthwise = keras.layers.DepthwiseConv2D(
            kernel_size, padding="same", use_bias=layers.use_bias, name=f"head_{what}_depthwise_{index}"
        )
        features, kernel_size = layers.finish(depthwise(features), depthwise.name), 1
    conv = keras.layers.Conv2D(
        num_channels,
        kernel_size,
        padding="same",
        bias_initializer=keras.initializers.Constant(bias),
        name=f"{name}_{index}",
        **layers.kernel(),
    )
    return conv(features)
