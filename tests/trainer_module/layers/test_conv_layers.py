import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.network import (
    BatchNorm,
    ConvHyperparams,
    L1Regularizer,
    L2Regularizer,
    RandomNormalInitializer,
    TruncatedNormalInitializer,
    VarianceScalingInitializer,
)
from detloom.trainer_module.layers.conv_layers import ConvLayers, build_initializer, build_regularizer

SHAPE = (3, 3, 50, 100)  # fan in 3 * 3 * 50 = 450, fan out 900, mean 675


def make_layers(*, freeze_batchnorm=False, **settings) -> ConvLayers:
    group = {"regularizer": L2Regularizer(weight=0.0), "initializer": RandomNormalInitializer(), **settings}
    return ConvLayers(ConvHyperparams(**group), freeze_batchnorm)


@pytest.mark.parametrize(
    ("config", "mean", "stddev", "largest"),
    [
        (RandomNormalInitializer(mean=3.0, stddev=0.5), 3.0, 0.5, np.inf),
        # Cut at two standard deviations: 0.88 of the deviation is left.
        (TruncatedNormalInitializer(mean=3.0, stddev=0.5), 3.0, 0.5 * 0.8796, 4.0),
        (VarianceScalingInitializer(factor=2.0), 0.0, (2 / 450) ** 0.5, np.inf),
        (VarianceScalingInitializer(factor=2.0, mode="FAN_OUT"), 0.0, (2 / 900) ** 0.5, np.inf),
        (VarianceScalingInitializer(factor=1.0, mode="FAN_AVG"), 0.0, (1 / 675) ** 0.5, np.inf),
        # Uniform up to sqrt(3) standard deviations.
        (VarianceScalingInitializer(factor=3.0, uniform=True), 0.0, (3 / 450) ** 0.5, (9 / 450) ** 0.5),
    ],
)
def test_first_weights_have_the_configured_distribution(config, mean, stddev, largest):
    keras.utils.set_random_seed(0)
    weights = keras.ops.convert_to_numpy(build_initializer(config)(SHAPE))
    assert weights.mean() == pytest.approx(mean, abs=0.01)
    assert weights.std() == pytest.approx(stddev, rel=0.02)
    assert weights.max() <= largest


def test_two_kernels_do_not_start_with_the_same_weights():
    layers = make_layers()
    first, second = (keras.layers.Conv2D(4, 1, **layers.kernel()) for _ in range(2))
    for layer in (first, second):
        layer.build((None, 2, 2, 4))
    assert not np.array_equal(first.kernel.numpy(), second.kernel.numpy())


@pytest.mark.parametrize(
    ("config", "penalty"),
    [(L2Regularizer(weight=0.5), 0.5 / 2 * (1 + 4)), (L1Regularizer(weight=0.5), 0.5 * (1 + 2))],
)
def test_penalties_equal_values_computed_by_hand(config, penalty):
    assert float(build_regularizer(config)(tf.constant([1.0, -2.0]))) == pytest.approx(penalty)


@pytest.mark.parametrize("kind", [L1Regularizer, L2Regularizer])
def test_a_penalty_of_weight_0_costs_nothing(kind):
    assert build_regularizer(kind(weight=0.0)) is None


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("NONE", [-2.0, 0.5, 8.0]),
        ("RELU", [0.0, 0.5, 8.0]),
        ("RELU_6", [0.0, 0.5, 6.0]),
        ("SWISH", [-2 / (1 + np.exp(2)), 0.5 / (1 + np.exp(-0.5)), 8 / (1 + np.exp(-8))]),
    ],
)
def test_activations_equal_values_computed_by_hand(activation, expected):
    layers = make_layers(activation=activation)
    np.testing.assert_allclose(layers.activate(tf.constant([-2.0, 0.5, 8.0]), "a"), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "use_bias"),
    [
        ({"batch_norm": None}, True),
        ({"batch_norm": BatchNorm()}, False),
        ({"batch_norm": BatchNorm(center=False)}, True),
        ({"batch_norm": BatchNorm(), "force_use_bias": True}, True),
    ],
)
def test_a_convolution_has_a_bias_if_batch_norm_has_no_offset(settings, use_bias):
    assert make_layers(**settings).use_bias is use_bias


@pytest.mark.parametrize("is_frozen", [False, True])
def test_batch_norm_has_the_configured_settings(is_frozen):
    norm = BatchNorm(decay=0.95, center=False, scale=True, epsilon=0.01)
    layers = make_layers(batch_norm=norm, freeze_batchnorm=is_frozen)
    layer = keras.Model(image := keras.Input((4, 4, 2)), layers.normalize(image, "norm")).get_layer("norm")
    assert (layer.momentum, layer.epsilon, layer.center, layer.scale) == (0.95, 0.01, False, True)
    assert layer.use_moving_statistics is is_frozen


def test_without_batch_norm_nothing_is_normalized():
    features = tf.ones([1, 2, 2, 1])
    assert make_layers(batch_norm=None).normalize(features, "norm") is features
