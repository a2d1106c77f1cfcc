"""A Faster R-CNN that is built and trained in seconds: one thin block per level of the ResNet."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.model.network import FixedShapeResizer, Fpn
from detloom.schemas.model.non_max_suppression import BatchNonMaxSuppression
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector

LABEL_MAP = LabelMap(((2, "red"), (5, "green")))
SIDE = 96


def small(config: FasterRcnn) -> FasterRcnn:
    """Return the configuration with small images, few anchors and few proposals."""
    nms = BatchNonMaxSuppression(max_detections_per_class=5, max_total_detections=10)
    post_processing = replace(config.second_stage_post_processing, batch_non_max_suppression=nms)
    return replace(
        config,
        image_resizer=FixedShapeResizer(height=SIDE, width=SIDE),
        first_stage_box_predictor_depth=32,
        first_stage_max_proposals=20,
        second_stage_batch_size=8,
        second_stage_post_processing=post_processing,
        first_stage_minibatch_size=32,
        initial_crop_size=8,
    )


@pytest.fixture(scope="session")
def plain_config() -> FasterRcnn:
    """Without a pyramid: 6 x 6 positions with one square anchor of 32 pixels and one of 64."""
    anchors = GridAnchorGenerator(scales=(0.125, 0.25), aspect_ratios=(1.0,))
    config = small(find_preset("faster_rcnn_resnet50_v1_640x640").config.model)
    return replace(config, first_stage_anchor_generator=anchors)


@pytest.fixture(scope="session")
def fpn_config() -> FasterRcnn:
    """With a pyramid of two levels and a box for each class; anchors that leave the image are not used."""
    config = small(find_preset("faster_rcnn_resnet50_v1_fpn_640x640").config.model)
    extractor = replace(config.feature_extractor, neck=Fpn(min_level=3, max_level=4, additional_layer_depth=16))
    anchors = MultiscaleAnchorGenerator(min_level=3, max_level=4, aspect_ratios=(1.0,), scales_per_octave=1)
    return replace(
        config,
        feature_extractor=extractor,
        first_stage_anchor_generator=anchors,
        clip_anchors_to_image=False,
    )


def with_masks(config: FasterRcnn, **settings: Any) -> FasterRcnn:
    """Return the configuration with a third stage; `settings` are those of the box predictor."""
    predictor = config.second_stage_box_predictor
    settings = {"mask_height": 6, "mask_width": 8, "mask_prediction_conv_depth": 16, **settings}
    hyperparams = predictor.fc_hyperparams
    predictor = replace(predictor, predict_instance_masks=True, conv_hyperparams=hyperparams, **settings)
    return replace(config, number_of_stages=3, second_stage_box_predictor=predictor)


@pytest.fixture(scope="session")
def masks_config(plain_config: FasterRcnn) -> FasterRcnn:
    """Without a pyramid, with a mask and a box for each class."""
    config = with_masks(plain_config)
    predictor = replace(config.second_stage_box_predictor, share_box_across_classes=False)
    return replace(config, second_stage_box_predictor=predictor)


@contextlib.contextmanager
def _thin_resnet() -> Iterator[None]:
    """Give ResNet-50 one block per level and an eighth of its channels."""
    from detloom.trainer_module.detectors.faster_rcnn import network
    from detloom.trainer_module.layers.backbones.resnet_v1 import RESNET_V1_BLOCKS

    def thin(config: object) -> object:
        return replace(backbone_config(config), depth_multiplier=0.125, min_depth=8)

    backbone_config, blocks = network.backbone_config, RESNET_V1_BLOCKS["resnet50_v1"]
    network.backbone_config, RESNET_V1_BLOCKS["resnet50_v1"] = thin, (1, 1, 1, 1)
    try:
        yield
    finally:
        network.backbone_config, RESNET_V1_BLOCKS["resnet50_v1"] = backbone_config, blocks


@pytest.fixture(autouse=True)
def thin_resnet() -> Iterator[None]:
    """Build thin networks, with the same weights in each run, in every test of this folder."""
    keras.utils.set_random_seed(0)
    with _thin_resnet():
        yield


@pytest.fixture(scope="session")
def thin() -> Callable[[], AbstractContextManager[None]]:
    """`with thin():` builds thin networks in a fixture that lives longer than a test."""
    return _thin_resnet


def _build_thin(config: FasterRcnn) -> Detector:
    keras.utils.set_random_seed(0)
    with _thin_resnet():
        return build_detector(config, LABEL_MAP)


@pytest.fixture(scope="session")
def plain_detector(plain_config: FasterRcnn) -> Detector:
    return _build_thin(plain_config)


@pytest.fixture(scope="session")
def fpn_detector(fpn_config: FasterRcnn) -> Detector:
    return _build_thin(fpn_config)


@pytest.fixture(scope="session")
def masks_detector(masks_config: FasterRcnn) -> Detector:
    return _build_thin(masks_config)


@pytest.fixture(scope="session", params=["plain", "fpn", "masks"])
def detector(request: pytest.FixtureRequest) -> Detector:
    return request.getfixturevalue(f"{request.param}_detector")


@pytest.fixture(scope="session")
def trained(detector: Detector, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Outputs in training mode."""
    return detector.forward(batch, training=True)


@pytest.fixture(scope="session")
def found(detector: Detector, batch: dict[str, tf.Tensor], trained: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Outputs in inference mode, always after those in training mode, which change the moving statistics."""
    return detector.forward(batch, training=False)


@pytest.fixture(scope="session")
def batch() -> dict[str, tf.Tensor]:
    """Two images with a red and a green square on grey; the lower third of the second image is padding.

    The left half of each square is its mask.
    """
    images = np.full((2, SIDE, SIDE, 3), 128, np.float32)
    masks = np.zeros((2, 3, SIDE, SIDE), np.uint8)
    boxes_px = np.zeros((2, 3, 4), np.float32)
    boxes_px[:, :2] = [[[10, 8, 42, 40], [50, 48, 82, 80]], [[4, 50, 36, 82], [30, 6, 62, 38]]]
    for image, boxes, image_masks in zip(images, boxes_px.astype(int), masks, strict=True):
        for k, (top, left, bottom, right) in enumerate(boxes[:2]):
            image[top:bottom, left:right] = [255 * (1 - k), 255 * k, 0]
            image_masks[k, top:bottom, left : (left + right) // 2] = 1
    images[1, 64:] = 0
    return {
        "image": tf.constant(images - 110),
        "true_hw": tf.constant([[SIDE, SIDE], [64, SIDE]]),
        "boxes_yxyx_rel": tf.constant(boxes_px / SIDE),
        "class_indices": tf.constant([[0, 1, -1]] * 2),
        "box_weights": tf.constant([[1.0, 1.0, 0.0]] * 2),
        "masks_GHW": tf.constant(masks),
    }
