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

_CROP = RandomCropImage(min_aspect_ratio=0.5, max_aspect_ratio=1.7, random_coef=0.25)
_COLORS = (RandomAdjustHue(), RandomAdjustContrast(), RandomAdjustSaturation(), RandomAdjustBrightness())
_PAD = RandomAbsolutePadImage(max_height_padding=200, max_width_padding=200, pad_color=(0.0, 0.0, 0.0))
_NETWORKS = {
    "resnet50_v1": "ResNet-50",
    "resnet50_v2": "ResNet-50 V2",
    "resnet101_v1": "ResNet-101",
    "hourglass_104": "two stacked hourglasses",
}


class CenterNetRow(NamedTuple):
    """A CenterNet of the zoo; `side` is that of the square input in pixels."""

    name: str
    feature_extractor: CenterNetFeatureExtractor
    side: int
    num_parameters: int
    coco_ap: float
    num_steps: int
    keypoint_ap: float | None = None
    """With the keypoints of persons."""


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
_RESNET50_V1 = CenterNetFeatureExtractor(backbone="resnet50_v1")
_RESNET50_V2 = CenterNetFeatureExtractor(backbone="resnet50_v2")
_RESNET101_V1 = CenterNetFeatureExtractor(backbone="resnet101_v1")
CENTERNETS = (
    CenterNetRow(
        name="centernet_resnet50_v2_512x512",
        feature_extractor=_RESNET50_V2,
        side=512,
        num_parameters=29_846_622,
        coco_ap=29.5,
        num_steps=250_000,
    ),
    CenterNetRow(
        name="centernet_resnet101_v1_fpn_512x512",
        feature_extractor=_RESNET101_V1,
        side=512,
        num_parameters=44_295_454,
        coco_ap=34.2,
        num_steps=140_000,
    ),
    CenterNetRow(
        name="centernet_hourglass104_512x512",
        feature_extractor=_HOURGLASS_104,
        side=512,
        num_parameters=191_289_148,
        coco_ap=41.9,
        num_steps=140_000,
    ),
    CenterNetRow(
        name="centernet_hourglass104_1024x1024",
        feature_extractor=_HOURGLASS_104,
        side=1024,
        num_parameters=191_289_148,
        coco_ap=44.5,
        num_steps=50_000,
    ),
    CenterNetRow(
        name="centernet_resnet50_v1_fpn_512x512_kpts",
        feature_extractor=_RESNET50_V1,
        side=512,
        num_parameters=25_742_195,
        coco_ap=29.3,
        num_steps=250_000,
        keypoint_ap=50.7,
    ),
    CenterNetRow(
        name="centernet_resnet50_v2_512x512_kpts",
        feature_extractor=_RESNET50_V2,
        side=512,
        num_parameters=30_311_603,
        coco_ap=27.6,
        num_steps=250_000,
        keypoint_ap=48.2,
    ),
    CenterNetRow(
        name="centernet_hourglass104_512x512_kpts",
        feature_extractor=_HOURGLASS_104,
        side=512,
        num_parameters=194_873_318,
        coco_ap=40.0,
        num_steps=250_000,
        keypoint_ap=61.4,
    ),
    CenterNetRow(
        name="centernet_hourglass104_1024x1024_kpts",
        feature_extractor=_HOURGLASS_104,
        side=1024,
        num_parameters=194_873_318,
        coco_ap=42.8,
        num_steps=250_000,
        keypoint_ap=64.5,
    ),
)
_REPEATS_EVALUATION = "centernet_hourglass104_512x512_kpts"  # the zoo sets neither shuffle nor num_epochs


def _augmentations(row: CenterNetRow) -> tuple[Augmentation, ...]:
    flip = RandomHorizontalFlip() if row.keypoint_ap is None else _FLIP_KEYPOINTS
    if row.side == 1024:
        return (flip, *_COLORS, RandomSquareCropByScale(scale_min=0.6, scale_max=1.3))
    return (flip, _CROP, *_COLORS, _PAD)


def _config(row: CenterNetRow) -> TrainEvalConfig:
    """Return the configuration of a preset."""
    rate = _MANUAL_STEPS if row.num_steps == 140_000 else _cosine(row.num_steps)
    is_default_input = row.name == _REPEATS_EVALUATION
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
            optimizer=AdamOptimizer(learning_rate=rate, epsilon=1e-7),
            batch_size=128,
            augmentations=_augmentations(row),
        ),
        eval=Eval(keypoint_sigmas=_SIGMAS if row.keypoint_ap is not None else ()),
        eval_input=InputReader() if is_default_input else InputReader(shuffle=False, num_epochs=1),
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
            description=f"CenterNet (arXiv:1904.07850) with {_NETWORKS[row.feature_extractor.backbone]}: {peaks}.",
        )
