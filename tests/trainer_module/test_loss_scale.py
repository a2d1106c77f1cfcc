import tensorflow as tf

from detloom.trainer_module.loss_scale import LossScale


def test_an_overflow_halves_the_factor_down_to_1():
    scale = LossScale()
    scale.factor.assign(3.0)
    seen = []
    for _ in range(3):
        seen.append((float(scale.factor), bool(scale.can_shrink())))
        scale.update(tf.constant(False))
    assert seen == [(3.0, True), (1.5, True), (1.0, False)]
    assert float(scale.factor) == 1.0


def test_two_thousand_good_steps_in_a_row_double_the_factor():
    scale = LossScale()
    scale.good_steps.assign(1998)
    seen = []
    for is_good in (True, True, True, False):
        scale.update(tf.constant(is_good))
        seen.append((float(scale.factor), int(scale.good_steps)))
    assert seen == [(2.0**15, 1999), (2.0**16, 0), (2.0**16, 1), (2.0**15, 0)]
