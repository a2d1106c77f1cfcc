"""Configurations of EfficientDet-Lite, google/automl's EfficientDet for phones and boards.

Sizes and anchors are from google/automl, efficientdet/hparams_config.py; `coco_ap` is from efficientdet/README.md
there, column "mAP (float)". The zoo does not have these models. Losses, schedule and augmentation are therefore those
of the zoo's EfficientDet-D0, as with D7x. `num_parameters` of lite0 equals google/automl's; the others round to the
numbers of its README.
"""

from dataclasses import replace
from typing import NamedTuple

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.crop_augmentations import RandomScaleCropAndPadToSquare
from detloom.schemas.model.detector import MultiscaleAnchorGenerator, Ssd
from detloom.schemas.model.network import (
    Backbone,
    BiFpn,
    ConvHyperparams,
    KeepAspectRatioResizer,
    WeightSharedConvolutionalBoxPredictor,
)


class LiteSize(NamedTuple):
    """One size; `filters` is the number of channels of BiFPN and heads."""

    name: str
    backbone: Backbone
    side: int
    filters: int
    bifpn_iterations: int
    head_layers: int
    anchor_scale: float
    num_parameters: int
    coco_ap: float


# fmt: off
EFFICIENTDET_LITE = (
    LiteSize("lite0",  "efficientnet-lite0", 320,  64, 3, 3, 3.0,  3_243_470, 26.41),
    LiteSize("lite1",  "efficientnet-lite1", 384,  88, 4, 3, 3.0,  4_248_318, 31.50),
    LiteSize("lite2",  "efficientnet-lite2", 448, 112, 5, 3, 3.0,  5_252_334, 35.06),
    LiteSize("lite3",  "efficientnet-lite3", 512, 160, 6, 4, 4.0,  8_350_862, 38.77),
    LiteSize("lite3x", "efficientnet-lite3", 640, 200, 6, 4, 3.0,  9_280_862, 42.64),
    LiteSize("lite4",  "efficientnet-lite4", 640, 224, 7, 4, 4.0, 15_130_894, 43.18),
)
# fmt: on


def efficientdet_lite_config(row: LiteSize, d0: TrainEvalConfig) -> TrainEvalConfig:
    """Return the configuration of a size, made from that of EfficientDet-D0."""
    model = d0.model
    assert isinstance(model, Ssd)
    resizer, anchors, heads = model.image_resizer, model.anchor_generator, model.box_predictor
    extractor = model.feature_extractor
    assert isinstance(resizer, KeepAspectRatioResizer)
    assert isinstance(anchors, MultiscaleAnchorGenerator)
    assert isinstance(heads, WeightSharedConvolutionalBoxPredictor)
    lite = replace(
        model,
        image_resizer=replace(resizer, min_dimension=row.side, max_dimension=row.side, half_pixel_centers=True),
        feature_extractor=replace(
            extractor,
            backbone=row.backbone,
            neck=BiFpn(
                num_iterations=row.bifpn_iterations,
                num_filters=row.filters,
                combine_method="sum",
                features_of_last_blocks=True,
            ),
            conv_hyperparams=_with_relu6(extractor.conv_hyperparams),
            override_base_feature_extractor_hyperparams=True,  # google/automl penalizes all kernels with one weight
        ),
        anchor_generator=replace(anchors, anchor_scale=row.anchor_scale, strides_from_feature_maps=True),
        box_predictor=replace(
            heads,
            conv_hyperparams=_with_relu6(heads.conv_hyperparams),
            depth=row.filters,
            num_layers_before_predictor=row.head_layers,
        ),
    )
    augmentations = tuple(
        replace(change, output_size=row.side) if isinstance(change, RandomScaleCropAndPadToSquare) else change
        for change in d0.train.augmentations
    )
    return replace(d0, model=lite, train=replace(d0.train, augmentations=augmentations))


def describe_efficientdet_lite(row: LiteSize) -> str:
    """Describe a size in a few sentences."""
    return (
        f"EfficientDet-{row.name.capitalize()}: {row.backbone.replace('efficientnet-lite', 'EfficientNet-Lite')}, "
        f"BiFPN with {row.filters} channels, repeated {row.bifpn_iterations} times; for phones and boards. "
        "It is not in the TF2 detection zoo: google/automl's network, sizes, resizing and anchors, the zoo's training. "
        "The AP is google/automl's, after different training (300 epochs)."
    )


def _with_relu6(hyperparams: ConvHyperparams) -> ConvHyperparams:
    return replace(hyperparams, activation="RELU_6")
