"""Batch norms after each kind of convolution; `detectors/` has a test for each family."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest

from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

IMAGES = np.random.default_rng(0).normal(0, 1, (2, 6, 8, 4)).astype(np.float32)


@dataclass(frozen=True)
class Detector:
    network: keras.Model

    def with_networks(self, convert):
        return Detector(convert(self.network))


def build(*layers):
    """Return the detector of a chain of layers whose batch norms have random weights."""
    features = inputs = keras.Input(IMAGES.shape[1:])
    random = np.random.default_rng(0)
    for layer in layers:
        features = layer(features)
        if isinstance(layer, FusedBatchNorm):
            layer.set_weights([random.uniform(0.5, 1.5, each.shape) for each in layer.weights])
    return Detector(keras.Model(inputs, features))


def num_batch_norms(detector):
    return sum(isinstance(layer, FusedBatchNorm) for layer in detector.network.layers)


@pytest.mark.parametrize(
    "conv",
    [
        keras.layers.Conv2D(5, 3, 2, "same", use_bias=False, kernel_regularizer="l2"),
        keras.layers.Conv2D(6, 3, dilation_rate=2, groups=2, bias_initializer="ones"),
        keras.layers.DepthwiseConv2D(3, depth_multiplier=2, bias_initializer="ones"),
        keras.layers.SeparableConv2D(5, 3, 2, "same", depth_multiplier=2, bias_initializer="ones"),
        keras.layers.Conv2DTranspose(5, 3, 2, "same", bias_initializer="ones"),
    ],
    ids=lambda conv: conv.name,
)
@pytest.mark.parametrize("settings", [{}, {"scale": False}, {"center": False}], ids=str)
def test_a_convolution_and_its_batch_norm_become_one_convolution(conv, settings):
    detector = build(type(conv).from_config(conv.get_config()), FusedBatchNorm(epsilon=0.01, **settings))
    folded = fold_batch_norms(detector)
    np.testing.assert_allclose(folded.network(IMAGES), detector.network(IMAGES), rtol=1e-4, atol=1e-5)
    assert (num_batch_norms(detector), num_batch_norms(folded)) == (1, 0)


@pytest.mark.parametrize(
    "layers",
    [
        [FusedBatchNorm(), keras.layers.Conv2D(5, 3)],
        [keras.layers.Conv2D(5, 3, activation="relu"), FusedBatchNorm()],
        [keras.layers.Conv2D(5, 3), keras.layers.ReLU(), FusedBatchNorm()],
    ],
    ids=["before", "activated", "after another layer"],
)
def test_other_batch_norms_stay(layers):
    detector = build(*layers)
    folded = fold_batch_norms(detector)
    np.testing.assert_array_equal(folded.network(IMAGES), detector.network(IMAGES))
    assert num_batch_norms(folded) == 1


def test_a_shared_convolution_has_a_kernel_for_each_batch_norm():
    conv, inputs = keras.layers.Conv2D(5, 3), keras.Input(IMAGES.shape[1:])
    norms = [FusedBatchNorm(gamma_initializer=keras.initializers.Constant(gamma)) for gamma in (1.0, 3.0)]
    detector = Detector(keras.Model(inputs, [norm(conv(inputs)) for norm in norms]))
    first, second = fold_batch_norms(detector).network(IMAGES)
    np.testing.assert_allclose(second, 3 * first, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first, detector.network(IMAGES)[0], rtol=1e-4, atol=1e-5)


def test_a_convolution_that_another_layer_uses_too_stays_for_it():
    conv, inputs = keras.layers.Conv2D(5, 3), keras.Input(IMAGES.shape[1:])
    outputs = conv(inputs)
    detector = Detector(keras.Model(inputs, [outputs, FusedBatchNorm()(outputs)]))
    plain, normalized = fold_batch_norms(detector).network(IMAGES)
    np.testing.assert_array_equal(plain, conv(IMAGES))
    np.testing.assert_allclose(normalized, plain / np.sqrt(1.001), rtol=1e-4, atol=1e-5)  # the default epsilon


def test_the_detector_is_not_changed():
    detector = build(keras.layers.Conv2D(5, 3), FusedBatchNorm())
    weights, outputs = detector.network.get_weights(), detector.network(IMAGES)
    for variable in fold_batch_norms(detector).network.variables:
        variable.assign(np.zeros(variable.shape))
    np.testing.assert_array_equal(detector.network(IMAGES), outputs)
    for after, before in zip(detector.network.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(after, before)


def test_nothing_is_folded_if_rounding_changes_the_outputs(caplog):
    """Batch norm subtracts a mean of 1e8 from numbers of that size, of which 1 is less than their rounding."""
    conv, norm = keras.layers.Conv2D(5, 3, bias_initializer=keras.initializers.Constant(1e8)), FusedBatchNorm()
    detector = build(conv, norm)
    norm.moving_mean.assign([1e8] * 5)
    assert fold_batch_norms(detector) is detector
    assert "batch norms are not folded" in caplog.text
