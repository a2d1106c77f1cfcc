import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.optimizer_config import MovingAverage
from detloom.trainer_module.moving_average import AveragedWeights


def averages_after(config, weights):
    """The average after each of the values that one weight takes; it starts at 10."""
    weight = keras.Variable(10.0)
    averaged = AveragedWeights(config, [weight])
    update = tf.function(averaged.update)
    seen = []
    for count, value in enumerate(weights, start=1):
        weight.assign(value)
        update(tf.constant(count, tf.int64))
        seen.append(float(averaged.averages[0]))
    return seen


def test_a_plain_average_starts_at_the_weights():
    # 0.5 * 10 + 0.5 * 2 = 6; 0.5 * 6 + 0.5 * 4 = 5
    assert averages_after(MovingAverage(decay=0.5, dynamic=False), [2.0, 4.0]) == [6.0, 5.0]


def test_a_dynamic_average_follows_early_training():
    # kept: 2/11 of 0, then 3/12 = 1/4: 9/11 * 11 = 9; 9 / 4 + 3/4 * 5 = 6
    np.testing.assert_allclose(averages_after(MovingAverage(decay=0.9999), [11.0, 5.0]), [9.0, 6.0], rtol=1e-6)


def test_a_dynamic_average_never_keeps_more_than_the_decay():
    # kept: 2/11 of 0, then 0.2 instead of 3/12: 9; 0.2 * 9 + 0.8 * 5 = 5.8
    np.testing.assert_allclose(averages_after(MovingAverage(decay=0.2), [11.0, 5.0]), [9.0, 5.8], rtol=1e-6)


def test_a_dynamic_average_of_a_constant_weight_soon_is_that_weight():
    # the share of the start that is left after 20 updates is 21! * 10! / 30! = 7e-7
    assert averages_after(MovingAverage(decay=0.9999), [3.0] * 20)[-1] == pytest.approx(3.0, rel=1e-6)


def test_the_network_has_the_averages_only_for_a_while_even_after_an_error():
    weight = keras.Variable(np.float32(0.1))
    averaged = AveragedWeights(MovingAverage(decay=0.5, dynamic=False), [weight])
    weight.assign(0.3)
    seen = []

    def evaluate():
        with averaged.in_network():
            seen.append(float(weight.numpy()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert seen == [np.float32(0.1)]
    assert float(weight.numpy()) == np.float32(0.3)


def test_a_checkpoint_holds_the_averages(tmp_path):
    weight = keras.Variable(1.0)
    averaged = AveragedWeights(MovingAverage(decay=0.5, dynamic=False), [weight])
    weight.assign(3.0)
    averaged.update(tf.constant(1))
    path = tf.train.Checkpoint(averaged=averaged).write(str(tmp_path / "ckpt"))
    restored = AveragedWeights(MovingAverage(decay=0.5, dynamic=False), [weight])
    tf.train.Checkpoint(averaged=restored).read(path).assert_consumed()
    assert float(restored.averages[0]) == 2.0
