"""Losses of the detectors.

Names and defaults are those of the Object Detection API's `pipeline.config`, as in `detector.py`.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import NotNegative, NotNegativeInt, Positive, Ranged, Share, check, check_fields


@dataclass(frozen=True, kw_only=True)
class WeightedSigmoid:
    """Sigmoid cross-entropy for independent classes."""


@dataclass(frozen=True, kw_only=True)
class WeightedSoftmax(Ranged):
    """Softmax cross-entropy for mutually exclusive classes."""

    logit_scale: Positive = 1.0
    """Divisor of the logits."""


@dataclass(frozen=True, kw_only=True)
class SigmoidFocal(Ranged):
    """Focal loss (arXiv:1708.02002, equation 5)."""

    gamma: NotNegative = 2.0
    """Focusing parameter: larger values reduce the weight of anchors that are classified correctly."""
    alpha: Share | None = None
    """Weight of positives; negatives have the weight 1 - alpha. null gives both the weight 1."""


@dataclass(frozen=True, kw_only=True)
class PenaltyReducedFocal(Ranged):
    """Focal loss for a heatmap of Gaussians (arXiv:1904.07850, equation 1); CenterNet only."""

    alpha: NotNegative = 2.0
    """Focusing parameter: larger values reduce the weight of cells that are classified correctly."""
    beta: NotNegative = 4.0
    """Larger values reduce the weight of background cells near an object's center."""


ClassificationLoss = WeightedSigmoid | WeightedSoftmax | SigmoidFocal | PenaltyReducedFocal


@dataclass(frozen=True, kw_only=True)
class WeightedL2:
    """Half of the squared error of the offsets."""


@dataclass(frozen=True, kw_only=True)
class WeightedSmoothL1(Ranged):
    """Huber loss of the offsets: quadratic up to `delta`, linear beyond."""

    delta: Positive = 1.0
    """Error at which the loss becomes linear."""


@dataclass(frozen=True, kw_only=True)
class WeightedL1:
    """Absolute error of the offsets; CenterNet only."""


@dataclass(frozen=True, kw_only=True)
class WeightedIou:
    """1 - IoU of the decoded boxes."""


@dataclass(frozen=True, kw_only=True)
class WeightedGiou:
    """1 - generalized IoU of the decoded boxes (arXiv:1902.09630)."""


@dataclass(frozen=True, kw_only=True)
class WeightedCiou:
    """1 - complete IoU of the decoded boxes (arXiv:1911.08287): IoU, distance of the centers and aspect ratio."""


LocalizationLoss = WeightedL2 | WeightedSmoothL1 | WeightedL1 | WeightedIou | WeightedGiou | WeightedCiou


@dataclass(frozen=True, kw_only=True)
class HardExampleMiner(Ranged):
    """Train only on the anchors with the highest loss, after NMS among them (arXiv:1604.03540)."""

    num_hard_examples: NotNegativeInt = 64
    """Largest number of anchors per image; 0 sets no limit."""
    iou_threshold: Share = 0.7
    """IoU above which the anchor with the lower loss is dropped."""
    loss_type: Literal["BOTH", "CLASSIFICATION", "LOCALIZATION"] = "BOTH"
    """Loss that ranks the anchors."""
    max_negatives_per_positive: NotNegativeInt = 0
    """Largest number of background anchors per foreground anchor; 0 sets no limit."""
    min_negatives_per_image: NotNegativeInt = 0
    """Smallest number of background anchors per image."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Losses of the detector, without regularization."""

    classification_loss: ClassificationLoss
    """Loss of the class outputs of all anchors."""
    localization_loss: LocalizationLoss
    """Loss of the box offsets of foreground anchors."""
    hard_example_miner: HardExampleMiner | None = None
    """Selection of anchors with a high loss; null uses all anchors."""
    classification_weight: float = 1.0
    """Factor of the classification loss."""
    localization_weight: float = 1.0
    """Factor of the localization loss."""

    def __post_init__(self) -> None:
        check_fields(self, "0 or more", "classification_weight", "localization_weight")
        allowed = "another loss; this one is CenterNet's"
        for field, of_center_net in (("classification_loss", PenaltyReducedFocal), ("localization_loss", WeightedL1)):
            loss = getattr(self, field)
            check(not isinstance(loss, of_center_net), field, type(loss).__name__, allowed)
        if self.hard_example_miner is not None:  # as in the reference: both would select among the negatives
            is_focal = isinstance(self.classification_loss, SigmoidFocal)
            check(not is_focal, "hard_example_miner", "a miner with SigmoidFocal", "another classification loss")
