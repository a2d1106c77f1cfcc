"""Heads whose convolutions all levels share, each level with a batch norm of its own (RetinaNet, EfficientDet)."""

from collections import Counter
from dataclasses import dataclass

import keras

from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.conv_layers import ConvLayers, conv_or_separable


def build_shared_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level."""
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
        """Before batch norm: whether that has an offset is not asked here, unlike elsewhere in the reference."""
        hyperparams = self.head.conv_hyperparams
        return hyperparams.batch_norm is None or hyperparams.force_use_bias

    def tower(self, prefix: str) -> list[keras.Layer]:
        head = self.head
        kernels = ("depthwise", "pointwise") if head.apply_conv_hyperparams_pointwise else ("depthwise",)
        return [
            conv_or_separable(
                self.layers,
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
        return conv_or_separable(
            self.layers,
            num_channels,
            self.head.kernel_size,
            name,
            use_depthwise=self.head.use_depthwise,
            kernels=("depthwise", "pointwise") if self.head.apply_conv_hyperparams_to_heads else (),
            bias_initializer=keras.initializers.Constant(bias),
        )

    def of_one_depth(self, pyramid: dict[int, keras.KerasTensor]) -> dict[int, keras.KerasTensor]:
        """All levels with the most frequent number of channels, by 1x1 convolutions where they differ."""
        depths = Counter(features.shape[-1] for features in pyramid.values())
        if len(depths) == 1:
            return pyramid
        ((depth, _),) = depths.most_common(1)
        projected = {}
        for level, features in pyramid.items():
            name = f"head_project_level_{level}"
            conv = keras.layers.Conv2D(depth, 1, use_bias=self.use_bias, name=name, **self.layers.kernel())
            projected[level] = self.layers.normalize(conv(features), f"{name}_bn")
        return projected
