"""Learned and drawn sequences of changes, which move boxes with the picture (arXiv:1906.11172, arXiv:1909.13719).

They work on pictures before these are resized, as lengths in them are in pixels.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check, check_fields

PolicyName = Literal["v0", "v1", "v2", "v3"]


@dataclass(frozen=True, kw_only=True)
class AutoAugmentImage:
    """One sub-policy, drawn at random, of a policy that was learned on COCO."""

    policy_name: PolicyName = "v0"
    """Which policy; v0 is the paper's."""


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """A few changes drawn at random, all of the same strength."""

    num_layers: int = 1
    """How many changes, one after the other."""
    magnitude: float = 15.0
    """Their strength; 10 is the largest that the learned policies use."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "num_layers")
        check(0 <= self.magnitude <= 30, "magnitude", self.magnitude, "0 to 30")


PolicyAugmentation = AutoAugmentImage | RandAugment
