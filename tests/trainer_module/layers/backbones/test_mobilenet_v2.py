import keras
import numpy as np
import pytest

from detloom.schemas.model.network import BatchNorm, ExtraFeatureLayers
from detloom.trainer_module.layers.backbones.mobilenet_v2 import build_mobilenet_v2
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm


@pytest.fixture
def build(zoo_config, changed):
    def run(image_hw=(64, 96), levels=(2, 3, 4, 5), **settings):
        config = changed(zoo_config.model.feature_extractor, settings)
        image = keras.Input((*image_hw, 3))
        features = build_mobilenet_v2(config, image, freeze_batchnorm=False)
        return keras.Model(image, {level: features[level] for level in levels})

    return run


def approx(means: dict[int, list[float]]) -> dict[int, object]:
    return {level: pytest.approx(values, rel=1e-3) for level, values in means.items()}


@pytest.mark.slow  # two whole networks; the features also equal the reference
def test_layers_and_features_equal_keras_applications(build):
    theirs = keras.applications.MobileNetV2((64, 96, 3), include_top=False, weights=None)
    ours = build()
    image = np.random.default_rng(0).uniform(-1, 1, (1, 64, 96, 3)).astype(np.float32)
    shapes = {level: feature.shape[1:] for level, feature in ours.output.items()}
    assert shapes == {2: (16, 24, 24), 3: (8, 12, 32), 4: (4, 6, 96), 5: (2, 3, 1280)}
    with_weights = [layer for layer in theirs.layers if layer.weights]
    assert {layer.name for layer in ours.layers if layer.weights} == {layer.name for layer in with_weights}
    for layer in with_weights:
        ours.get_layer(layer.name).set_weights(layer.get_weights())
    np.testing.assert_allclose(ours(image)[5], theirs(image), atol=1e-5)


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


def test_features_equal_the_reference(build, corner_means):
    network = build(override_base_feature_extractor_hyperparams=False)
    inference = {2: [-0.520829, -0.239135], 3: [0.103911, 0.262565], 4: [-0.669579, -0.439181], 5: [1.46248, 1.48717]}
    training = {2: [-0.382907, -0.139398], 3: [0.235132, 0.0978363], 4: [-0.108862, -0.0101099], 5: [0.43195, 0.398132]}
    assert corner_means(network, training=False) == approx(inference)
    assert corner_means(network, training=True) == approx(training)


def test_features_of_plain_ssd_with_explicit_padding_equal_the_reference(build, corner_means):
    network = build(
        (64, 100),
        levels=(4, 5),
        neck=ExtraFeatureLayers(),
        depth_multiplier=0.5,
        use_explicit_padding=True,
        override_base_feature_extractor_hyperparams=False,
    )
    in_inference = {4: [1.85753, 1.60721], 5: [1.66182, 1.49853]}
    in_training = {4: [0.395032, 0.294553], 5: [0.329933, 0.371325]}
    assert corner_means(network, training=False) == approx(in_inference)
    assert corner_means(network, training=True) == approx(in_training)
    assert float(sum(network.losses)) == pytest.approx(0.3438951, rel=1e-5)
