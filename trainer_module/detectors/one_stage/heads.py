"""Heads of single-shot detectors: box offsets and class logits of each pyramid level."""

from collections import Counter
from dataclasses import dataclass

import keras

from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import ConvolutionalBoxPredictor, WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.boxes.anchors import num_anchors_per_location
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels

# --- plain SSD (arXiv:1512.02325): each level has its own convolutions ------------------------------------------------


def build_level_heads(
    config: Ssd, pyramid: Levels, num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Build offsets and class logits of each level; layer names end with the index of the level, from 0."""
    assert isinstance(config.box_predictor, ConvolutionalBoxPredictor), config.box_predictor
    head, layers = config.box_predictor, ConvLayers(config.box_predictor.conv_hyperparams, config.freeze_batchnorm)
    offsets, logits = [], []
    per_level = zip(pyramid.values(), num_anchors_per_location(config.anchor_generator), strict=True)
    for index, (feature, per_location) in enumerate(per_level):
        feature = _level_tower(head, layers, feature, index)
        offsets.append(_level_output(head, layers, feature, index, "box", "head_offsets", per_location * 4, 0.0))
        if head.use_dropout:
            dropout = keras.layers.Dropout(1 - head.dropout_keep_probability, name=f"head_class_dropout_{index}")
            feature = dropout(feature)
        num_channels, bias = per_location * num_class_channels, head.class_prediction_bias_init
        logits.append(_level_output(head, layers, feature, index, "class", "head_classes", num_channels, bias))
    return offsets, logits


def _level_tower(
    head: ConvolutionalBoxPredictor, layers: ConvLayers, features: keras.KerasTensor, index: int
) -> keras.KerasTensor:
    """Apply the 1x1 convolutions shared by boxes and classes."""
    depth = max(min(features.shape[-1], head.max_depth), head.min_depth)
    for i in range(head.num_layers_before_predictor if depth > 0 else 0):
        conv = layers.conv(depth, 1, f"head_conv_{i}_{index}")
        features = layers.finish(conv(features), conv.name)
    return features


def _level_output(
    head: ConvolutionalBoxPredictor,
    layers: ConvLayers,
    features: keras.KerasTensor,
    index: int,
    what: str,
    name: str,
    num_channels: int,
    bias: float,
) -> keras.KerasTensor:
    """Apply one convolution, or with `use_depthwise` two, the first with the Keras initializer and no penalty."""
    kernel_size = head.kernel_size
    if head.use_depthwise:
        depthwise = keras.layers.DepthwiseConv2D(
            kernel_size, padding="same", use_bias=layers.use_bias, name=f"head_{what}_depthwise_{index}"
        )
        features, kernel_size = layers.finish(depthwise(features), depthwise.name), 1
    settings = {"use_bias": True, "bias_initializer": keras.initializers.Constant(bias)}
    return layers.conv(num_channels, kernel_size, f"{name}_{index}", **settings)(features)


# --- RetinaNet and EfficientDet: all levels share the convolutions, and each has its own batch norm -------------------


def build_shared_heads(
    config: Ssd, pyramid: Levels, num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Build offsets and class logits of each level."""
    assert isinstance(config.box_predictor, WeightSharedConvolutionalBoxPredictor), config.box_predictor
    head, (per_location,) = config.box_predictor, set(num_anchors_per_location(config.anchor_generator))
    makes = _SharedLayers(head, ConvLayers(head.conv_hyperparams, config.freeze_batchnorm))
    shared = head.share_prediction_tower
    box_tower = makes.tower("head_conv" if shared else "head_box_conv")
    class_tower = box_tower if shared else makes.tower("head_class_conv")
    to_offsets = makes.last(per_location * 4, 0.0, "head_offsets")
    to_logits = makes.last(per_location * num_class_channels, head.class_prediction_bias_init, "head_classes")
    dropout = keras.layers.Dropout(1 - head.dropout_keep_probability, name="head_class_dropout")
    offsets, logits = [], []
    for level, feature in makes.of_one_depth(pyramid).items():
        for_boxes = makes.climb(box_tower, feature, level)
        for_classes = for_boxes if shared else makes.climb(class_tower, feature, level)
        offsets.append(to_offsets(for_boxes))
        logits.append(to_logits(dropout(for_classes) if head.use_dropout else for_classes))
    return offsets, logits


@dataclass(frozen=True)
class _SharedLayers:
    head: WeightSharedConvolutionalBoxPredictor
    layers: ConvLayers

    @property
    def use_bias(self) -> bool:
        """True before batch norm only if forced. Unlike elsewhere in the reference, its offset does not matter."""
        hyperparams = self.head.conv_hyperparams
        return hyperparams.batch_norm is None or hyperparams.force_use_bias

    def tower(self, prefix: str) -> list[keras.Layer]:
        head = self.head
        kernels = ("depthwise", "pointwise") if head.apply_conv_hyperparams_pointwise else ("depthwise",)
        return [
            self.layers.conv(
                head.depth,
                head.kernel_size,
                f"{prefix}_{i}",
                use_depthwise=head.use_depthwise,
                kernels=kernels,
                use_bias=self.use_bias,
            )
            for i in range(head.num_layers_before_predictor)
        ]

    def climb(self, tower: list[keras.Layer], features: keras.KerasTensor, level: int) -> keras.KerasTensor:
        for conv in tower:
            features = self.layers.finish(conv(features), f"{conv.name}_level_{level}")
        return features

    def last(self, num_channels: int, bias: float, name: str) -> keras.Layer:
        return self.layers.conv(
            num_channels,
            self.head.kernel_size,
            name,
            use_depthwise=self.head.use_depthwise,
            kernels=("depthwise", "pointwise") if self.head.apply_conv_hyperparams_to_heads else (),
            use_bias=True,
            bias_initializer=keras.initializers.Constant(bias),
        )

    def of_one_depth(self, pyramid: Levels) -> Levels:
        """Project all levels to the most frequent number of channels by 1x1 convolutions, if the numbers differ."""
        depths = Counter(features.shape[-1] for features in pyramid.values())
        if len(depths) == 1:
            return pyramid
        ((depth, _),) = depths.most_common(1)
        projected = {}
        for level, features in pyramid.items():
            name = f"head_project_level_{level}"
            conv = self.layers.conv(depth, 1, name, use_bias=self.use_bias)
            projected[level] = self.layers.normalize(conv(features), f"{name}_bn")
        return projected
