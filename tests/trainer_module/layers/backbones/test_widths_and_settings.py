"""Channels of MobileNets and ResNets, and whose settings their layers have; test_reference.py compares their values."""

import keras
import pytest

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.layers.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.backbones.resnet_v1 import build_resnet_v1
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

BUILDERS = {"mobilenet_v1": build_mobilenet_v1, "mobilenet_v2": build_mobilenet_v2, "resnet50_v1": build_resnet_v1}
HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=3e-4),
    initializer=TruncatedNormalInitializer(stddev=0.05),
    activation="SWISH",
    batch_norm=BatchNorm(decay=0.9, scale=False, epsilon=0.01),
)


def build(backbone, image_hw=(64, 96), *, freeze_batchnorm=False, **settings) -> keras.Model:
    config = FeatureExtractor(backbone=backbone, neck=Fpn(), conv_hyperparams=HYPERPARAMS, **settings)
    image = keras.Input((*image_hw, 3))
    features = BUILDERS[backbone](config, image, freeze_batchnorm=freeze_batchnorm)
    return keras.Model(image, {level: features[level] for level in (2, 3, 4, 5)})


def channels(network: keras.Model) -> dict[int, int]:
    return {level: feature.shape[-1] for level, feature in network.output.items()}


def layers_of(network: keras.Model, kind: type) -> list[keras.Layer]:
    return [layer for layer in network.layers if isinstance(layer, kind)]


def test_the_depth_multiplier_of_mobilenet_v1_counts_twice_as_in_the_reference():
    # 128 * 0.5 * 0.5 = 32, and so on; the first layer's 32 * 0.25 = 8 and block 1's 64 * 0.25 = 16 are at the minimum.
    network = build("mobilenet_v1", depth_multiplier=0.5, min_depth=16)
    assert channels(network) == {2: 32, 3: 64, 4: 128, 5: 256}
    assert network.get_layer("conv1").filters == 16


def test_a_separable_pyramid_makes_the_last_blocks_of_mobilenet_v1_narrower():
    network = build("mobilenet_v1", depth_multiplier=0.5, use_depthwise=True)
    assert network.get_layer("conv_pw_12").filters == 256  # 512 * 0.5, once
    assert channels(network)[5] == 128


def test_channels_of_mobilenet_v2_are_multiples_of_8_that_lose_at_most_a_tenth():
    # 24 * 0.7 = 16.8 -> 16; 32 * 0.7 = 22.4 -> 24; 96 * 0.7 = 67.2 -> 64; 1280 * 0.7 = 896
    network = build("mobilenet_v2", depth_multiplier=0.7, min_depth=1)
    assert channels(network) == {2: 16, 3: 24, 4: 64, 5: 896}


def test_no_layer_of_mobilenet_v2_is_below_the_minimum_and_one_that_it_widened_has_no_shortcut():
    network = build("mobilenet_v2", depth_multiplier=0.35, min_depth=16)
    names = {layer.name for layer in network.layers}
    assert min(layer.filters for layer in network.layers if type(layer) is keras.layers.Conv2D) == 16
    # as in the reference: 24 * 0.35 rounds to 8 channels, widened to 16; 32 * 0.35 = 11.2 to 16, as the paper says
    assert "block_2_add" not in names
    assert "block_4_add" in names


def test_levels_of_a_resnet_have_their_strides_and_channels():
    network = build("resnet50_v1", (65, 97), depth_multiplier=0.25, min_depth=24)
    shapes = {level: feature.shape[1:] for level, feature in network.output.items()}
    assert shapes == {2: (17, 25, 64), 3: (9, 13, 128), 4: (5, 7, 256), 5: (3, 4, 512)}
    assert network.get_layer("conv2_block1_1_conv").filters == 24  # the minimum; 64 * 0.25 = 16


MOBILENET_INITIALIZER = {"mean": 0.0, "stddev": 0.09}
RESNET_INITIALIZER = {"scale": 1.0, "mode": "fan_in", "distribution": "truncated_normal"}


@pytest.mark.parametrize(
    ("backbone", "decay", "epsilon", "num_convolutions", "layer", "penalty", "initializer"),
    [
        ("mobilenet_v1", 0.9997, 1e-3, 27, "conv_pw_13", 2e-5, MOBILENET_INITIALIZER),
        ("mobilenet_v2", 0.9997, 1e-3, 52, "Conv1", 2e-5, MOBILENET_INITIALIZER),
        ("resnet50_v1", 0.997, 1e-5, 53, "conv5_block3_2_conv", 1e-4, RESNET_INITIALIZER),
    ],
)
def test_without_the_override_a_backbone_has_the_references_settings(
    backbone, decay, epsilon, num_convolutions, layer, penalty, initializer
):
    network = build(backbone, depth_multiplier=0.1, min_depth=8, freeze_batchnorm=True)
    norms = layers_of(network, FusedBatchNorm)
    assert {(norm.momentum, norm.epsilon, norm.scale, norm.center) for norm in norms} == {(decay, epsilon, True, True)}
    assert all(norm.use_moving_statistics for norm in norms)
    assert not layers_of(network, keras.layers.Activation)  # no swish
    assert len(network.losses) == num_convolutions
    conv = network.get_layer(layer)
    assert conv.kernel.regularizer.l2 == pytest.approx(penalty)
    assert conv.kernel_initializer.get_config().items() >= initializer.items()


def test_with_the_override_the_settings_hold_for_the_backbone():
    network = build("mobilenet_v2", depth_multiplier=0.1, override_base_feature_extractor_hyperparams=True)
    assert {(norm.momentum, norm.scale) for norm in layers_of(network, FusedBatchNorm)} == {(0.9, False)}
    assert len(layers_of(network, keras.layers.Activation)) == 35
    assert len(network.losses) == 52  # one penalty a convolution
    assert network.get_layer("Conv1").kernel.regularizer.l2 == pytest.approx(1.5e-4)
