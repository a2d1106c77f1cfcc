import keras
import pytest

from detloom.schemas.network_config import BatchNorm
from detloom.trainer_module.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.fused_batch_norm import FusedBatchNorm


@pytest.fixture
def build(zoo_config, changed):
    def run(**settings):
        config = changed(zoo_config.model.feature_extractor, settings)
        image = keras.Input((64, 96, 3))
        return keras.Model(image, build_mobilenet_v2(config, image, freeze_batchnorm=False))

    return run


def test_levels_have_their_strides_and_the_papers_channels(build):
    shapes = {level: feature.shape[1:] for level, feature in build().output.items()}
    assert shapes == {2: (16, 24, 24), 3: (8, 12, 32), 4: (4, 6, 96), 5: (2, 3, 1280)}


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_it_has_the_parameters_of_kerass_own(build, alpha):
    theirs = keras.applications.MobileNetV2((64, 96, 3), alpha=alpha, include_top=False, weights=None)
    difference = theirs.count_params() - build(depth_multiplier=alpha, min_depth=1).count_params()
    # Keras leaves the last layer at 1280 channels where the others are halved; here it has 640. Each channel has a
    # weight from each of the 160 before, and factor, offset, mean and variance.
    assert difference == (0 if alpha == 1 else 640 * (160 + 4))


def test_channels_are_multiples_of_8_that_lose_at_most_a_tenth(build):
    channels = {level: feature.shape[-1] for level, feature in build(depth_multiplier=0.7, min_depth=1).output.items()}
    # 24 * 0.7 = 16.8 -> 16; 32 * 0.7 = 22.4 -> 24; 96 * 0.7 = 67.2 -> 64; 1280 * 0.7 = 896
    assert channels == {2: 16, 3: 24, 4: 64, 5: 896}


def test_no_layer_is_narrower_than_the_minimum(build):
    network = build(depth_multiplier=0.1, min_depth=20)
    widths = {layer.filters for layer in network.layers if type(layer) is keras.layers.Conv2D}
    assert min(widths) == 20


def test_a_layer_that_the_minimum_widened_has_no_shortcut_as_in_the_reference(build):
    names = {layer.name for layer in build(depth_multiplier=0.35, min_depth=16).layers}
    # 24 * 0.35 rounds to 8 channels, widened to 16; 32 * 0.35 = 11.2 to 16, as the paper says
    assert "block_2_add" not in names
    assert "block_4_add" in names


def test_without_the_override_the_backbone_has_the_references_settings(build):
    network = build(
        override_base_feature_extractor_hyperparams=False,
        **{"conv_hyperparams.activation": "SWISH", "conv_hyperparams.batch_norm": BatchNorm(decay=0.9)},
    )
    norms = [layer for layer in network.layers if isinstance(layer, FusedBatchNorm)]
    assert {(norm.momentum, norm.epsilon, norm.scale) for norm in norms} == {(0.9997, 1e-3, True)}
    assert not any(isinstance(layer, keras.layers.Activation) for layer in network.layers)
    kernel = network.get_layer("Conv1").kernel
    assert kernel.regularizer.l2 == pytest.approx(2e-5)
    assert abs(kernel.numpy()).max() <= 0.18 + 1e-6  # two standard deviations of 0.09


def test_with_the_override_the_settings_hold_for_the_backbone(build):
    network = build(
        **{"conv_hyperparams.activation": "SWISH", "conv_hyperparams.batch_norm": BatchNorm(decay=0.9, scale=False)}
    )
    norms = [layer for layer in network.layers if isinstance(layer, FusedBatchNorm)]
    assert {(norm.momentum, norm.scale) for norm in norms} == {(0.9, False)}
    assert len([layer for layer in network.layers if isinstance(layer, keras.layers.Activation)]) == 35
    assert len(network.losses) == 52  # one penalty a convolution
