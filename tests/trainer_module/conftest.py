"""Configurations for the tests: a detector small enough to train in seconds, and the zoo's; `changed` makes others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from detloom.schemas.augmentation_config import RandomHorizontalFlip
from detloom.schemas.config import Eval, InputReader, Train, TrainEvalConfig
from detloom.schemas.model_config import (
    BatchNonMaxSuppression,
    Loss,
    MultiscaleAnchorGenerator,
    PostProcessing,
    SigmoidFocal,
    Ssd,
    WeightedSmoothL1,
)
from detloom.schemas.network_config import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    FixedShapeResizer,
    Fpn,
    L2Regularizer,
    VarianceScalingInitializer,
    WeightSharedConvolutionalBoxPredictor,
)
from detloom.schemas.optimizer_config import (
    AdamWOptimizer,
    ClipByGlobalNorm,
    CosineDecayLearningRate,
    MovingAverage,
)
from detloom.schemas.presets import find_preset


@pytest.fixture(scope="session")
def tiny_config() -> TrainEvalConfig:
    hyperparams = ConvHyperparams(
        regularizer=L2Regularizer(weight=0.0),
        initializer=VarianceScalingInitializer(),
        activation="RELU_6",
        batch_norm=BatchNorm(decay=0.9, scale=True),
    )
    model = Ssd(
        image_resizer=FixedShapeResizer(height=64, width=64),
        feature_extractor=FeatureExtractor(
            backbone="mobilenet_v2",
            neck=Fpn(min_level=3, max_level=5, additional_layer_depth=160),  # times 0.1: 16 channels
            conv_hyperparams=hyperparams,
            depth_multiplier=0.1,
            min_depth=8,
            use_depthwise=True,
            override_base_feature_extractor_hyperparams=True,
        ),
        anchor_generator=MultiscaleAnchorGenerator(min_level=3, max_level=5, aspect_ratios=(1.0,), scales_per_octave=1),
        box_predictor=WeightSharedConvolutionalBoxPredictor(
            conv_hyperparams=hyperparams,
            depth=16,
            num_layers_before_predictor=1,
            class_prediction_bias_init=-4.6,
            share_prediction_tower=True,
            use_depthwise=True,
        ),
        loss=Loss(classification_loss=SigmoidFocal(alpha=0.25), localization_loss=WeightedSmoothL1()),
        post_processing=PostProcessing(
            batch_non_max_suppression=BatchNonMaxSuppression(
                score_threshold=0.001, max_detections_per_class=10, max_total_detections=10
            ),
            score_converter="SIGMOID",
        ),
        normalize_loc_loss_by_codesize=True,
        add_background_class=False,
    )
    rate = CosineDecayLearningRate(learning_rate_base=2e-3, total_steps=6, warmup_learning_rate=0.0, warmup_steps=2)
    train = Train(
        batch_size=2,
        num_steps=6,
        steps_per_call=2,
        optimizer=AdamWOptimizer(learning_rate=rate),
        gradient_clipping=ClipByGlobalNorm(norm=10.0),
        moving_average=MovingAverage(decay=0.5, dynamic=False),
        augmentations=(RandomHorizontalFlip(),),
    )
    return TrainEvalConfig(
        model=model,
        train=train,
        eval=Eval(batch_size=2, evaluate_every=4, use_moving_averages=True),
        train_input=InputReader(max_number_of_boxes=4),
    )


@pytest.fixture(scope="session")
def zoo_config() -> TrainEvalConfig:
    """What the Object Detection API's values in `reference_dir` were made with."""
    return find_preset("ssd_mobilenet_v2_fpnlite_320x320").config


@pytest.fixture(scope="session")
def changed() -> Callable[[Any, dict[str, Any]], Any]:
    """`changed(config, {"train.batch_size": 4, "eval.batch_size": 1})`: a copy with other values at those paths."""

    def change(config: Any, settings: dict[str, Any]) -> Any:
        new: dict[str, Any] = {}
        deeper: dict[str, dict[str, Any]] = {}
        for path, value in settings.items():
            first, _, rest = path.partition(".")
            if rest:
                deeper.setdefault(first, {})[rest] = value
            else:
                new[first] = value
        return replace(config, **new, **{name: change(getattr(config, name), below) for name, below in deeper.items()})

    return change
