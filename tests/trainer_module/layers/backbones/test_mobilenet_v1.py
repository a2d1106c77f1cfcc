import keras
import numpy as np
import pytest

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    ExtraFeatureLayers,
    FeatureExtractor,
    Fpn,
    L2Regularizer,
    TruncatedNormalInitializer,
)
from detloom.trainer_module.layers.backbones.mobilenet_v1 import build_mobilenet_v1
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

HYPERPARAMS = ConvHyperparams(
    regularizer=L2Regularizer(weight=3e-4),
    initializer=TruncatedNormalInitializer(stddev=0.05),
    activation="RELU",
    batch_norm=BatchNorm(decay=0.9, scale=True, epsilon=0.01),
)


def build(image_hw=(64, 96), *, levels=(2, 3, 4, 5), freeze_batchnorm=False, **settings) -> keras.Model:
    settings = {"backbone": "mobilenet_v1", "neck": Fpn(), "conv_hyperparams": HYPERPARAMS, **settings}
    config = FeatureExtractor(**settings)
    image = keras.Input((*image_hw, 3))
    features = build_mobilenet_v1(config, image, freeze_batchnorm=freeze_batchnorm)
    return keras.Model(image, {level: features[level] for level in levels})


def channels(network: keras.Model) -> dict[int, int]:
    return {level: feature.shape[-1] for level, feature in network.output.items()}


def approx(means: dict[int, list[float]]) -> dict[int, object]:
    return {level: pytest.approx(values, rel=1e-3) for level, values in means.items()}


@pytest.mark.slow  # two whole networks; the features also equal the reference
def test_layers_and_features_equal_keras_applications():
    theirs = keras.applications.MobileNet(input_shape=(64, 96, 3), include_top=False, weights=None)
    ours = build()
    image = np.random.default_rng(0).uniform(-1, 1, (1, 64, 96, 3)).astype(np.float32)
    assert {level: feature.shape[1:] for level, feature in ours.output.items()} == {
        2: (16, 24, 128),
        3: (8, 12, 256),
        4: (4, 6, 512),
        5: (2, 3, 1024),
    }
    with_weights = [layer for layer in theirs.layers if layer.weights]
    assert {layer.name for layer in ours.layers if layer.weights} == {layer.name for layer in with_weights}
    for layer in with_weights:
        ours.get_layer(layer.name).set_weights(layer.get_weights())
    np.testing.assert_allclose(ours(image)[5], theirs(image), atol=1e-5)


def test_the_depth_multiplier_counts_twice_as_in_the_reference():
    # 128 * 0.5 * 0.5 = 32, and so on; the first layer's 32 * 0.25 = 8 and block 1's 64 * 0.25 = 16 are at the minimum.
    network = build(depth_multiplier=0.5, min_depth=16)
    assert channels(network) == {2: 32, 3: 64, 4: 128, 5: 256}
    assert network.get_layer("conv1").filters == 16


def test_a_separable_pyramid_makes_the_last_blocks_narrower():
    network = build(depth_multiplier=0.5, use_depthwise=True)
    assert network.get_layer("conv_pw_12").filters == 256  # 512 * 0.5, once
    assert channels(network)[5] == 128


def test_without_the_override_the_backbone_has_the_references_settings():
    network = build(freeze_batchnorm=True)
    norms = [layer for layer in network.layers if isinstance(layer, FusedBatchNorm)]
    assert {(norm.momentum, norm.epsilon, norm.scale, norm.center) for norm in norms} == {(0.9997, 1e-3, True, True)}
    assert all(norm.use_moving_statistics for norm in norms)
    assert len(network.losses) == 27  # one penalty a convolution: the first, 13 depthwise, 13 pointwise
    kernel = network.get_layer("conv_pw_13").kernel
    assert kernel.regularizer.l2 == pytest.approx(2e-5)
    assert kernel.numpy().std() == pytest.approx(0.09 * 0.88, rel=0.01)  # cut at two standard deviations


def test_features_equal_the_reference(corner_means):
    network = build(depth_multiplier=0.75, use_depthwise=True)
    in_inference = {2: [0.316243, 0.151544], 3: [0.488984, 0.308195], 4: [0.327455, 0.250046], 5: [0.483315, 0.281371]}
    in_training = {2: [0.329253, 0.335898], 3: [0.303256, 0.288557], 4: [0.279557, 0.406215], 5: [0.429105, 0.468755]}
    assert corner_means(network, training=False) == approx(in_inference)
    assert corner_means(network, training=True) == approx(in_training)


def test_features_with_explicit_padding_and_the_override_equal_the_reference(corner_means):
    network = build(
        (64, 100),
        neck=ExtraFeatureLayers(),
        levels=(4, 5),
        depth_multiplier=0.5,
        use_explicit_padding=True,
        override_base_feature_extractor_hyperparams=True,
    )
    in_inference = {4: [0.715759, 0.364612], 5: [0.577571, 0.437319]}
    in_training = {4: [0.375545, 0.449784], 5: [0.398905, 0.346378]}
    assert corner_means(network, training=False) == approx(in_inference)
    assert corner_means(network, training=True) == approx(in_training)
    assert float(sum(network.losses)) == pytest.approx(0.8110846, rel=1e-5)
