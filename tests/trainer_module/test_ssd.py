from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import FpnLite, ImageSize, MobileNetV2, SharedHead, Ssd
from detloom.trainer_module.anchors import build_anchors
from detloom.trainer_module.ssd import build_ssd


def test_the_network_has_one_row_for_every_anchor(tiny_config):
    network = build_ssd(tiny_config.detector, num_classes=3)
    outputs = network(tf.zeros([2, 64, 64, 3]))
    num_anchors = len(build_anchors(tiny_config.detector))
    assert outputs["offsets_BA4"].shape == (2, num_anchors, 4)
    assert outputs["class_logits_BAK"].shape == (2, num_anchors, 3)


@pytest.mark.parametrize(
    ("size", "neck"), [((320, 320), FpnLite(max_level=7)), ((96, 160), FpnLite(min_level=4, max_level=6))]
)
def test_anchors_and_network_agree_for_other_sizes_and_levels(tiny_config, size, neck):
    config = replace(
        tiny_config.detector, image_size=ImageSize(height=size[0], width=size[1]), neck=replace(neck, num_channels=8)
    )
    assert build_ssd(config, 1).output["offsets_BA4"].shape == (None, len(build_anchors(config)), 4)


def test_scores_start_at_the_prior(tiny_config):
    config = replace(tiny_config.detector, head=SharedHead(num_layers=1, num_channels=16, class_prior=0.05))
    logits = build_ssd(config, 2)(tf.random.normal([1, 64, 64, 3]))["class_logits_BAK"]
    np.testing.assert_allclose(tf.sigmoid(logits), np.full(logits.shape, 0.05), atol=0.02)


def test_batch_norm_has_the_configured_momentum_everywhere(tiny_config):
    layers = [
        layer
        for layer in build_ssd(tiny_config.detector, 1).layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert len(layers) > 50
    assert {layer.momentum for layer in layers} == {0.9}


def test_head_convolutions_are_shared_and_their_batch_norm_is_not(tiny_config):
    names = [layer.name for layer in build_ssd(tiny_config.detector, 1).layers]
    assert names.count("head_conv_0") == 1
    assert {f"head_conv_0_level_{level}_bn" for level in (3, 4, 5)} <= set(names)


def test_the_number_of_parameters_grows_with_the_width():
    small, large = (
        build_ssd(Ssd(backbone=MobileNetV2(width_multiplier=width)), 1).count_params() for width in (0.35, 0.5)
    )
    assert small < large
