"""Heads whose convolutions all levels share, each level with a batch norm of its own (RetinaNet, EfficientDet)."""

import keras

from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import WeightSharedConvolutionalBoxPredictor
from detloom.trainer_module.anchors import num_anchors_per_location
from detloom.trainer_module.conv_layers import ConvLayers, separable


def build_shared_heads(
    config: Ssd, pyramid: dict[int, keras.KerasTensor], num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    """Offsets and class logits of each level. Convolutions are shared by the levels, batch norm is each level's own."""
    assert isinstance(config.box_predictor, WeightSharedConvolutionalBoxPredictor), config.box_predictor
    head, per_location = config.box_predictor, num_anchors_per_location(config.anchor_generator)[0]
    layers = ConvLayers(head.conv_hyperparams, config.freeze_batchnorm)
    tower_bias = head.conv_hyperparams.batch_norm is None or head.conv_hyperparams.force_use_bias
    in_tower = ("depthwise", "pointwise") if head.apply_conv_hyperparams_pointwise else ("depthwise",)
    in_last = ("depthwise", "pointwise") if head.apply_conv_hyperparams_to_heads else ()
    tower = [
        separable(layers, head.depth, head.kernel_size, f"head_conv_{i}", kernels=in_tower, use_bias=tower_bias)
        for i in range(head.num_layers_before_predictor)
    ]
    dropout = keras.layers.Dropout(1 - head.dropout_keep_probability, name="head_dropout")

    def last(num_channels: int, bias: float, name: str) -> keras.Layer:
        initial = keras.initializers.Constant(bias)
        return separable(layers, num_channels, head.kernel_size, name, kernels=in_last, bias_initializer=initial)

    to_offsets = last(per_location * 4, 0.0, "head_offsets")
    to_logits = last(per_location * num_class_channels, head.class_prediction_bias_init, "head_classes")
    offsets, logits = [], []
    for level, feature in pyramid.items():
        for conv in tower:
            feature = layers.finish(conv(feature), f"{conv.name}_level_{level}")
        offsets.append(to_offsets(feature))
        logits.append(to_logits(dropout(feature) if head.use_dropout else feature))
    return offsets, logits
