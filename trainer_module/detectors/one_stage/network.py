"""Network of a single-shot detector: normalization, backbone, neck and heads.

Letters: `B` images, `A` anchors, `C` class channels (classes, after a background channel if there is one).
"""

import keras
import tensorflow as tf

from detloom.schemas.model.detector import Ssd
from detloom.schemas.model.network import (
    Backbone,
    BiFpn,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.trainer_module.detectors.one_stage.heads import build_level_heads, build_shared_heads
from detloom.trainer_module.detectors.preprocess import VGG_MEANS, network_hw
from detloom.trainer_module.layers.backbones.efficientnet import build_efficientnet, is_efficientnet_lite
from detloom.trainer_module.layers.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.backbones.resnet_v1 import build_resnet_v1
from detloom.trainer_module.layers.conv_layers import Levels, join_levels, pad_to_multiple
from detloom.trainer_module.layers.necks.bifpn import build_bifpn
from detloom.trainer_module.layers.necks.extra_layers import build_extra_layers
from detloom.trainer_module.layers.necks.fpn import build_fpn

_IMAGENET_MEANS, _IMAGENET_STDS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LITE_MEAN, _LITE_STD = 127.0, 128.0  # of EfficientNet-Lite, in google/automl's hparams_config.py


@tf.autograph.experimental.do_not_convert  # AutoGraph does not support `match`
def normalize(backbone: Backbone, image_HW3: tf.Tensor) -> tf.Tensor:
    """Convert float32 colors of 0 to 255 to the units of the backbone, with the reference's order of operations."""
    match backbone:
        case "mobilenet_v1" | "mobilenet_v2":
            return (2.0 / 255.0) * image_HW3 - 1.0
        case "resnet50_v1" | "resnet101_v1" | "resnet152_v1":
            return image_HW3 - tf.constant(VGG_MEANS)
        case _:
            assert backbone.startswith("efficientnet"), backbone
            if is_efficientnet_lite(backbone):
                return (image_HW3 - _LITE_MEAN) / _LITE_STD
            return (image_HW3 / 255.0 - tf.constant(_IMAGENET_MEANS)) / tf.constant(_IMAGENET_STDS)


def build_ssd(config: Ssd, num_classes: int) -> keras.Model:
    """Build the network from prepared images [B, H, W, 3] to {"offsets_BA4", "class_logits_BAC"}, float32."""
    height, width = network_hw(config.image_resizer)
    extractor = config.feature_extractor
    image = keras.Input((height, width, 3), name="image")
    padded = pad_to_multiple(image, extractor.pad_to_multiple)
    features = _build_backbone(extractor, padded, freeze_batchnorm=config.freeze_batchnorm)
    pyramid = _build_neck(extractor, features, freeze_batchnorm=config.freeze_batchnorm)
    num_channels = num_classes + int(config.add_background_class)
    offsets, logits = _build_heads(config, pyramid, num_channels)
    outputs = {"offsets_BA4": join_levels(offsets, 4), "class_logits_BAC": join_levels(logits, num_channels)}
    return keras.Model(image, outputs, name=f"ssd_{extractor.backbone}{_name_neck(extractor)}_{height}x{width}")


def _name_neck(config: FeatureExtractor) -> str:
    """Return the part of a network's name that tells its neck, as the names of the detection zoo do."""
    match config.neck:
        case Fpn():
            return "_fpnlite" if config.use_depthwise else "_fpn"
        case BiFpn():
            return "_bifpn"
    return ""


def _build_backbone(config: FeatureExtractor, image: keras.KerasTensor, *, freeze_batchnorm: bool) -> Levels:
    match config.backbone:
        case "mobilenet_v1":
            return build_mobilenet_v1(config, image, freeze_batchnorm=freeze_batchnorm)
        case "mobilenet_v2":
            return build_mobilenet_v2(config, image, freeze_batchnorm=freeze_batchnorm)
        case "resnet50_v1" | "resnet101_v1" | "resnet152_v1":
            return build_resnet_v1(config, image, freeze_batchnorm=freeze_batchnorm)
        case _:
            return build_efficientnet(config, image, freeze_batchnorm=freeze_batchnorm)


def _build_neck(config: FeatureExtractor, features: Levels, *, freeze_batchnorm: bool) -> Levels:
    match config.neck:
        case Fpn():
            return build_fpn(config, features, freeze_batchnorm=freeze_batchnorm)
        case BiFpn():
            return build_bifpn(config, features, freeze_batchnorm=freeze_batchnorm)
        case ExtraFeatureLayers():
            return build_extra_layers(config, features, freeze_batchnorm=freeze_batchnorm)
    raise AssertionError(f"no such neck: {config.neck}")


def _build_heads(
    config: Ssd, pyramid: Levels, num_class_channels: int
) -> tuple[list[keras.KerasTensor], list[keras.KerasTensor]]:
    match config.box_predictor:
        case ConvolutionalBoxPredictor():
            return build_level_heads(config, pyramid, num_class_channels)
        case WeightSharedConvolutionalBoxPredictor():
            return build_shared_heads(config, pyramid, num_class_channels)
    raise AssertionError(f"no such heads: {config.box_predictor}")
