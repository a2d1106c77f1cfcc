"""The configuration of a detector and its training: one frozen tree, the truth about both.

Its canonical JSON (`typed_dict.to_canonical_json`) travels through TFX, so that caching sees every change. Lengths are
pixels of the network's input unless a name says otherwise. Defaults are those of the TF2 detection zoo's
`ssd_mobilenet_v2_fpnlite_320x320` where it has them.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import InputError


def _check(condition: bool, field: str, got: object, allowed: str) -> None:
    if not condition:
        raise InputError(f"{field}: got {got}, allowed: {allowed}.")


# --- the detector ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ImageSize:
    """Pictures are resized to this, without keeping their aspect ratio (`fixed_shape_resizer`)."""

    height: int = 320
    width: int = 320

    def __post_init__(self) -> None:
        for field in ("height", "width"):
            size = getattr(self, field)
            _check(size >= 64 and size % 32 == 0, field, size, "a multiple of 32, at least 64")


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """`momentum` is the share of the old moving statistics kept at each step; small data sets need less than 0.99."""

    momentum: float = 0.997
    epsilon: float = 0.001

    def __post_init__(self) -> None:
        _check(0 < self.momentum < 1, "momentum", self.momentum, "between 0 and 1")
        _check(self.epsilon > 0, "epsilon", self.epsilon, "above 0")


@dataclass(frozen=True, kw_only=True)
class MobileNetV2:
    """`width_multiplier` scales the channels of every layer (alpha in the paper, arXiv:1801.04381)."""

    width_multiplier: float = 1.0

    def __post_init__(self) -> None:
        _check(0.1 <= self.width_multiplier <= 2, "width_multiplier", self.width_multiplier, "0.1 to 2")


@dataclass(frozen=True, kw_only=True)
class FpnLite:
    """Feature pyramid with separable convolutions; level l has a stride of 2**l pixels."""

    min_level: int = 3
    max_level: int = 7
    num_channels: int = 128

    def __post_init__(self) -> None:
        _check(self.min_level in (3, 4), "min_level", self.min_level, "3 or 4")
        _check(5 <= self.max_level <= 8, "max_level", self.max_level, "5 to 8")
        _check(self.num_channels >= 8, "num_channels", self.num_channels, "8 or more")


@dataclass(frozen=True, kw_only=True)
class SharedHead:
    """Separable convolutions shared by all levels; `class_prior` is the score of every anchor before training."""

    num_layers: int = 4
    num_channels: int = 128
    class_prior: float = 0.01

    def __post_init__(self) -> None:
        _check(0 <= self.num_layers <= 8, "num_layers", self.num_layers, "0 to 8")
        _check(self.num_channels >= 8, "num_channels", self.num_channels, "8 or more")
        _check(0 < self.class_prior < 1, "class_prior", self.class_prior, "between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class MultiscaleAnchors:
    """Anchors of level l have sides of anchor_scale * 2**l * 2**(i / scales_per_octave); a ratio is width / height."""

    anchor_scale: float = 4.0
    aspect_ratios: tuple[float, ...] = (1.0, 2.0, 0.5)
    scales_per_octave: int = 2

    def __post_init__(self) -> None:
        _check(self.anchor_scale > 0, "anchor_scale", self.anchor_scale, "above 0")
        ratios = self.aspect_ratios
        _check(bool(ratios) and min(ratios) > 0, "aspect_ratios", ratios, "at least one, all above 0")
        _check(1 <= self.scales_per_octave <= 8, "scales_per_octave", self.scales_per_octave, "1 to 8")


@dataclass(frozen=True, kw_only=True)
class BoxCoder:
    """Offsets of centre and log size are multiplied by these, so that the loss sees numbers near 1."""

    center_scale: float = 10.0
    size_scale: float = 5.0

    def __post_init__(self) -> None:
        _check(self.center_scale > 0, "center_scale", self.center_scale, "above 0")
        _check(self.size_scale > 0, "size_scale", self.size_scale, "above 0")


@dataclass(frozen=True, kw_only=True)
class Matcher:
    """An anchor is foreground from `foreground_iou`, background below `background_iou`, ignored between.

    With `force_match`, the best anchor of every box is foreground whatever its IoU.
    """

    foreground_iou: float = 0.5
    background_iou: float = 0.5
    force_match: bool = True

    def __post_init__(self) -> None:
        _check(0 < self.foreground_iou <= 1, "foreground_iou", self.foreground_iou, "above 0, at most 1")
        _check(
            0 <= self.background_iou <= self.foreground_iou,
            "background_iou",
            self.background_iou,
            "0 to foreground_iou",
        )


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sigmoid focal loss for classes, Huber loss for box offsets, both divided by the number of matched anchors."""

    focal_alpha: float = 0.25
    focal_gamma: float = 2.0
    huber_delta: float = 1.0
    class_weight: float = 1.0
    box_weight: float = 1.0

    def __post_init__(self) -> None:
        _check(0 <= self.focal_alpha <= 1, "focal_alpha", self.focal_alpha, "0 to 1")
        _check(self.focal_gamma >= 0, "focal_gamma", self.focal_gamma, "0 or more")
        _check(self.huber_delta > 0, "huber_delta", self.huber_delta, "above 0")
        for field in ("class_weight", "box_weight"):
            _check(getattr(self, field) >= 0, field, getattr(self, field), "0 or more")


@dataclass(frozen=True, kw_only=True)
class Nms:
    """Non-maximum suppression within each class; boxes under `score_threshold` are dropped before it."""

    score_threshold: float = 1e-8
    iou_threshold: float = 0.6
    max_detections_per_class: int = 100
    max_detections: int = 100

    def __post_init__(self) -> None:
        _check(0 <= self.score_threshold < 1, "score_threshold", self.score_threshold, "0 up to 1")
        _check(0 < self.iou_threshold <= 1, "iou_threshold", self.iou_threshold, "above 0, at most 1")
        for field in ("max_detections_per_class", "max_detections"):
            _check(getattr(self, field) >= 1, field, getattr(self, field), "1 or more")


@dataclass(frozen=True, kw_only=True)
class Ssd:
    """Single-shot detector: MobileNetV2, FPN-lite neck, heads shared by all levels."""

    image_size: ImageSize = ImageSize()
    batch_norm: BatchNorm = BatchNorm()
    backbone: MobileNetV2 = MobileNetV2()
    neck: FpnLite = FpnLite()
    head: SharedHead = SharedHead()
    anchors: MultiscaleAnchors = MultiscaleAnchors()
    box_coder: BoxCoder = BoxCoder()
    matcher: Matcher = Matcher()
    losses: Losses = Losses()
    nms: Nms = Nms()


# --- training -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConstantRate:
    learning_rate: float

    def __post_init__(self) -> None:
        _check(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")


@dataclass(frozen=True, kw_only=True)
class CosineRate:
    """Linear warm-up from `warmup_learning_rate` to `learning_rate`, then half a cosine down to 0 at the last step."""

    learning_rate: float
    warmup_learning_rate: float = 0.0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        _check(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        warmup = self.warmup_learning_rate
        _check(0 <= warmup <= self.learning_rate, "warmup_learning_rate", warmup, "0 to learning_rate")
        _check(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Stochastic gradient descent with momentum."""

    rate: ConstantRate | CosineRate
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(0 <= self.momentum < 1, "momentum", self.momentum, "0 up to 1")


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv:1711.05101); biases and batch norm are not decayed."""

    rate: ConstantRate | CosineRate
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        _check(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")


@dataclass(frozen=True, kw_only=True)
class HorizontalFlip:
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(0 <= self.probability <= 1, "probability", self.probability, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class VerticalFlip:
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(0 <= self.probability <= 1, "probability", self.probability, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Crop to a random share of the picture's area; a box is kept if at least `min_visible` of its area is inside."""

    min_area: float = 0.75
    max_area: float = 1.0
    min_aspect_ratio: float = 0.75
    max_aspect_ratio: float = 4 / 3
    min_visible: float = 0.3
    probability: float = 1.0

    def __post_init__(self) -> None:
        _check(0 < self.min_area <= self.max_area <= 1, "min_area", self.min_area, "above 0, at most max_area")
        ratios = (self.min_aspect_ratio, self.max_aspect_ratio)
        _check(0 < ratios[0] <= ratios[1], "min_aspect_ratio", ratios[0], "above 0, at most max_aspect_ratio")
        _check(0 <= self.min_visible <= 1, "min_visible", self.min_visible, "0 to 1")
        _check(0 <= self.probability <= 1, "probability", self.probability, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class RandomBrightness:
    """Add a random share of full white, from -max_delta to max_delta."""

    max_delta: float = 0.2

    def __post_init__(self) -> None:
        _check(0 <= self.max_delta <= 1, "max_delta", self.max_delta, "0 to 1")


@dataclass(frozen=True, kw_only=True)
class RandomContrast:
    """Scale the distance of every pixel from the picture's mean by a random factor."""

    min_factor: float = 0.8
    max_factor: float = 1.25

    def __post_init__(self) -> None:
        _check(0 < self.min_factor <= self.max_factor, "min_factor", self.min_factor, "above 0, at most max_factor")


Augmentation = HorizontalFlip | VerticalFlip | RandomCrop | RandomBrightness | RandomContrast


@dataclass(frozen=True, kw_only=True)
class Training:
    """How the detector is trained.

    Attributes:
        batch_size: pictures in one step, over all replicas.
        max_boxes: ground-truth boxes a picture is padded to; of more, the largest are kept.
        steps_per_call: training steps in one call from the host, so that it does not slow the device.
        evaluate_every: steps between evaluations on the eval split; the best one is exported.
        ema_decay: share of the old moving average of weights kept at each step; None trains without.
        clip_norm: largest global norm of the gradients; None does not clip.
        shuffle_records: encoded records in the shuffle buffer.
        best_metric: the COCO number on the eval split by which the exported checkpoint is chosen.
        seed: of initial weights, shuffling and augmentation.
    """

    batch_size: int
    num_steps: int
    optimizer: Momentum | AdamW
    augmentations: tuple[Augmentation, ...] = ()
    max_boxes: int = 100
    steps_per_call: int = 20
    evaluate_every: int = 500
    ema_decay: float | None = None
    clip_norm: float | None = 10.0
    shuffle_records: int = 2048
    best_metric: Literal["AP", "AP50", "AP75"] = "AP"
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("batch_size", "num_steps", "max_boxes", "steps_per_call", "evaluate_every", "shuffle_records"):
            _check(getattr(self, field) >= 1, field, getattr(self, field), "1 or more")
        _check(self.ema_decay is None or 0 < self.ema_decay < 1, "ema_decay", self.ema_decay, "between 0 and 1")
        _check(self.clip_norm is None or self.clip_norm > 0, "clip_norm", self.clip_norm, "above 0")
        warmup = getattr(self.optimizer.rate, "warmup_steps", 0)
        _check(
            warmup < self.num_steps, "optimizer.rate.warmup_steps", warmup, f"fewer than num_steps ({self.num_steps})"
        )


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """All that the Trainer needs to know beside the data."""

    detector: Ssd = Ssd()
    training: Training
