"""Presets: configurations of published detectors (those of the TF2 zoo that detloom trains, and google/automl's
EfficientDet D7x and Lite).

Each preset equals the zoo's `pipeline.config` of the same name (github.com/tensorflow/models,
research/object_detection/configs/tf2), including learning rate, steps and batch size, but without class count and
paths. The zoo has no D7x; its preset follows the zoo's D0 to D7 with the sizes of google/automl. EfficientDet-Lite is
described in `efficientdet_lite.py`.

Sources: EfficientDet's sizes are from table 1 of arXiv:1911.09070 and google/automl, efficientdet/hparams_config.py.
`coco_ap` is from the zoo's table (research/object_detection/g3doc/tf2_detection_zoo.md), for D7x from google/automl,
efficientdet/README.md, column AP val, and for Faster R-CNN with FPN, which is not in the table, from the zoo's
configuration. `coco_mask_ap` and `coco_keypoint_ap` are from the same table. `num_parameters` was counted with the
Object Detection API 2.8.0 on each configuration with 90 classes: the trainable weights (without moving statistics of
batch norm) between image and detections. The API also keeps parts of EfficientNet that it never uses: the
classification layers (last 1x1 convolution, its batch norm, logits), and from D1 on the blocks after those that provide
the features. These are, for every size, the last blocks of EfficientNet-B0's strides. arXiv:1911.09070 and
google/automl use the last blocks of each size, like the preset of D7x (`features_of_last_blocks`), and therefore count
more: 6.6 million for D1, 8.1 for D2.
"""

import functools
from typing import Literal, NamedTuple

from detloom.schemas.errors import InputError
from detloom.schemas.model.augmentations import Augmentation, RandomHorizontalFlip
from detloom.schemas.model.config import Eval, InputReader, Precision, Train, TrainEvalConfig
from detloom.schemas.model.crop_augmentations import RandomCropImage, RandomScaleCropAndPadToSquare, SsdRandomCrop
from detloom.schemas.model.detector import ArgMaxMatcher, MultiscaleAnchorGenerator, Ssd, SsdAnchorGenerator
from detloom.schemas.model.losses import Loss, SigmoidFocal, WeightedSmoothL1
from detloom.schemas.model.network import (
    Backbone,
    BatchNorm,
    BiFpn,
    ConvHyperparams,
    ConvolutionalBoxPredictor,
    ExtraFeatureLayers,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    Initializer,
    KeepAspectRatioResizer,
    L2Regularizer,
    RandomNormalInitializer,
    TruncatedNormalInitializer,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression, PostProcessing
from detloom.schemas.model.optimizers import CosineDecayLearningRate, MomentumOptimizer
from detloom.schemas.presets.center_net import center_net_presets
from detloom.schemas.presets.efficientdet_lite import (
    EFFICIENTDET_LITE,
    LiteSize,
    describe_efficientdet_lite,
    efficientdet_lite_config,
)
from detloom.schemas.presets.faster_rcnn import faster_rcnn_presets, mask_rcnn_preset
from detloom.schemas.presets.preset import Preset
from detloom.schemas.reading.typed_dict import nearest_hint


def find_preset(name: str) -> Preset:
    """Return the preset with a name.

    Raises:
        InputError: with the closest name, if there is no such preset.
    """
    presets = {preset.name: preset for preset in list_presets()}
    if name not in presets:
        raise InputError(f"preset: got {name!r}, allowed: {', '.join(presets)}.{nearest_hint(name, presets)}")
    return presets[name]


@functools.cache
def list_presets() -> tuple[Preset, ...]:
    """Return all presets, from small to large within each family."""
    return (
        _plain_ssd(),
        *(_fpn_lite(row) for row in _FPN_LITE),
        *(_retinanet(row) for row in _RETINANET),
        *(_efficientdet(row) for row in _EFFICIENTDET),
        *(_efficientdet_lite(row) for row in EFFICIENTDET_LITE),
        *center_net_presets(),
        *faster_rcnn_presets(),
        mask_rcnn_preset(),
    )


# --- the tables -----------------------------------------------------------------------------------------------------


class _Sized(NamedTuple):
    """A backbone and the side of the detector's square input in pixels."""

    backbone: Backbone
    side: int
    num_parameters: int
    coco_ap: float


class _CompoundScaled(NamedTuple):
    """An EfficientDet; `filters` is the number of channels of BiFPN and heads."""

    coefficient: str
    backbone: Backbone
    side: int
    filters: int
    bifpn_iterations: int
    head_layers: int
    num_parameters: int
    coco_ap: float
    max_level: int = 7
    combine_method: Literal["fast_attention", "sum"] = "fast_attention"


class _Training(NamedTuple):
    batch_size: int
    num_steps: int
    learning_rate: float
    warmup_learning_rate: float
    warmup_steps: int


_FPN_LITE = (_Sized("mobilenet_v2", 320, 2_626_746, 22.2), _Sized("mobilenet_v2", 640, 2_626_746, 28.2))

_RETINANET = (
    _Sized("mobilenet_v1", 640, 12_080_762, 29.1),
    _Sized("resnet50_v1", 640, 32_840_570, 34.3),
    _Sized("resnet50_v1", 1024, 32_840_570, 38.3),
    _Sized("resnet101_v1", 640, 51_832_698, 35.6),
    _Sized("resnet101_v1", 1024, 51_832_698, 39.5),
    _Sized("resnet152_v1", 640, 67_476_346, 35.4),
    _Sized("resnet152_v1", 1024, 67_476_346, 39.6),
)

# fmt: off
_EFFICIENTDET = (
    _CompoundScaled("d0", "efficientnet-b0",  512,  64, 3, 3,  3_880_067, 33.6),
    _CompoundScaled("d1", "efficientnet-b1",  640,  88, 4, 3,  5_062_298, 38.4),
    _CompoundScaled("d2", "efficientnet-b2",  768, 112, 5, 3,  6_208_119, 41.8),
    _CompoundScaled("d3", "efficientnet-b3",  896, 160, 6, 4,  9_787_336, 45.4),
    _CompoundScaled("d4", "efficientnet-b4", 1024, 224, 7, 4, 17_674_475, 48.5),
    _CompoundScaled("d5", "efficientnet-b5", 1280, 288, 7, 4, 25_700_675, 49.7),
    # The zoo's D6 uses the paper's 1408 pixels, google/automl's 1280; both use unweighted sums for stability.
    _CompoundScaled("d6", "efficientnet-b6", 1408, 384, 8, 5, 41_819_142, 50.5, combine_method="sum"),
    _CompoundScaled("d7", "efficientnet-b6", 1536, 384, 8, 5, 41_819_142, 51.2, combine_method="sum"),
    _CompoundScaled("d7x", "efficientnet-b7", 1536, 384, 8, 5, 77_147_166, 54.4, max_level=8, combine_method="sum"),
)
# fmt: on

# --- shared by the families -----------------------------------------------------------------------------------------

_SSD_DECAY, _FPN_DECAY, _EFFICIENTDET_DECAY = 0.97, 0.997, 0.99  # decay of batch norm's moving statistics
_NORMAL, _TRUNCATED_NORMAL = RandomNormalInitializer(stddev=0.01), TruncatedNormalInitializer(stddev=0.03)
_FPN_CROP = RandomCropImage(
    min_object_covered=0.0, min_aspect_ratio=0.75, max_aspect_ratio=3.0, min_area=0.75, overlap_thresh=0.0
)
_RETINANET_BACKBONES = {
    "mobilenet_v1": "MobileNetV1",
    "resnet50_v1": "ResNet-50",
    "resnet101_v1": "ResNet-101",
    "resnet152_v1": "ResNet-152",
}


def _hyperparams(
    weight: float,
    initializer: Initializer,
    decay: float,
    *,
    activation: Literal["RELU_6", "SWISH"] = "RELU_6",
    force_use_bias: bool = False,
) -> ConvHyperparams:
    return ConvHyperparams(
        regularizer=L2Regularizer(weight=weight),
        initializer=initializer,
        activation=activation,
        batch_norm=BatchNorm(decay=decay, scale=True),
        force_use_bias=force_use_bias,
    )


def _multiscale(scales_per_octave: int, max_level: int = 7) -> MultiscaleAnchorGenerator:
    return MultiscaleAnchorGenerator(
        aspect_ratios=(1.0, 2.0, 0.5), scales_per_octave=scales_per_octave, max_level=max_level
    )


def _model(
    image_resizer: FixedShapeResizer | KeepAspectRatioResizer,
    feature_extractor: FeatureExtractor,
    anchor_generator: MultiscaleAnchorGenerator | SsdAnchorGenerator,
    box_predictor: ConvolutionalBoxPredictor | WeightSharedConvolutionalBoxPredictor,
    focal: SigmoidFocal,
    *,
    nms_iou: float = 0.6,
    add_background_class: bool = True,
) -> Ssd:
    return Ssd(
        image_resizer=image_resizer,
        feature_extractor=feature_extractor,
        anchor_generator=anchor_generator,
        box_predictor=box_predictor,
        loss=Loss(classification_loss=focal, localization_loss=WeightedSmoothL1()),
        matcher=ArgMaxMatcher(force_match_for_each_row=True),
        post_processing=PostProcessing(
            batch_non_max_suppression=BatchNonMaxSuppression(score_threshold=1e-8, iou_threshold=nms_iou),
            score_converter="SIGMOID",
        ),
        normalize_loc_loss_by_codesize=True,
        add_background_class=add_background_class,
        encode_background_as_zeros=True,
    )


def _config(
    model: Ssd, training: _Training, augmentation: Augmentation, *, precision: Precision = "float32"
) -> TrainEvalConfig:
    """Build a configuration with the training settings of the zoo: momentum, cosine decay, a flip and one
    augmentation."""
    rate = CosineDecayLearningRate(
        learning_rate_base=training.learning_rate,
        total_steps=training.num_steps,
        warmup_learning_rate=training.warmup_learning_rate,
        warmup_steps=training.warmup_steps,
    )
    return TrainEvalConfig(
        model=model,
        train=Train(
            num_steps=training.num_steps,
            optimizer=MomentumOptimizer(learning_rate=rate),
            batch_size=training.batch_size,
            augmentations=(RandomHorizontalFlip(), augmentation),
            precision=precision,
        ),
        eval=Eval(),
        eval_input=InputReader(shuffle=False, num_epochs=1),
    )


# --- the families ---------------------------------------------------------------------------------------------------


def _plain_ssd() -> Preset:
    model = _model(
        FixedShapeResizer(height=300, width=300),
        FeatureExtractor(
            backbone="mobilenet_v2",
            neck=ExtraFeatureLayers(),
            conv_hyperparams=_hyperparams(4e-5, _TRUNCATED_NORMAL, _SSD_DECAY),
            override_base_feature_extractor_hyperparams=True,
        ),
        SsdAnchorGenerator(aspect_ratios=(1.0, 2.0, 0.5, 3.0, 0.3333)),
        ConvolutionalBoxPredictor(
            conv_hyperparams=_hyperparams(4e-5, _NORMAL, _SSD_DECAY),
            use_dropout=False,
            class_prediction_bias_init=-4.6,
        ),
        SigmoidFocal(alpha=0.75),
    )
    return Preset(
        name="ssd_mobilenet_v2_320x320",
        family="SSD",
        config=_config(model, _Training(512, 50_000, 0.08, 0.013333, 2000), SsdRandomCrop()),
        num_parameters=6_066_431,
        coco_ap=20.2,
        description="SSD (arXiv:1512.02325) with MobileNetV2; despite its name in the zoo, its input is 300 x 300.",
    )


def _with_fpn(row: _Sized, depth: int, weight: float, initializer: Initializer, *, is_separable: bool) -> Ssd:
    """Return a network with a feature pyramid; `depth` is the number of channels of the pyramid and of the heads."""
    return _model(
        FixedShapeResizer(height=row.side, width=row.side),
        FeatureExtractor(
            backbone=row.backbone,
            neck=Fpn(additional_layer_depth=depth),
            conv_hyperparams=_hyperparams(weight, initializer, _FPN_DECAY),
            use_depthwise=is_separable,
            override_base_feature_extractor_hyperparams=True,
        ),
        _multiscale(scales_per_octave=2),
        WeightSharedConvolutionalBoxPredictor(
            conv_hyperparams=_hyperparams(weight, _NORMAL, _FPN_DECAY),
            depth=depth,
            num_layers_before_predictor=4,
            class_prediction_bias_init=-4.6,
            share_prediction_tower=is_separable,
            use_depthwise=is_separable,
        ),
        SigmoidFocal(alpha=0.25),
    )


def _fpn_lite(row: _Sized) -> Preset:
    model = _with_fpn(row, 128, 4e-5, _NORMAL, is_separable=True)
    return Preset(
        name=f"ssd_{row.backbone}_fpnlite_{row.side}x{row.side}",
        family="SSD",
        config=_config(model, _Training(128, 50_000, 0.08, 0.026666, 1000), _FPN_CROP),
        num_parameters=row.num_parameters,
        coco_ap=row.coco_ap,
        description="SSD with MobileNetV2, a feature pyramid, and heads of separable convolutions.",
    )


def _retinanet(row: _Sized) -> Preset:
    is_resnet = row.backbone.startswith("resnet")
    weight = 4e-4 if is_resnet else 4e-5
    initializer = _TRUNCATED_NORMAL if is_resnet else _NORMAL
    num_steps = 100_000 if row.side == 1024 else 25_000
    precision: Precision = "bfloat16_on_tpu" if is_resnet else "float32"
    model = _with_fpn(row, 256, weight, initializer, is_separable=False)
    return Preset(
        name=f"ssd_{row.backbone}_fpn_{row.side}x{row.side}",
        family="RetinaNet",
        config=_config(model, _Training(64, num_steps, 0.04, 0.013333, 2000), _FPN_CROP, precision=precision),
        num_parameters=row.num_parameters,
        coco_ap=row.coco_ap,
        description=f"RetinaNet (arXiv:1708.02002) with {_RETINANET_BACKBONES[row.backbone]}.",
    )


def _efficientdet(row: _CompoundScaled) -> Preset:
    def hyperparams(initializer: Initializer) -> ConvHyperparams:
        return _hyperparams(4e-5, initializer, _EFFICIENTDET_DECAY, activation="SWISH", force_use_bias=True)

    model = _model(
        KeepAspectRatioResizer(
            min_dimension=row.side,
            max_dimension=row.side,
            pad_to_max_dimension=True,
            half_pixel_centers=row.coefficient == "d7x",
        ),
        FeatureExtractor(
            backbone=row.backbone,
            neck=BiFpn(
                max_level=row.max_level,
                num_iterations=row.bifpn_iterations,
                num_filters=row.filters,
                combine_method=row.combine_method,
                features_of_last_blocks=row.coefficient == "d7x",
            ),
            conv_hyperparams=hyperparams(_TRUNCATED_NORMAL),
        ),
        _multiscale(scales_per_octave=3, max_level=row.max_level),
        WeightSharedConvolutionalBoxPredictor(
            conv_hyperparams=hyperparams(_NORMAL),
            depth=row.filters,
            num_layers_before_predictor=row.head_layers,
            class_prediction_bias_init=-4.6,
            use_depthwise=True,
        ),
        SigmoidFocal(alpha=0.25, gamma=1.5),
        nms_iou=0.5,
        add_background_class=False,
    )
    description = (
        f"EfficientDet-{row.coefficient.replace('d', 'D')} (arXiv:1911.09070): "
        f"{row.backbone.replace('efficientnet-b', 'EfficientNet-B')}, BiFPN with {row.filters} channels, repeated "
        f"{row.bifpn_iterations} times."
    )
    if row.coefficient == "d7x":
        description += (
            " It is not in the TF2 detection zoo: google/automl's sizes and resizing, the zoo's anchors and training. "
            "The AP is google/automl's, after different training (600 epochs)."
        )
    return Preset(
        name=f"efficientdet_{row.coefficient}",
        family="EfficientDet",
        config=_config(
            model,
            _Training(128, 300_000, 0.08, 0.001, 2500),
            RandomScaleCropAndPadToSquare(output_size=row.side),
            precision="bfloat16_on_tpu",
        ),
        num_parameters=row.num_parameters,
        coco_ap=row.coco_ap,
        description=description,
    )


def _efficientdet_lite(row: LiteSize) -> Preset:
    return Preset(
        name=f"efficientdet_{row.name}",
        family="EfficientDet",
        config=efficientdet_lite_config(row, _efficientdet(_EFFICIENTDET[0]).config),
        num_parameters=row.num_parameters,
        coco_ap=row.coco_ap,
        description=describe_efficientdet_lite(row),
    )
