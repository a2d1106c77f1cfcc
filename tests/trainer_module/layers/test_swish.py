import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.layers.swish import swish

VALUES = [-200.0, -3.0, -1.0, 0.0, 0.5, 2.0, 200.0]


def value_and_gradient(function, values, upstream):
    features = tf.constant(values)
    with tf.GradientTape() as tape:
        tape.watch(features)
        activated = function(features)
    return activated, tape.gradient(activated, features, tf.constant(upstream, features.dtype))


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function, tf.function(jit_compile=True)])
def test_value_and_gradient_equal_tensorflow(wrap):
    upstream = list(np.linspace(-2, 3, len(VALUES)))
    got = wrap(lambda: value_and_gradient(swish, VALUES, upstream))()
    expected = value_and_gradient(tf.nn.silu, VALUES, upstream)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
