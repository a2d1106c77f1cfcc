import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.optimizer_config import ClipByGlobalNorm, ClipEachThenGlobalNorm
from detloom.trainer_module.gradients import clip_gradients, gradient_norms

GRADIENTS = [[3.0, 4.0], [0.0, 12.0]]  # norms 5 and 12, together 13


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (None, GRADIENTS),
        (ClipByGlobalNorm(norm=20.0), GRADIENTS),
        (ClipByGlobalNorm(norm=6.5), [[1.5, 2.0], [0.0, 6.0]]),  # all times 6.5 / 13
        # each to norm 5 first, [3, 4] and [0, 5]; together they are sqrt(50), so both times 5 / sqrt(50)
        (ClipEachThenGlobalNorm(norm=5.0), [[3 / 2**0.5, 4 / 2**0.5], [0.0, 5 / 2**0.5]]),
        (ClipEachThenGlobalNorm(norm=20.0), GRADIENTS),
    ],
)
def test_gradients_are_limited(clipping, expected):
    gradients = [tf.constant(gradient) for gradient in GRADIENTS]
    clipped = tf.function(lambda: clip_gradients(clipping, gradients, gradient_norms(gradients)))()
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_each_gradient_has_its_norm():
    np.testing.assert_allclose(gradient_norms([tf.constant(gradient) for gradient in GRADIENTS]), [5.0, 12.0])


@pytest.mark.parametrize("clipping", [ClipByGlobalNorm(norm=1.0), ClipEachThenGlobalNorm(norm=1.0)])
def test_gradients_of_zero_stay_zero(clipping):
    gradients = [tf.zeros([2])]
    np.testing.assert_array_equal(clip_gradients(clipping, gradients, gradient_norms(gradients))[0], [0.0, 0.0])
