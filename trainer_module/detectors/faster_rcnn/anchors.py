"""Anchors of the first stage of Faster R-CNN, and the feature maps that they belong to. Imports no TensorFlow."""

from typing import NamedTuple

import numpy as np

from detloom.schemas.contracts.arrays import BoolArray, Float32Array
from detloom.schemas.model.faster_rcnn import FasterRcnn, FasterRcnnFeatureExtractor
from detloom.trainer_module.boxes.anchors import build_rpn_anchors, feature_hw
from detloom.trainer_module.layers.necks.pyramid_levels import padded_hw, pyramid_levels

FIRST_STAGE_LEVEL = 4  # of the backbone without a pyramid: a stride of 16
PYRAMID_PAD_MULTIPLE = 32  # as in the reference, whatever the file says


class FirstStageAnchors(NamedTuple):
    """The anchors in the order of the network's outputs.

    Attributes:
        clipped_yxyx_px_A4: float32, clipped to the network's input.
        is_inner_A: bool, whether the anchor is inside of the input without clipping.
    """

    clipped_yxyx_px_A4: Float32Array
    is_inner_A: BoolArray


def feature_levels(config: FasterRcnnFeatureExtractor) -> tuple[int, ...]:
    """Return the levels that the first stage sees, from fine to coarse."""
    return (FIRST_STAGE_LEVEL,) if config.neck is None else pyramid_levels(config.neck)


def build_first_stage_anchors(config: FasterRcnn, network_hw: tuple[int, int]) -> FirstStageAnchors:
    """Build the anchors of all feature maps for an input of `network_hw` pixels."""
    extractor = config.feature_extractor
    padded = network_hw if extractor.neck is None else padded_hw(network_hw, PYRAMID_PAD_MULTIPLE)
    feature_hws = [feature_hw(padded, level) for level in feature_levels(extractor)]
    anchors_A4 = build_rpn_anchors(config.first_stage_anchor_generator, feature_hws)
    clipped_A4 = np.clip(anchors_A4, 0, np.array(network_hw * 2, np.float32))
    return FirstStageAnchors(clipped_A4, (clipped_A4 == anchors_A4).all(axis=1))
