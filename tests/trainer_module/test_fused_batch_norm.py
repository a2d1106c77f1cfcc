import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.fused_batch_norm import FusedBatchNorm

INPUTS = tf.constant(np.random.default_rng(0).normal(3, 2, (2, 4, 5, 3)), tf.float32)


def make_layers():
    layers = [kind(momentum=0.9, epsilon=1e-3) for kind in (FusedBatchNorm, keras.layers.BatchNormalization)]
    for layer in layers:
        layer.build(INPUTS.shape)
        layer.gamma.assign([1.0, 2.0, 3.0])
        layer.beta.assign([0.5, 0.0, -0.5])
    return layers


@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_equal_those_of_keras(training):
    results = []
    for layer in make_layers():
        with tf.GradientTape() as tape:
            tape.watch(INPUTS)
            outputs = layer(INPUTS, training=training)
            loss = tf.reduce_sum(outputs**2)
        results.append([outputs, *tape.gradient(loss, [INPUTS, layer.gamma.value, layer.beta.value])])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_moving_statistics_take_the_unbiased_variance():
    fused, _ = make_layers()
    fused(INPUTS, training=True)
    pixels = np.asarray(INPUTS).reshape(-1, 3)
    # 0.9 of the initial 0 and 1, a tenth of the batch's
    np.testing.assert_allclose(fused.moving_mean, 0.1 * pixels.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(fused.moving_variance, 0.9 + 0.1 * pixels.var(axis=0, ddof=1), rtol=1e-4)


def test_a_frozen_layer_keeps_its_statistics():
    fused, _ = make_layers()
    fused.trainable = False
    outputs = fused(INPUTS, training=True)
    np.testing.assert_array_equal(fused.moving_mean, np.zeros(3))
    np.testing.assert_allclose(outputs, fused(INPUTS, training=False))
