"""Network of CenterNet: a backbone, a path up to stride 4, and three heads; with keypoints, six.

The structure is that of the feature extractors `center_net_resnet_v1_fpn`, `center_net_resnet` (ResNet V2),
`center_net_mobilenet_v2_fpn` and `center_net_hourglass` and of `make_prediction_net` in the Object Detection API, which
uses no regularization and the Keras initializers. Each of several stacked hourglasses has heads of its own.
"""

from typing import Any

import keras
import tensorflow as tf

from detloom.schemas.model.center_net import CenterNet, CenterNetFeatureExtractor, PredictionHeadParams
from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.detectors.preprocess import VGG_MEANS, network_hw
from detloom.trainer_module.layers.backbones.hourglass import HOURGLASSES, build_hourglasses
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.conv_layers import Levels
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

STRIDE = 4  # of the heat map
OUTPUTS = ("class_logits_BHWK", "sizes_BHW2", "offsets_BHW2")
# `Q`: y and x of each of `P` keypoints; offsets without `per_keypoint_offset`: of all together.
KEYPOINT_OUTPUTS = ("keypoint_logits_BHWP", "keypoint_offsets_BHWQ", "keypoint_regression_BHWQ")
PIXELS, OBJECTS = "pixel_embeddings_BHWD", "instance_embeddings_BHWE"  # with masks, see deepmac.py
EMBEDDING_HEAD = PredictionHeadParams(num_filters=(256,), kernel_sizes=(3,))
# Layers of the backbone that enter the top-down path, by level; level l has stride 2**l.
_LAYER_BY_LEVEL = {
    "mobilenet_v2": {2: "block_2_add", 3: "block_5_add", 4: "block_9_add", 5: "out_relu"},
    "resnet50_v1": {2: "conv2_block3_out", 3: "conv3_block4_out", 4: "conv4_block6_out", 5: "conv5_block3_out"},
    "resnet101_v1": {2: "conv2_block3_out", 3: "conv3_block4_out", 4: "conv4_block23_out", 5: "conv5_block3_out"},
    # The reference stores the batch norm after this layer, and never uses it.
    "resnet50_v2": {5: "conv5_block3_out"},
    "resnet101_v2": {5: "conv5_block3_out"},
}
# Channels of the top-down path where levels 5, 4, 3 and 2 enter, and of its output.
_CHANNELS = {
    "mobilenet_v2": (64, 64, 32, 24, 24),
    "resnet50_v1": (256, 256, 128, 64, 64),
    "resnet101_v1": (256, 256, 128, 64, 64),
}
_TRANSPOSED_CHANNELS = {4: 256, 3: 128, 2: 64}  # of the path without laterals, by level


def normalize(extractor: CenterNetFeatureExtractor, image_HW3: tf.Tensor) -> tf.Tensor:
    """Convert float32 colors of 0 to 255 to the units of the backbone.

    The means and deviations of the extractor are applied first, then the normalization of keras.applications, which
    gives ResNets V1 BGR.
    """
    if extractor.bgr_ordering:
        image_HW3 = image_HW3[..., ::-1]
    means, stds = extractor.channel_means or (0.0,) * 3, extractor.channel_stds or (1.0,) * 3
    image_HW3 = (image_HW3 - tf.constant(means)) / tf.constant(stds)
    if extractor.backbone in HOURGLASSES:
        return image_HW3
    if extractor.backbone in ("mobilenet_v2", "resnet50_v2", "resnet101_v2"):
        return image_HW3 / 127.5 - 1.0
    return image_HW3[..., ::-1] - tf.constant(VGG_MEANS[::-1])


def build_centernet(config: CenterNet, num_classes: int) -> keras.Model:
    """Build the network from prepared images [B, H, W, 3] to float32 maps of a quarter of the size.

    Outputs: those of `OUTPUTS`, with keypoints those of `KEYPOINT_OUTPUTS`, and with masks `PIXELS` and `OBJECTS`. All
    but logits and embeddings are in cells of the map.
    Outputs of stacked hourglasses before the last one have the suffixes of `output_suffixes`.
    """
    height, width = network_hw(config.image_resizer)
    image = keras.Input((height, width, 3), name="image")
    outputs: dict[str, keras.KerasTensor] = {}
    suffixes = output_suffixes(config.feature_extractor)
    for features, suffix in zip(_build_features(config.feature_extractor, image), suffixes, strict=True):
        outputs |= _heads(config, num_classes, features, suffix)
    return keras.Model(image, outputs, name=f"centernet_{config.feature_extractor.backbone}_{height}x{width}")


def output_suffixes(config: CenterNetFeatureExtractor) -> tuple[str, ...]:
    """Return the suffix of the names of each feature map's heads and outputs; that of the last one is empty.

    Only the last one has detections. The losses of all are trained.
    """
    num_stacked = HOURGLASSES[config.backbone].num_stacked if config.backbone in HOURGLASSES else 1
    return (*(f"_hourglass{number}" for number in range(1, num_stacked)), "")


def _heads(
    config: CenterNet, num_classes: int, features: keras.KerasTensor, suffix: str
) -> dict[str, keras.KerasTensor]:
    """Build the outputs of one feature map, by name."""
    centers, boxes = config.object_center_params, config.object_detection_task
    bias = keras.initializers.Constant(centers.heatmap_bias_init)

    def head(params: PredictionHeadParams, channels: int, prefix: str, last: str, **settings: Any) -> keras.KerasTensor:
        inputs = features
        for i, (filters, size) in enumerate(zip(params.num_filters, params.kernel_sizes, strict=True)):
            name = f"{prefix}_conv_{i}{suffix}"
            inputs = _conv(inputs, filters, size, name, separable=config.use_depthwise)
            inputs = keras.layers.ReLU(name=f"{name}_activation")(inputs)
        outputs = keras.layers.Conv2D(channels, 1, name=f"{last}{suffix}", **settings)(inputs)
        return keras.layers.Activation("linear", dtype=tf.float32, name=f"{last}{suffix}_float32")(outputs)

    class_logits = head(centers.center_head_params, num_classes, "head_class", "head_classes", bias_initializer=bias)
    sizes = head(boxes.scale_head_params, 2, "head_size", "head_size")
    offsets = head(boxes.offset_head_params, 2, "head_offset", "head_offset")
    found = dict(zip(OUTPUTS, (class_logits, sizes, offsets), strict=True))
    if (task := config.keypoint_estimation_task) is not None:
        num_points = len(task.points)
        num_offsets = 2 * num_points if task.per_keypoint_offset else 2
        bias = keras.initializers.Constant(task.heatmap_bias_init)
        name = "head_keypoint_heatmap"
        heatmap = head(task.heatmap_head_params, num_points, name, name, bias_initializer=bias)
        name = "head_keypoint_offset"
        point_offsets = head(task.offset_head_params, num_offsets, name, name)
        name = "head_keypoint_regression"
        regression = head(task.regress_head_params, 2 * num_points, name, name)
        found |= dict(zip(KEYPOINT_OUTPUTS, (heatmap, point_offsets, regression), strict=True))
    if (masks := config.deepmac_mask_estimation) is not None:
        found[PIXELS] = _embedding(features, masks.pixel_embedding_dim, "head_pixel_embedding", suffix)
        found[OBJECTS] = _embedding(features, masks.dim, "head_instance_embedding", suffix)
    return {f"{name}{suffix}": output for name, output in found.items()}


def _embedding(features: keras.KerasTensor, channels: int, name: str, suffix: str) -> keras.KerasTensor:
    """Build the head of an embedding; its kernel is one cell high, by a default of the reference."""
    (filters,), (width,) = EMBEDDING_HEAD.num_filters, EMBEDDING_HEAD.kernel_sizes
    layer = f"{name}_conv_0{suffix}"
    hidden = keras.layers.Conv2D(filters, (1, width), padding="same", name=layer)(features)
    hidden = keras.layers.ReLU(name=f"{layer}_activation")(hidden)
    outputs = keras.layers.Conv2D(channels, 1, name=f"{name}{suffix}")(hidden)
    return keras.layers.Activation("linear", dtype=tf.float32, name=f"{name}{suffix}_float32")(outputs)


def _build_features(config: CenterNetFeatureExtractor, image: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Build the feature maps of level 2, the inputs of the heads."""
    match config.backbone:
        case "hourglass_10" | "hourglass_20" | "hourglass_32" | "hourglass_52" | "hourglass_104":
            return build_hourglasses(HOURGLASSES[config.backbone], image)
        case "resnet50_v2" | "resnet101_v2":
            return [_transposed_path_up(build_centernet_backbone(config, image)[5])]
        case _:
            return [_path_up(config, build_centernet_backbone(config, image))]


def build_centernet_backbone(config: CenterNetFeatureExtractor, image: keras.KerasTensor) -> Levels:
    """Build the feature maps that the path up uses, by level; level l has stride 2**l."""
    match config.backbone:
        case "mobilenet_v2":
            levels = build_mobilenet_v2(_mobilenet_v2_config(config), image, freeze_batchnorm=False)
            backbone = keras.Model(image, levels[5])
        case "resnet50_v1":
            backbone = _with_fused_batch_norm(keras.applications.ResNet50(include_top=False, weights=None), image)
        case "resnet101_v1":
            backbone = _with_fused_batch_norm(keras.applications.ResNet101(include_top=False, weights=None), image)
        case "resnet50_v2":
            backbone = _with_fused_batch_norm(keras.applications.ResNet50V2(include_top=False, weights=None), image)
        case "resnet101_v2":
            backbone = _with_fused_batch_norm(keras.applications.ResNet101V2(include_top=False, weights=None), image)
        case _:
            raise AssertionError(f"no levels: {config.backbone}")
    return {level: backbone.get_layer(name).output for level, name in _LAYER_BY_LEVEL[config.backbone].items()}


def _mobilenet_v2_config(config: CenterNetFeatureExtractor) -> FeatureExtractor:
    """Return the settings of MobileNetV2 in the form of single-shot detectors, without weight penalty."""
    return FeatureExtractor(
        backbone="mobilenet_v2",
        neck=Fpn(),  # unused: the top-down path is built here
        conv_hyperparams=ConvHyperparams(
            regularizer=L2Regularizer(weight=0.0),
            initializer=TruncatedNormalInitializer(stddev=0.09),
            activation="RELU_6",
            batch_norm=BatchNorm(decay=0.9997, scale=True, epsilon=1e-3),
        ),
        depth_multiplier=config.depth_multiplier,
        min_depth=8,  # channels are rounded to multiples of 8 anyway
        override_base_feature_extractor_hyperparams=True,
    )


def _with_fused_batch_norm(backbone: keras.Model, image: keras.KerasTensor) -> keras.Model:
    """Copy a network of keras.applications onto `image`, with `FusedBatchNorm`."""

    def clone(layer: keras.Layer) -> keras.Layer:
        cls = FusedBatchNorm if isinstance(layer, keras.layers.BatchNormalization) else type(layer)
        return cls.from_config(layer.get_config())

    return keras.models.clone_model(backbone, input_tensors=image, clone_function=clone)


def _path_up(config: CenterNetFeatureExtractor, levels: Levels) -> keras.KerasTensor:
    """Three times: upsample, add the level of that size, convolve to the channels of the next level.

    Bilinear upsampling is float32: XLA does not compile its gradient in bfloat16 and float16.
    """
    dtype = tf.float32 if config.upsampling_interpolation == "bilinear" else None
    top, *channels = _CHANNELS[config.backbone]
    features = keras.layers.Conv2D(top, 1, name="neck_lateral_5")(levels[5])
    for level, lateral_channels, next_channels in zip((4, 3, 2), channels, channels[1:], strict=False):
        upsample = keras.layers.UpSampling2D(
            2, interpolation=config.upsampling_interpolation, dtype=dtype, name=f"neck_upsample_{level}"
        )
        lateral = keras.layers.Conv2D(lateral_channels, 1, name=f"neck_lateral_{level}")(levels[level])
        features = keras.layers.Add(name=f"neck_merge_{level}")([upsample(features), lateral])
        name = f"neck_smooth_{level}"
        features = _conv(features, next_channels, 3, name, separable=config.use_separable_conv)
        features = FusedBatchNorm(name=f"{name}_bn")(features)
        features = keras.layers.ReLU(name=f"{name}_activation")(features)
    return features


def _transposed_path_up(features: keras.KerasTensor) -> keras.KerasTensor:
    """Three times: convolve, and double the size by a transposed convolution."""
    for level, channels in _TRANSPOSED_CHANNELS.items():
        layers: tuple[keras.layers.Layer, ...] = (
            keras.layers.Conv2D(channels, 3, padding="same", name=f"neck_smooth_{level + 1}"),
            keras.layers.Conv2DTranspose(channels, 3, 2, "same", name=f"neck_upsample_{level}"),
        )
        for layer in layers:
            features = FusedBatchNorm(name=f"{layer.name}_bn")(layer(features))
            features = keras.layers.ReLU(name=f"{layer.name}_activation")(features)
    return features


def _conv(
    features: keras.KerasTensor, channels: int, kernel_size: int, name: str, *, separable: bool
) -> keras.KerasTensor:
    layer = keras.layers.SeparableConv2D if separable else keras.layers.Conv2D
    return layer(channels, kernel_size, padding="same", name=name)(features)
