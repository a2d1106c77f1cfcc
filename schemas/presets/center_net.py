"""The preset of the detection zoo's CenterNet with ResNet-101; see `presets.py`."""

from detloom.schemas.model.augmentations import (
    RandomAbsolutePadImage,
    RandomAdjustBrightness,
    RandomAdjustContrast,
    RandomAdjustHue,
    RandomAdjustSaturation,
    RandomHorizontalFlip,
)
from detloom.schemas.model.center_net import (
    CenterNet,
    CenterNetFeatureExtractor,
    ObjectCenterParams,
    ObjectDetection,
)
from detloom.schemas.model.config import InputReader, Train, TrainEvalConfig
from detloom.schemas.model.crop_augmentations import RandomCropImage
from detloom.schemas.model.losses import PenaltyReducedFocal, WeightedL1
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.model.optimizers import AdamOptimizer, LearningRateStep, ManualStepLearningRate


def centernet_config(side: int) -> TrainEvalConfig:
    """Return the configuration for square inputs of `side` pixels."""
    rate = ManualStepLearningRate(
        initial_learning_rate=1e-3,
        schedule=(
            LearningRateStep(step=90_000, learning_rate=1e-4),
            LearningRateStep(step=120_000, learning_rate=1e-5),
        ),
    )
    return TrainEvalConfig(
        model=CenterNet(
            image_resizer=KeepAspectRatioResizer(min_dimension=side, max_dimension=side, pad_to_max_dimension=True),
            feature_extractor=CenterNetFeatureExtractor(backbone="resnet101_v1"),
            object_detection_task=ObjectDetection(localization_loss=WeightedL1()),
            object_center_params=ObjectCenterParams(classification_loss=PenaltyReducedFocal()),
        ),
        train=Train(
            num_steps=140_000,
            optimizer=AdamOptimizer(learning_rate=rate, epsilon=1e-7),
            batch_size=128,
            augmentations=(
                RandomHorizontalFlip(),
                RandomCropImage(min_aspect_ratio=0.5, max_aspect_ratio=1.7, random_coef=0.25),
                RandomAdjustHue(),
                RandomAdjustContrast(),
                RandomAdjustSaturation(),
                RandomAdjustBrightness(),
                RandomAbsolutePadImage(max_height_padding=200, max_width_padding=200, pad_color=(0.0, 0.0, 0.0)),
            ),
        ),
        eval_input=InputReader(shuffle=False, num_epochs=1),
    )
