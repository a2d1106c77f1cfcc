import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

INPUTS = tf.constant(np.random.default_rng(0).normal(3, 2, (2, 4, 5, 3)), tf.float32)


def make_layers(**settings):
    kinds = (FusedBatchNorm, keras.layers.BatchNormalization)
    layers = [kind(momentum=0.9, epsilon=1e-3, **settings) for kind in kinds]
    for layer in layers:
        layer.build(INPUTS.shape)
        if layer.scale:
            layer.gamma.assign([1.0, 2.0, 3.0])
        if layer.center:
            layer.beta.assign([0.5, 0.0, -0.5])
    return layers


def gradients_of(layer, training):
    with tf.GradientTape() as tape:
        tape.watch(INPUTS)
        outputs = layer(INPUTS, training=training)
        loss = tf.reduce_sum(outputs**2)
    return [outputs, *tape.gradient(loss, [INPUTS, *(variable.value for variable in layer.trainable_variables)])]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{"scale": False}, {"center": False}])
def test_outputs_and_gradients_equal_those_of_keras(training, settings):
    results = [gradients_of(layer, training) for layer in make_layers(**settings)]
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_moving_statistics_take_the_unbiased_variance_or_that_of_the_batch():
    fused, _ = make_layers()
    biased = FusedBatchNorm(momentum=0.9, unbiased_variance=False)
    fused(INPUTS, training=True)
    biased(INPUTS, training=True)
    pixels = np.asarray(INPUTS).reshape(-1, 3)
    # 0.9 of the initial 0 and 1, a tenth of the batch's
    np.testing.assert_allclose(fused.moving_mean, 0.1 * pixels.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(fused.moving_variance, 0.9 + 0.1 * pixels.var(axis=0, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(biased.moving_variance, 0.9 + 0.1 * pixels.var(axis=0), rtol=1e-4)


def test_a_frozen_layer_keeps_its_statistics():
    fused, _ = make_layers()
    fused.trainable = False
    outputs = fused(INPUTS, training=True)
    np.testing.assert_array_equal(fused.moving_mean, np.zeros(3))
    np.testing.assert_allclose(outputs, fused(INPUTS, training=False))


def test_with_moving_statistics_only_factor_and_offset_are_trained():
    layer = FusedBatchNorm(use_moving_statistics=True)
    layer.build(INPUTS.shape)
    in_training, in_inference = gradients_of(layer, True), gradients_of(layer, False)
    assert len(in_training) == 4  # outputs; gradients of inputs, factor and offset
    for first, second in zip(in_training, in_inference, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-5)
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(3))
    np.testing.assert_array_equal(layer.moving_variance, np.ones(3))
