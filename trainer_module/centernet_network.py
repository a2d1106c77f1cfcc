"""CenterNet's network: a backbone, a path back up to a stride of 4, and three heads.

Structure as the Object Detection API's `center_net_resnet_v1_fpn` and `center_net_mobilenet_v2_fpn` feature extractors
and its `make_prediction_net`. That API gives these networks no regularization and Keras' own initializers.
"""

from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.center_net_config import CenterNet, CenterNetFeatureExtractor, PredictionHeadParams
from detloom.schemas.network_config import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.preprocess import network_hw

STRIDE = 4  # of the heat map
# The layers of the backbone that the path up starts from and adds, by level: their stride is 2**level.
_LAYER_BY_LEVEL = {
    "mobilenet_v2": {2: "block_2_add", 3: "block_5_add", 4: "block_9_add", 5: "out_relu"},
    "resnet50_v1": {2: "conv2_block3_out", 3: "conv3_block4_out", 4: "conv4_block6_out", 5: "conv5_block3_out"},
    "resnet101_v1": {2: "conv2_block3_out", 3: "conv3_block4_out", 4: "conv4_block23_out", 5: "conv5_block3_out"},
}
# Channels of the path up where level 5, 4, 3 and 2 enter, and of its end.
_CHANNELS = {
    "mobilenet_v2": (64, 64, 32, 24, 24),
    "resnet50_v1": (256, 256, 128, 64, 64),
    "resnet101_v1": (256, 256, 128, 64, 64),
}


def build_centernet(config: CenterNet, num_classes: int) -> keras.Model:
    """Network from prepared pictures, [B, H, W, 3], to float32 maps of a quarter of the size.

    Its outputs are {"class_logits_BHWK", "sizes_BHW2", "offsets_BHW2"}; sizes and offsets in cells of the map.
    """
    height, width = network_hw(config.image_resizer)
    image = keras.Input((height, width, 3), name="image")
    features = _path_up(config.feature_extractor, build_centernet_backbone(config.feature_extractor, image))
    centers, boxes = config.object_center_params, config.object_detection_task
    bias = keras.initializers.Constant(centers.heatmap_bias_init)

    def head(params: PredictionHeadParams, channels: int, prefix: str, last: str, **settings: Any) -> keras.KerasTensor:
        inputs = features
        for i, (filters, size) in enumerate(zip(params.num_filters, params.kernel_sizes, strict=True)):
            name = f"{prefix}_conv_{i}"
            inputs = _conv(inputs, filters, size, name, separable=config.use_depthwise)
            inputs = keras.layers.ReLU(name=f"{name}_activation")(inputs)
        outputs = keras.layers.Conv2D(channels, 1, name=last, **settings)(inputs)
        return keras.layers.Activation("linear", dtype=tf.float32, name=f"{last}_float32")(outputs)

    outputs = {
        "class_logits_BHWK": head(
            centers.center_head_params, num_classes, "head_class", "head_classes", bias_initializer=bias
        ),
        "sizes_BHW2": head(boxes.scale_head_params, 2, "head_size", "head_size"),
        "offsets_BHW2": head(boxes.offset_head_params, 2, "head_offset", "head_offset"),
    }
    return keras.Model(image, outputs, name=f"centernet_{config.feature_extractor.backbone}_{height}x{width}")


def build_centernet_backbone(
    config: CenterNetFeatureExtractor, image: keras.KerasTensor
) -> dict[int, keras.KerasTensor]:
    """Feature maps of the levels 2 to 5, which have strides of 2**level."""
    match config.backbone:
        case "mobilenet_v2":
            levels = build_mobilenet_v2(centernet_backbone_config(config), image, freeze_batchnorm=False)
            backbone = keras.Model(image, levels[5])
        case "resnet50_v1":
            backbone = _with_fused_batch_norm(keras.applications.ResNet50(include_top=False, weights=None), image)
        case "resnet101_v1":
            backbone = _with_fused_batch_norm(keras.applications.ResNet101(include_top=False, weights=None), image)
    return {level: backbone.get_layer(name).output for level, name in _LAYER_BY_LEVEL[config.backbone].items()}


def centernet_backbone_config(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    """The backbone as single-shot detectors describe theirs, without their penalty on the weights."""
    return FeatureExtractor(
        backbone=config.backbone,
        neck=Fpn(),  # stands in: the path up is built here
        conv_hyperparams=ConvHyperparams(
            regularizer=L2Regularizer(weight=0.0),
            initializer=TruncatedNormalInitializer(stddev=0.09),
            activation="RELU_6",
            batch_norm=BatchNorm(decay=0.9997, scale=True, epsilon=1e-3),
        ),
        depth_multiplier=config.depth_multiplier,
        min_depth=8,  # what channels are rounded to anyway
        override_base_feature_extractor_hyperparams=True,
    )


def _with_fused_batch_norm(backbone: keras.Model, image: keras.KerasTensor) -> keras.Model:
    """A copy of a network of keras.applications on `image`; see `FusedBatchNorm`."""

    def clone(layer: keras.Layer) -> keras.Layer:
        cls = FusedBatchNorm if isinstance(layer, keras.layers.BatchNormalization) else type(layer)
        return cls.from_config(layer.get_config())

    return keras.models.clone_model(backbone, input_tensors=image, clone_function=clone)


def _path_up(config: CenterNetFeatureExtractor, levels: dict[int, keras.KerasTensor]) -> keras.KerasTensor:
    """Three times: double, add the level of that size, convolve to the next level's channels."""
    top, *channels = _CHANNELS[config.backbone]
    features = keras.layers.Conv2D(top, 1, name="neck_lateral_5")(levels[5])
    for level, lateral_channels, next_channels in zip((4, 3, 2), channels, channels[1:], strict=False):
        upsample = keras.layers.UpSampling2D(
            2, interpolation=config.upsampling_interpolation, name=f"neck_upsample_{level}"
        )
        lateral = keras.layers.Conv2D(lateral_channels, 1, name=f"neck_lateral_{level}")(levels[level])
        features = keras.layers.Add(name=f"neck_merge_{level}")([upsample(features), lateral])
        name = f"neck_smooth_{level}"
        features = _conv(features, next_channels, 3, name, separable=config.use_separable_conv)
        features = FusedBatchNorm(name=f"{name}_bn")(features)
        features = keras.layers.ReLU(name=f"{name}_activation")(features)
    return features


def _conv(
    features: keras.KerasTensor, channels: int, kernel_size: int, name: str, *, separable: bool
) -> keras.KerasTensor:
    layer = keras.layers.SeparableConv2D if separable else keras.layers.Conv2D
    return layer(channels, kernel_size, padding="same", name=name)(features)
