"""Configurations of the detection zoo's Faster R-CNN with ResNets and of its Mask R-CNN; see `presets.py`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from detloom.schemas.model.augmentations import (
    Augmentation,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomHorizontalFlip,
)
from detloom.schemas.model.config import Eval, InputReader, Train, TrainEvalConfig
from detloom.schemas.model.crop_augmentations import RandomSquareCropByScale
from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.faster_rcnn import FasterRcnn, FasterRcnnFeatureExtractor
from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FixedShapeResizer,
    Fpn,
    ImageResizer,
    KeepAspectRatioResizer,
    L2Regularizer,
    MaskRcnnBoxPredictor,
    TruncatedNormalInitializer,
    VarianceScalingInitializer,
)
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression, PostProcessing
from detloom.schemas.model.optimizers import ClipByGlobalNorm, CosineDecayLearningRate, MomentumOptimizer
from detloom.schemas.presets.preset import Preset

Backbone = Literal["resnet50_v1", "resnet101_v1", "resnet152_v1"]


class Published(NamedTuple):
    """A published detector; `side` is that of the square input in pixels."""

    backbone: Backbone
    side: int
    num_parameters: int
    coco_ap: float
    has_pyramid: bool = False


PUBLISHED = (
    Published("resnet50_v1", 640, 28_458_727, 29.3),
    Published("resnet50_v1", 1024, 28_458_727, 31.0),
    Published("resnet50_v1", 1333, 29_188_171, 31.6),
    Published("resnet101_v1", 640, 47_450_855, 31.8),
    Published("resnet101_v1", 1024, 47_450_855, 37.1),
    Published("resnet101_v1", 1333, 48_180_299, 36.6),
    Published("resnet152_v1", 640, 63_094_503, 32.4),
    Published("resnet152_v1", 1024, 63_094_503, 37.6),
    Published("resnet152_v1", 1333, 63_823_947, 37.4),
    Published("resnet50_v1", 640, 42_485_943, 31.4, has_pyramid=True),
)
_LONG_TRAINING: tuple[Augmentation, ...] = (
    RandomHorizontalFlip(),
    RandomAdjustHue(),
    RandomAdjustContrast(),
    RandomAdjustSaturation(),
    RandomSquareCropByScale(scale_min=0.6, scale_max=1.3),
)
_NO_PENALTY = L2Regularizer(weight=0.0)
_CONVOLUTIONS = ConvHyperparams(regularizer=_NO_PENALTY, initializer=TruncatedNormalInitializer(stddev=0.01))
_FULLY_CONNECTED = ConvHyperparams(
    regularizer=_NO_PENALTY, initializer=VarianceScalingInitializer(factor=1.0, uniform=True, mode="FAN_AVG")
)


def _faster_rcnn_config(backbone: Backbone, side: int, *, has_pyramid: bool) -> TrainEvalConfig:
    """Return a configuration of the zoo.

    Args:
        side: 640 and 1024 were trained on a TPU, 1333 (the shorter side is then 800) on GPUs, with batch norm frozen.
    """
    is_for_gpu = side == 1333
    predictor = MaskRcnnBoxPredictor(
        fc_hyperparams=_FULLY_CONNECTED,
        dropout_keep_probability=1.0,
        share_box_across_classes=not (is_for_gpu or has_pyramid),
    )
    model = _model(
        predictor,
        100 if is_for_gpu else 300,
        image_resizer=_resizer(side),
        feature_extractor=_extractor(backbone, has_pyramid=has_pyramid, is_trainable=not is_for_gpu),
        first_stage_anchor_generator=_anchors(has_pyramid=has_pyramid),
        initial_crop_size=14,
        maxpool_kernel_size=2,
        maxpool_stride=2,
        clip_anchors_to_image=not is_for_gpu,
    )
    train = _gpu_train() if is_for_gpu else _tpu_train(side)
    return TrainEvalConfig(model=model, train=train, eval_input=InputReader(shuffle=False, num_epochs=1))


def _mask_rcnn_config() -> TrainEvalConfig:
    """Return the configuration of the zoo's Mask R-CNN."""
    predictor = MaskRcnnBoxPredictor(
        fc_hyperparams=_FULLY_CONNECTED,
        dropout_keep_probability=1.0,
        predict_instance_masks=True,
        conv_hyperparams=_CONVOLUTIONS,
        mask_height=33,
        mask_width=33,
        mask_prediction_num_conv_layers=4,
        mask_prediction_conv_depth=0,
    )
    model = _model(
        predictor,
        100,
        number_of_stages=3,
        image_resizer=_resizer(1024),
        feature_extractor=FasterRcnnFeatureExtractor(backbone="inception_resnet_v2"),
        first_stage_anchor_generator=_anchors(has_pyramid=False),
        initial_crop_size=17,
        maxpool_kernel_size=1,
        maxpool_stride=1,
        second_stage_mask_prediction_loss_weight=4.0,
    )
    train = replace(_gpu_train(learning_rate=0.008), augmentations=(RandomHorizontalFlip(),))
    return TrainEvalConfig(
        model=model,
        train=train,
        eval=Eval(metrics_set=("coco_detection_metrics", "coco_mask_metrics")),
        eval_input=InputReader(shuffle=False, num_epochs=1),
    )


def _model(predictor: MaskRcnnBoxPredictor, max_detections: int, **settings: Any) -> FasterRcnn:
    """Return a model with the settings that all have in common."""
    nms = BatchNonMaxSuppression(max_total_detections=max_detections)
    return FasterRcnn(
        first_stage_box_predictor_conv_hyperparams=_CONVOLUTIONS,
        second_stage_box_predictor=predictor,
        first_stage_localization_loss_weight=2.0,
        second_stage_localization_loss_weight=2.0,
        second_stage_post_processing=PostProcessing(batch_non_max_suppression=nms, score_converter="SOFTMAX"),
        **settings,
    )


def _resizer(side: int) -> ImageResizer:
    if side == 1024:
        return FixedShapeResizer(height=side, width=side)
    shorter = 800 if side == 1333 else side
    return KeepAspectRatioResizer(min_dimension=shorter, max_dimension=side, pad_to_max_dimension=True)


def _extractor(backbone: Backbone, *, has_pyramid: bool, is_trainable: bool) -> FasterRcnnFeatureExtractor:
    if not has_pyramid:
        return FasterRcnnFeatureExtractor(backbone=backbone, batch_norm_trainable=is_trainable)
    return FasterRcnnFeatureExtractor(
        backbone=backbone,
        neck=Fpn(min_level=2, max_level=6),
        conv_hyperparams=ConvHyperparams(
            regularizer=L2Regularizer(weight=0.0004),
            initializer=TruncatedNormalInitializer(stddev=0.03),
            activation="RELU_6",
            batch_norm=BatchNorm(decay=0.997, scale=True, epsilon=0.001),
        ),
        batch_norm_trainable=is_trainable,
        override_base_feature_extractor_hyperparams=True,
    )


def _anchors(*, has_pyramid: bool) -> GridAnchorGenerator | MultiscaleAnchorGenerator:
    if has_pyramid:
        return MultiscaleAnchorGenerator(min_level=2, max_level=6, aspect_ratios=(1.0, 2.0, 0.5))
    return GridAnchorGenerator(scales=(0.25, 0.5, 1.0, 2.0), aspect_ratios=(0.5, 1.0, 2.0))


def _tpu_train(side: int) -> Train:
    num_steps = 100_000 if side == 1024 else 25_000
    rate = CosineDecayLearningRate(
        learning_rate_base=0.04, total_steps=num_steps, warmup_learning_rate=0.013333, warmup_steps=2000
    )
    return Train(
        num_steps=num_steps,
        optimizer=MomentumOptimizer(learning_rate=rate),
        batch_size=64,
        augmentations=(RandomHorizontalFlip(),) if side == 640 else _LONG_TRAINING,
        precision="bfloat16_on_tpu",
    )


def _gpu_train(learning_rate: float = 0.01) -> Train:
    rate = CosineDecayLearningRate(
        learning_rate_base=learning_rate, total_steps=200_000, warmup_learning_rate=0.0, warmup_steps=5000
    )
    return Train(
        num_steps=200_000,
        optimizer=MomentumOptimizer(learning_rate=rate),
        batch_size=16,
        augmentations=_LONG_TRAINING,
        gradient_clipping=ClipByGlobalNorm(norm=10.0),
    )


def faster_rcnn_presets() -> Iterator[Preset]:
    """Yield the presets without masks."""
    for row in PUBLISHED:
        depth = row.backbone.removeprefix("resnet").removesuffix("_v1")
        size = "800x1333" if row.side == 1333 else f"{row.side}x{row.side}"
        pyramid = " and a feature pyramid (arXiv:1612.03144)" if row.has_pyramid else ""
        network = f"ResNet-{depth}{pyramid}"
        yield Preset(
            name=f"faster_rcnn_resnet{depth}_v1_{'fpn_' if row.has_pyramid else ''}{size}",
            family="Faster R-CNN",
            config=_faster_rcnn_config(row.backbone, row.side, has_pyramid=row.has_pyramid),
            num_parameters=row.num_parameters,
            coco_ap=row.coco_ap,
            description=f"Faster R-CNN (arXiv:1506.01497) with {network}: proposals, then one look at each.",
        )


def mask_rcnn_preset() -> Preset:
    """Return the preset with masks."""
    return Preset(
        name="mask_rcnn_inception_resnet_v2_1024x1024",
        family="Mask R-CNN",
        config=_mask_rcnn_config(),
        num_parameters=64_947_141,
        coco_ap=40.4,
        coco_mask_ap=35.5,
        description="Mask R-CNN (arXiv:1703.06870) with Inception-ResNet V2: a Faster R-CNN that also predicts masks.",
    )
