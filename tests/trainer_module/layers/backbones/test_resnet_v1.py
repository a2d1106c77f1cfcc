import keras
import numpy as np
import pytest

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.layers.backbones.resnet_v1 import build_resnet_v1
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=3e-4),
    initializer=TruncatedNormalInitializer(stddev=0.05),
    activation="RELU",
    batch_norm=BatchNorm(decay=0.9, scale=True, epsilon=0.01),
)


def build(image_hw=(64, 96), *, freeze_batchnorm=False, **settings) -> keras.Model:
    config = FeatureExtractor(backbone="resnet50_v1", neck=Fpn(), conv_hyperparams=HYPERPARAMS, **settings)
    image = keras.Input((*image_hw, 3))
    return keras.Model(image, build_resnet_v1(config, image, freeze_batchnorm=freeze_batchnorm))


def approx(means: dict[int, list[float]]) -> dict[int, object]:
    return {level: pytest.approx(values, rel=1e-3) for level, values in means.items()}


@pytest.fixture(scope="module")
def narrow() -> keras.Model:
    return build((65, 97), depth_multiplier=0.25, min_depth=24, freeze_batchnorm=True)


def test_levels_have_their_strides_and_channels(narrow):
    shapes = {level: feature.shape[1:] for level, feature in narrow.output.items()}
    assert shapes == {2: (17, 25, 64), 3: (9, 13, 128), 4: (5, 7, 256), 5: (3, 4, 512)}
    assert narrow.get_layer("conv2_block1_1_conv").filters == 24  # the minimum; 64 * 0.25 = 16


@pytest.mark.slow
def test_features_equal_keras_applications_if_the_pooling_pads_equally():
    # 65 x 97 leaves the first convolution as 33 x 49: 'SAME' pads odd sizes by one at each side, as theirs always does.
    ours = build((65, 97))
    theirs = keras.applications.ResNet50(input_shape=(65, 97, 3), include_top=False, weights=None)
    image = np.random.default_rng(0).uniform(-100, 100, (1, 65, 97, 3)).astype(np.float32)
    for layer in (layer for layer in theirs.layers if layer.weights):
        weights = layer.get_weights()
        is_conv = isinstance(layer, keras.layers.Conv2D)  # with a bias, which starts at zero and which ours has not
        ours.get_layer(layer.name).set_weights(weights[:1] if is_conv else weights)
    expected = theirs(image).numpy()
    np.testing.assert_allclose(ours(image)[5], expected, atol=1e-4 * expected.std())


def test_without_the_override_the_backbone_has_the_references_settings(narrow):
    norms = [layer for layer in narrow.layers if isinstance(layer, FusedBatchNorm)]
    assert {(norm.momentum, norm.epsilon, norm.scale, norm.center) for norm in norms} == {(0.997, 1e-5, True, True)}
    assert all(norm.use_moving_statistics for norm in norms)
    assert len(narrow.losses) == 53
    layer = narrow.get_layer("conv5_block3_2_conv")
    assert layer.kernel.regularizer.l2 == pytest.approx(1e-4)
    initializer = layer.kernel_initializer
    assert (initializer.scale, initializer.mode, initializer.distribution) == (1.0, "fan_in", "truncated_normal")


@pytest.mark.slow
def test_features_equal_the_reference(corner_means):
    network = build(depth_multiplier=0.5)
    in_inference = {2: [2.18332, 1.96776], 3: [8.98797, 13.7954], 4: [160.687, 221.17], 5: [664.259, 774.044]}
    in_training = {2: [1.0884, 1.00455], 3: [1.15102, 1.05969], 4: [1.48174, 1.42399], 5: [0.988274, 1.00312]}
    assert corner_means(network, training=False) == approx(in_inference)
    assert corner_means(network, training=True) == approx(in_training)


def test_features_and_penalty_with_the_override_equal_the_reference(corner_means):
    network = build(depth_multiplier=0.25, override_base_feature_extractor_hyperparams=True)
    expected = {2: [0.61071, 1.44408], 3: [0.690941, 1.50718], 4: [1.1843, 1.84668], 5: [0.978098, 1.16113]}
    assert corner_means(network, training=True) == approx(expected)
    assert float(sum(network.losses)) == pytest.approx(1.9736934, rel=1e-5)
