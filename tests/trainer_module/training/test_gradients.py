import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.optimizers import ClipByGlobalNorm, ClipEachThenGlobalNorm
from detloom.trainer_module.training.gradients import LossScale, clip_gradients, gradient_norms

GRADIENTS = [[3.0, 4.0], [0.0, 12.0]]  # norms 5 and 12, global norm 13


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (None, GRADIENTS),
        (ClipByGlobalNorm(norm=20.0), GRADIENTS),
        (ClipByGlobalNorm(norm=6.5), [[1.5, 2.0], [0.0, 6.0]]),  # all times 6.5 / 13
        # each is first clipped to norm 5: [3, 4] and [0, 5], global norm sqrt(50); then both times 5 / sqrt(50)
        (ClipEachThenGlobalNorm(norm=5.0), [[3 / 2**0.5, 4 / 2**0.5], [0.0, 5 / 2**0.5]]),
        (ClipEachThenGlobalNorm(norm=20.0), GRADIENTS),
        (ClipByGlobalNorm(norm=1.0), [[0.0], [0.0]]),
        (ClipEachThenGlobalNorm(norm=1.0), [[0.0], [0.0]]),
    ],
)
def test_gradients_are_clipped(clipping, expected):
    gradients = [tf.constant(gradient) for gradient in (GRADIENTS if expected[0] != [0.0] else expected)]
    clipped = tf.function(lambda: clip_gradients(clipping, gradients, gradient_norms(gradients)))()
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_overflow_halves_the_factor_down_to_1():
    scale = LossScale()
    scale.factor.assign(3.0)
    seen = []
    for _ in range(3):
        seen.append((float(scale.factor), bool(scale.can_shrink())))
        scale.update(tf.constant(False), tf.constant(True))
    assert seen == [(3.0, True), (1.5, True), (1.0, False)]
    assert float(scale.factor) == 1.0


def test_two_thousand_consecutive_good_steps_double_the_factor():
    scale = LossScale()
    scale.good_steps.assign(1998)
    seen = []
    for is_good in (True, True, True, False):
        scale.update(tf.constant(is_good), tf.constant(True))
        seen.append((float(scale.factor), int(scale.good_steps)))
    assert seen == [(2.0**15, 1999), (2.0**16, 0), (2.0**16, 1), (2.0**15, 0)]
