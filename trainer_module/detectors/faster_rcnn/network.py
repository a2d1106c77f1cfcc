"""Networks of Faster R-CNN: backbone, first-stage heads, and the layers that are applied to each cropped region.

The structure is that of the feature extractors `faster_rcnn_resnet*_keras`, `faster_rcnn_resnet*_fpn_keras` and
`faster_rcnn_inception_resnet_v2_keras` and of `faster_rcnn_meta_arch.py` in the Object Detection API. Letters: `B`
images, `A` anchors, `N` regions of all images, `Q` boxes per region (1, or one per class), `C` class channels
(background, then the classes), `h` and `w` rows and columns of a mask, `L` masks per region (1, or one per class).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import keras
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.faster_rcnn import FasterRcnn, FasterRcnnFeatureExtractor
from detloom.schemas.model.network import FeatureExtractor, Fpn, L2Regularizer, MaskRcnnBoxPredictor
from detloom.trainer_module.boxes.anchors import num_anchors_per_location
from detloom.trainer_module.detectors.faster_rcnn.anchors import FIRST_STAGE_LEVEL, PYRAMID_PAD_MULTIPLE
from detloom.trainer_module.detectors.preprocess import VGG_MEANS, network_hw
from detloom.trainer_module.layers.backbones.inception_resnet_v2 import build_first_part, build_second_part
from detloom.trainer_module.layers.backbones.resnet_v1 import (
    RESNET_V1_HYPERPARAMS,
    build_resnet_v1,
    build_resnet_v1_level,
)
from detloom.trainer_module.layers.conv_layers import ConvLayers, Levels, join_levels, pad_to_multiple
from detloom.trainer_module.layers.necks.fpn import build_fpn

INCEPTION_RESNET_V2: Literal["inception_resnet_v2"] = "inception_resnet_v2"
_SECOND_STAGE_LEVEL = 5
_NUM_DENSE_UNITS = 1024  # of both layers after a crop from a pyramid


@dataclass(frozen=True, eq=False)
class Networks:
    """The network and its parts, which share its layers.

    Attributes:
        whole: from images and crops to the outputs of both stages; holds every layer. It is never called.
        first_stage: from images to {"rpn_offsets_BA4", "objectness_logits_BA2"}, float32, and {"features_<level>"}.
        second_stage: from crops [N, initial_crop_size, initial_crop_size, channels] to {"offsets_NQ4",
            "class_logits_NC"}, float32; None if there is one stage only.
        third_stage: from crops to {"mask_logits_NhwL"}, float32; None without masks.
        later_stages: from crops to the outputs of the second and third stage; None if there is one stage only.
        random: source of the random numbers of sampling.
    """

    whole: keras.Model
    first_stage: keras.Model
    second_stage: keras.Model | None
    third_stage: keras.Model | None
    later_stages: keras.Model | None
    random: "RandomSource"

    def convert(self, convert: Callable[[keras.Model], keras.Model]) -> "Networks":
        """Return a copy in which the network and each part is converted."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        models = {name: value for name, value in values.items() if isinstance(value, keras.Model)}
        return replace(self, **{name: convert(model) for name, model in models.items()})


class RandomSource(keras.layers.Layer):
    """Returns its input; has a seed that is stored with the network, so that a resumed run draws the same samples."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self._seed_generator = keras.random.SeedGenerator()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs

    def uniform(self, shape: tf.Tensor) -> tf.Tensor:
        """Return random numbers from 0 to 1, the same on all devices, and advance the seed."""
        seed = tf.cast(self._seed_generator.next() % (tf.int32.max - 1), tf.int32)  # XLA has no seeds of 64 bits
        return tf.random.stateless_uniform(shape, seed, alg="philox")


def normalize(backbone: str, image_HW3: tf.Tensor) -> tf.Tensor:
    """Convert float32 colors of 0 to 255 to the units of the backbone."""
    if backbone == INCEPTION_RESNET_V2:
        return image_HW3 * (2.0 / 255.0) - 1.0
    return image_HW3 - tf.constant(VGG_MEANS)


def backbone_config(config: FasterRcnnFeatureExtractor) -> FeatureExtractor:
    """Return the settings of a ResNet and its neck in the form of single-shot detectors.

    Without a pyramid, the reference does not penalize the backbone's weights, and the returned neck is not used.
    """
    assert config.backbone != INCEPTION_RESNET_V2
    if config.neck is None:
        return FeatureExtractor(
            backbone=config.backbone,
            neck=Fpn(),
            conv_hyperparams=replace(RESNET_V1_HYPERPARAMS, regularizer=L2Regularizer(weight=0.0)),
            override_base_feature_extractor_hyperparams=True,
        )
    assert config.conv_hyperparams is not None
    return FeatureExtractor(
        backbone=config.backbone,
        neck=config.neck,
        conv_hyperparams=config.conv_hyperparams,
        pad_to_multiple=PYRAMID_PAD_MULTIPLE,
        override_base_feature_extractor_hyperparams=config.override_base_feature_extractor_hyperparams,
    )


def build_networks(config: FasterRcnn, num_classes: int) -> Networks:
    """Build the networks with random weights."""
    height, width = network_hw(config.image_resizer)
    image = keras.Input((height, width, 3), name="image")
    features = _build_features(config.feature_extractor, image)
    rpn_outputs = _build_rpn_heads(config, features)
    first_stage = keras.Model(
        image, {**rpn_outputs, **{f"features_{level}": value for level, value in features.items()}}, name="first_stage"
    )
    name = f"faster_rcnn_{config.feature_extractor.backbone}_{height}x{width}"
    random = RandomSource("head_random")
    if config.number_of_stages == 1:
        outputs = {**rpn_outputs, "objectness_logits_BA2": random(rpn_outputs["objectness_logits_BA2"])}
        return Networks(keras.Model(image, outputs, name=name), first_stage, None, None, None, random)
    side, channels = config.initial_crop_size, next(iter(features.values())).shape[-1]
    crops = keras.Input((side, side, channels), name="crops")
    predictor = config.second_stage_box_predictor
    pool = keras.layers.MaxPooling2D(config.maxpool_kernel_size, config.maxpool_stride, name="crops_pool")
    regions = _build_region_features(config.feature_extractor, pool(random(crops)))
    outputs = _build_second_stage(predictor, regions, num_classes)
    masks = _build_third_stage(predictor, regions, num_classes) if predictor.predict_instance_masks else {}
    return Networks(
        whole=keras.Model([image, crops], {**rpn_outputs, **outputs, **masks}, name=name),
        first_stage=first_stage,
        second_stage=keras.Model(crops, outputs, name="second_stage"),
        third_stage=keras.Model(crops, masks, name="third_stage") if masks else None,
        later_stages=keras.Model(crops, {**outputs, **masks}, name="later_stages"),
        random=random,
    )


def _build_features(config: FasterRcnnFeatureExtractor, image: keras.KerasTensor) -> Levels:
    is_frozen = not config.batch_norm_trainable
    if config.backbone == INCEPTION_RESNET_V2:
        return {FIRST_STAGE_LEVEL: build_first_part(image, freeze_batchnorm=is_frozen)}
    extractor = backbone_config(config)
    if config.neck is None:
        levels = build_resnet_v1(extractor, image, freeze_batchnorm=is_frozen, max_level=FIRST_STAGE_LEVEL)
        return {FIRST_STAGE_LEVEL: levels[FIRST_STAGE_LEVEL]}
    padded = pad_to_multiple(image, extractor.pad_to_multiple)
    levels = build_resnet_v1(extractor, padded, freeze_batchnorm=is_frozen)
    return build_fpn(extractor, levels, freeze_batchnorm=is_frozen)


def _build_rpn_heads(config: FasterRcnn, features: Levels) -> dict[str, keras.KerasTensor]:
    """Build the region proposal network: one convolution for all levels, and two heads for each level."""
    layers = ConvLayers(config.first_stage_box_predictor_conv_hyperparams, freeze_batchnorm=False)
    conv = layers.conv(
        config.first_stage_box_predictor_depth,
        config.first_stage_box_predictor_kernel_size,
        "head_rpn_conv",
        dilation_rate=config.first_stage_atrous_rate,
    )
    batch_norm = layers.batch_norm("head_rpn_conv_bn")
    activate = keras.layers.ReLU(6.0, name="head_rpn_conv_activation")
    counts = num_anchors_per_location(config.first_stage_anchor_generator)
    found: dict[str, list[keras.KerasTensor]] = {"offsets": [], "objectness": []}
    for index, (feature, per_location) in enumerate(zip(features.values(), counts, strict=True)):
        hidden = conv(feature)
        hidden = activate(hidden if batch_norm is None else batch_norm(hidden))
        for what, depth in (("offsets", 4), ("objectness", 2)):
            head = layers.conv(per_location * depth, 1, f"head_rpn_{what}_{index}", use_bias=True)
            found[what].append(head(hidden))
    return {
        "rpn_offsets_BA4": join_levels(found["offsets"], 4),
        "objectness_logits_BA2": join_levels(found["objectness"], 2),
    }


def _build_second_stage(
    predictor: MaskRcnnBoxPredictor, regions: keras.KerasTensor, num_classes: int
) -> dict[str, keras.KerasTensor]:
    mean = keras.layers.GlobalAveragePooling2D(name="head_mean")(regions)
    layers = ConvLayers(predictor.fc_hyperparams, freeze_batchnorm=False)

    def head(num_outputs: int, name: str) -> keras.KerasTensor:
        inputs = mean
        if predictor.use_dropout:
            inputs = keras.layers.Dropout(1 - predictor.dropout_keep_probability, name=f"{name}_dropout")(mean)
        outputs = keras.layers.Dense(num_outputs, name=name, **layers.kernel())(inputs)
        outputs = _normalize_regions(layers, outputs, f"{name}_bn")
        return keras.layers.Activation("linear", dtype=tf.float32)(outputs)

    class_logits = head(num_classes + 1, "head_classes")
    # The name says whether the layer depends on the number of classes; see `weights/variable_names.py`.
    num_boxes, name = (
        (1, "head_offsets") if predictor.share_box_across_classes else (num_classes, "head_classes_offsets")
    )
    offsets = keras.layers.Reshape((num_boxes, 4), dtype=tf.float32)(head(num_boxes * 4, name))
    return {"class_logits_NC": class_logits, "offsets_NQ4": offsets}


def mask_depth(predictor: MaskRcnnBoxPredictor, num_feature_channels: int, num_classes: int) -> int:
    """Return the number of channels of the mask head.

    If it is computed, it is a power of two near the weighted geometric mean of both numbers, as in the reference's
    `_get_mask_predictor_conv_depth`.
    """
    if predictor.mask_prediction_conv_depth:
        return predictor.mask_prediction_conv_depth
    return 2 ** round((2 * math.log2(num_feature_channels) + 3 * math.log2(num_classes)) / 5)


def mask_prefix(predictor: MaskRcnnBoxPredictor) -> str:
    """Return the start of the names of the hidden layers of the mask head.

    It says whether their depth depends on the number of classes; see `weights/variable_names.py`.
    """
    return "head_mask" if predictor.mask_prediction_conv_depth else "head_classes_mask"


def _build_third_stage(
    predictor: MaskRcnnBoxPredictor, regions: keras.KerasTensor, num_classes: int
) -> dict[str, keras.KerasTensor]:
    """Build the mask head (arXiv:1703.06870, figure 4, with enlargement instead of transposed convolutions)."""
    assert predictor.conv_hyperparams is not None
    layers = ConvLayers(predictor.conv_hyperparams, freeze_batchnorm=False)
    depth = mask_depth(predictor, regions.shape[-1], num_classes)
    mask_hw = (predictor.mask_height, predictor.mask_width)
    prefix = mask_prefix(predictor)

    def convolve(features: keras.KerasTensor, name: str) -> keras.KerasTensor:
        return layers.finish(layers.conv(depth, 3, name)(features), name)

    features = regions
    if not predictor.convolve_then_upsample_masks:
        features = ResizeFeatures(mask_hw, name="head_mask_resize")(features)
    for index in range(predictor.mask_prediction_num_conv_layers - 1):
        features = convolve(features, f"{prefix}_conv_{index}")
    if predictor.convolve_then_upsample_masks:
        factors = _factors(mask_hw, regions.shape[1:3])
        features = keras.layers.UpSampling2D(factors, name="head_mask_upsample")(features)
        features = convolve(features, f"{prefix}_upsampled_conv")
    num_masks, name = (1, "head_masks") if predictor.masks_are_class_agnostic else (num_classes, "head_classes_masks")
    logits = layers.conv(num_masks, 3, name, use_bias=True)(features)
    return {"mask_logits_NhwL": keras.layers.Activation("linear", dtype=tf.float32)(logits)}


def _factors(mask_hw: tuple[int, int], region_hw: tuple[int, int]) -> tuple[int, int]:
    """Return by how much to enlarge the features of a region.

    Raises:
        InputError: for masks that are smaller than the features or not a multiple of them.
    """
    (mask_height, mask_width), (height, width) = mask_hw, region_hw
    if mask_height % height or mask_width % width:
        raise InputError(
            f"model.second_stage_box_predictor.mask_height, mask_width: got {mask_height}, {mask_width}, allowed with "
            f"convolve_then_upsample_masks: multiples of {height}, {width}, the cells of a region."
        )
    return mask_height // height, mask_width // width


class ResizeFeatures(keras.layers.Layer):
    """Resizes [N, H, W, channels] bilinearly; the corners of input and output are the same positions."""

    def __init__(self, target_hw: tuple[int, int], name: str) -> None:
        super().__init__(name=name)
        self._target_hw = target_hw

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        resized = tf.raw_ops.ResizeBilinear(images=inputs, size=self._target_hw, align_corners=True)
        return tf.cast(resized, inputs.dtype)


def _build_region_features(config: FasterRcnnFeatureExtractor, pooled: keras.KerasTensor) -> keras.KerasTensor:
    """Apply the last part of the backbone, or two fully connected layers, to the features of each region."""
    is_frozen = not config.batch_norm_trainable
    if config.backbone == INCEPTION_RESNET_V2:
        return build_second_part(pooled, freeze_batchnorm=is_frozen)
    extractor = backbone_config(config)
    if config.neck is None:
        return build_resnet_v1_level(extractor, pooled, _SECOND_STAGE_LEVEL, freeze_batchnorm=is_frozen)
    layers = ConvLayers(extractor.conv_hyperparams, is_frozen)
    flat = keras.layers.Flatten(name="neck_region_flat")(pooled)
    features = keras.layers.Dense(_NUM_DENSE_UNITS, activation="relu", name="neck_region_dense_1")(flat)
    features = _normalize_regions(layers, features, "neck_region_bn")
    features = keras.layers.Dense(_NUM_DENSE_UNITS, activation="relu", name="neck_region_dense_2")(features)
    return keras.layers.Reshape((1, 1, _NUM_DENSE_UNITS), name="neck_region_cell")(features)


def _normalize_regions(layers: ConvLayers, features: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Apply batch norm, which needs maps, to the features [N, channels] of regions."""
    channels = features.shape[-1]
    normalized = layers.normalize(keras.layers.Reshape((1, 1, channels))(features), name)
    return keras.layers.Reshape((channels,))(normalized)
