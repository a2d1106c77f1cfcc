"""The presets of the detection zoo's CenterNets; see `presets.py`."""

from collections.abc import Iterator
from typing import NamedTuple

from detloom.schemas.contracts.keypoint_sigmas import COCO_SIGMAS
from detloom.schemas.model.augmentations import (
    Augmentation,
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
    KeypointEstimation,
    KeypointLoss,
    KeypointStd,
    ObjectCenterParams,
    ObjectDetection,
)
from detloom.schemas.model.config import Eval, InputReader, KeypointSigma, Train, TrainEvalConfig
from detloom.schemas.model.crop_augmentations import RandomCropImage, RandomSquareCropByScale
from detloom.schemas.model.losses import PenaltyReducedFocal, WeightedL1
from detloom.schemas.model.network import KeepAspectRatioResizer
from detloom.schemas.model.optimizers import (
    AdamOptimizer,
    CosineDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
)
from detloom.schemas.presets.preset import Preset

_FLIP_AND_CROP = (
    RandomHorizontalFlip(),
    RandomCropImage(min_aspect_ratio=0.5, max_aspect_ratio=1.7, random_coef=0.25),
)
_COLORS = (RandomAdjustHue(), RandomAdjustContrast(), RandomAdjustSaturation(), RandomAdjustBrightness())
_PAD = RandomAbsolutePadImage(max_height_padding=200, max_width_padding=200, pad_color=(0.0, 0.0, 0.0))


class CenterNetRow(NamedTuple):
    """A CenterNet of the zoo; `side` is that of the square input in pixels."""

    name: str
    network: str
    feature_extractor: CenterNetFeatureExtractor
    side: int
    num_parameters: int
    coco_ap: float
    num_steps: int
    learning_rate: ManualStepLearningRate | CosineDecayLearningRate
    augmentations: tuple[Augmentation, ...] = (*_FLIP_AND_CROP, *_COLORS, _PAD)
    keypoint_ap: float | None = None
    """With the keypoints of persons."""
    eval_input: InputReader = InputReader(shuffle=False, num_epochs=1)


def _cosine(num_steps: int) -> CosineDecayLearningRate:
    return CosineDecayLearningRate(
        learning_rate_base=1e-3, total_steps=num_steps, warmup_learning_rate=2.5e-4, warmup_steps=5000
    )


_MANUAL_STEPS = ManualStepLearningRate(
    initial_learning_rate=1e-3,
    schedule=(
        LearningRateStep(step=90_000, learning_rate=1e-4),
        LearningRateStep(step=120_000, learning_rate=1e-5),
    ),
)
# Of COCO's images, in the order blue, green, red: those of the checkpoint from which the zoo trained.
_HOURGLASS_104 = CenterNetFeatureExtractor(
    backbone="hourglass_104",
    bgr_ordering=True,
    channel_means=(104.01362025, 114.03422265, 119.9165958),
    channel_stds=(73.6027665, 69.89082075, 70.9150767),
)
# The sizes of the heatmap's peaks are 10 times COCO's tolerances, but for the knees.
_STDS = {**{name: round(10 * sigma, 2) for name, sigma in COCO_SIGMAS.items()}, "left_knee": 0.89, "right_knee": 0.89}
_KEYPOINTS = KeypointEstimation(
    task_name="human_pose",
    loss=KeypointLoss(classification_loss=PenaltyReducedFocal(), localization_loss=WeightedL1()),
    keypoint_class_name="person",
    keypoint_label_to_std=tuple(KeypointStd(name=name, std=std) for name, std in sorted(_STDS.items())),
    keypoint_regression_loss_weight=0.1,
    offset_peak_radius=3,
    per_keypoint_offset=True,
)
_SIGMAS = tuple(KeypointSigma(name=name, sigma=round(sigma, 3)) for name, sigma in COCO_SIGMAS.items())
_FLIP_KEYPOINTS = RandomHorizontalFlip(
    keypoint_flip_permutation=(0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
)
_AUGMENTATIONS_WITH_KEYPOINTS = (_FLIP_KEYPOINTS, *_FLIP_AND_CROP[1:], *_COLORS, _PAD)
CENTERNETS = (
    CenterNetRow(
        name="centernet_resnet50_v2_512x512",
        network="ResNet-50 V2",
        feature_extractor=CenterNetFeatureExtractor(backbone="resnet50_v2"),
        side=512,
        num_parameters=29_846_622,
        coco_ap=29.5,
        num_steps=250_000,
        learning_rate=_cosine(250_000),
    ),
    CenterNetRow(
        name="centernet_resnet101_v1_fpn_512x512",
        network="ResNet-101",
        feature_extractor=CenterNetFeatureExtractor(backbone="resnet101_v1"),
        side=512,
        num_parameters=44_295_454,
        coco_ap=34.2,
        num_steps=140_000,
        learning_rate=_MANUAL_STEPS,
    ),
    CenterNetRow(
        name="centernet_hourglass104_512x512",
        network="two stacked hourglasses",
        feature_extractor=_HOURGLASS_104,
        side=512,
        num_parameters=191_289_148,
        coco_ap=41.9,
        num_steps=140_000,
        learning_rate=_MANUAL_STEPS,
    ),
    CenterNetRow(
        name="centernet_hourglass104_1024x1024",
        network="two stacked hourglasses",
        feature_extractor=_HOURGLASS_104,
        side=1024,
        num_parameters=191_289_148,
        coco_ap=44.5,
        num_steps=50_000,
        learning_rate=_cosine(50_000),
        augmentations=(
            RandomHorizontalFlip(),
            *_COLORS,
            RandomSquareCropByScale(scale_min=0.6, scale_max=1.3),
        ),
    ),
    CenterNetRow(
        name="centernet_resnet50_v1_fpn_512x512_kpts",
        network="ResNet-50",
        feature_extractor=CenterNetFeatureExtractor(backbone="resnet50_v1"),
        side=512,
        num_parameters=25_742_195,
        coco_ap=29.3,
        num_steps=250_000,
        learning_rate=_cosine(250_000),
        augmentations=_AUGMENTATIONS_WITH_KEYPOINTS,
        keypoint_ap=50.7,
    ),
    CenterNetRow(
        name="centernet_resnet50_v2_512x512_kpts",
        network="ResNet-50 V2",
        feature_extractor=CenterNetFeatureExtractor(backbone="resnet50_v2"),
        side=512,
        num_parameters=30_311_603,
        coco_ap=27.6,
        num_steps=250_000,
        learning_rate=_cosine(250_000),
        augmentations=_AUGMENTATIONS_WITH_KEYPOINTS,
        keypoint_ap=48.2,
    ),
    CenterNetRow(
        name="centernet_hourglass104_512x512_kpts",
        network="two stacked hourglasses",
        feature_extractor=_HOURGLASS_104,
        side=512,
        num_parameters=194_873_318,
        coco_ap=40.0,
        num_steps=250_000,
        learning_rate=_cosine(250_000),
        augmentations=_AUGMENTATIONS_WITH_KEYPOINTS,
        keypoint_ap=61.4,
        eval_input=InputReader(),
    ),
    CenterNetRow(
        name="centernet_hourglass104_1024x1024_kpts",
        network="two stacked hourglasses",
        feature_extractor=_HOURGLASS_104,
        side=1024,
        num_parameters=194_873_318,
        coco_ap=42.8,
        num_steps=250_000,
        learning_rate=_cosine(250_000),
        augmentations=(_FLIP_KEYPOINTS, *_COLORS, RandomSquareCropByScale(scale_min=0.6, scale_max=1.3)),
        keypoint_ap=64.5,
    ),
)


def _config(row: CenterNetRow) -> TrainEvalConfig:
    """Return the configuration of a preset."""
    return TrainEvalConfig(
        model=CenterNet(
            image_resizer=KeepAspectRatioResizer(
                min_dimension=row.side, max_dimension=row.side, pad_to_max_dimension=True
            ),
            feature_extractor=row.feature_extractor,
            object_detection_task=ObjectDetection(localization_loss=WeightedL1()),
            object_center_params=ObjectCenterParams(classification_loss=PenaltyReducedFocal()),
            keypoint_estimation_task=_KEYPOINTS if row.keypoint_ap is not None else None,
        ),
        train=Train(
            num_steps=row.num_steps,
            optimizer=AdamOptimizer(learning_rate=row.learning_rate, epsilon=1e-7),
            batch_size=128,
            augmentations=row.augmentations,
        ),
        eval=Eval(keypoint_sigmas=_SIGMAS if row.keypoint_ap is not None else ()),
        eval_input=row.eval_input,
    )


def center_net_presets() -> Iterator[Preset]:
    """Yield the presets."""
    for row in CENTERNETS:
        keypoints = "" if row.keypoint_ap is None else "; with the 17 keypoints of persons"
        peaks = f"peaks of a heatmap, no anchors and no NMS{keypoints}"
        yield Preset(
            name=row.name,
            family="CenterNet",
            config=_config(row),
            num_parameters=row.num_parameters,
            coco_ap=row.coco_ap,
            coco_keypoint_ap=row.keypoint_ap,
            description=f"CenterNet (arXiv:1904.07850) with {row.network}: {peaks}.",
        )
