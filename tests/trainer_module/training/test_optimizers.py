import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.optimizers import (
    AdamOptimizer,
    AdamWOptimizer,
    ConstantLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
    MovingAverage,
    RmsPropOptimizer,
)
from detloom.trainer_module.training.optimizers import AveragedWeights, apply_update, build_optimizer

RATE = ConstantLearningRate(learning_rate=0.1)


def weight_after(optimizer, gradients, start=1.0):
    """Return one weight after steps with these gradients."""
    built, weight = build_optimizer(optimizer), keras.Variable(start)
    for gradient in gradients:
        built.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    return float(weight.numpy())


def momentum(momentum, nesterov):
    ours = MomentumOptimizer(learning_rate=RATE, momentum=momentum, nesterov=nesterov)
    return ours, keras.optimizers.SGD(0.1, momentum=momentum, nesterov=nesterov)


@pytest.mark.parametrize(
    ("config", "keras_own"),
    [
        *(momentum(factor, nesterov) for factor in (0.0, 0.9) for nesterov in (False, True)),
        (AdamOptimizer(learning_rate=RATE, epsilon=1e-3), keras.optimizers.Adam(0.1, epsilon=1e-3)),
    ],
    ids=["descent", "descent_nesterov", "momentum", "nesterov", "adam"],
)
def test_fused_optimizer_equals_keras(config, keras_own):
    ours = build_optimizer(config)
    start, *gradients = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    weights = [keras.Variable(start) for _ in range(2)]
    for gradient in gradients:
        for optimizer, weight in zip((ours, keras_own), weights, strict=True):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-4, atol=1e-6)
    slots = [[slot.numpy() for slot in optimizer.variables if slot.shape == (3, 4)] for optimizer in (ours, keras_own)]
    np.testing.assert_allclose(*slots, rtol=1e-4, atol=1e-6)


def test_apply_update_uses_the_given_rate_and_counts_no_step():
    built, weight = build_optimizer(MomentumOptimizer(learning_rate=RATE, momentum=0.0)), keras.Variable(1.0)
    built.build([weight])
    apply_update(built, [keras.ops.convert_to_tensor(2.0)], [weight], keras.ops.convert_to_tensor(0.25))
    assert float(weight.numpy()) == 0.5
    assert int(built.iterations.numpy()) == 0


STEPS = ManualStepLearningRate(initial_learning_rate=1.0, schedule=(LearningRateStep(step=1, learning_rate=0.5),))


@pytest.mark.parametrize(
    ("optimizer", "gradients", "moved"),
    [
        # mean squares 0.2 * 4 = 0.8 and 0.8 * 0.8 = 0.64; updates 0.1 * 2 / sqrt(0.8 + 0.2) = 0.2, then 0.5 * 0.2 + 0
        (RmsPropOptimizer(learning_rate=RATE, decay=0.8, momentum=0.5, epsilon=0.2), [2.0, 0.0], 0.2 + 0.1),
        # the mean square is always 1: every update is 0.1 / sqrt(1 + 3); the decay is not one of the rate
        (RmsPropOptimizer(learning_rate=RATE, decay=0.0, momentum=0.0, epsilon=3.0), [1.0] * 3, 3 * 0.05),
        # first step: mean 0.1 * g, mean square 0.001 * g**2, rate 0.1 * sqrt(0.001) / 0.1 = sqrt(0.001); update
        # sqrt(0.001) * 0.1 * 2 / (sqrt(0.001) * 2 + epsilon), with epsilon = sqrt(0.001) * 2 half of 0.1
        (AdamOptimizer(learning_rate=RATE, epsilon=2 * 0.001**0.5), [2.0], 0.05),
        (MomentumOptimizer(learning_rate=STEPS, momentum=0.0), [1.0, 1.0], 1 + 0.5),  # the rate of each step
    ],
)
def test_weights_move_as_computed_by_hand(optimizer, gradients, moved):
    assert weight_after(optimizer, gradients) == pytest.approx(1 - moved, rel=1e-5)


def test_adamw_decays_only_kernels():
    optimizer = build_optimizer(AdamWOptimizer(learning_rate=ConstantLearningRate(learning_rate=1.0), weight_decay=0.5))
    dense = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    dense.build((None, 1))
    norm = keras.layers.BatchNormalization(beta_initializer="ones")
    norm.build((None, 1))
    combine = keras.Variable(1.0, name="bifpn_combine_weights")
    variables = [*dense.trainable_variables, *norm.trainable_variables, combine]
    optimizer.apply([keras.ops.zeros_like(variable) for variable in variables], variables)
    # with a zero gradient only decay changes a weight: 1 - 1.0 * 0.5
    values = {variable.name: float(np.squeeze(variable.numpy())) for variable in variables}
    assert values == {"kernel": 0.5, "bias": 1.0, "gamma": 1.0, "beta": 1.0, "bifpn_combine_weights": 1.0}


def averages_after(config, weights):
    """Return the average after each of the values of one weight; it starts at 10."""
    weight = keras.Variable(10.0)
    averaged = AveragedWeights(config, [weight])
    update = tf.function(averaged.update)
    seen = []
    for count, value in enumerate(weights, start=1):
        weight.assign(value)
        update(tf.constant(count, tf.int64))
        seen.append(float(averaged.averages[0]))
    return seen


@pytest.mark.parametrize(
    ("config", "weights", "averages"),
    [
        # 0.5 * 10 + 0.5 * 2 = 6; 0.5 * 6 + 0.5 * 4 = 5
        (MovingAverage(decay=0.5, dynamic=False), [2.0, 4.0], [6.0, 5.0]),
        # decay 2/11 from 0, then 3/12 = 1/4: 9/11 * 11 = 9; 9 / 4 + 3/4 * 5 = 6
        (MovingAverage(decay=0.9999), [11.0, 5.0], [9.0, 6.0]),
        (MovingAverage(decay=0.2), [11.0, 5.0], [9.0, 5.8]),  # 0.2 instead of 3/12: 0.2 * 9 + 0.8 * 5
    ],
)
def test_averages_equal_values_computed_by_hand(config, weights, averages):
    np.testing.assert_allclose(averages_after(config, weights), averages, rtol=1e-6)


def test_trained_weights_are_restored_even_after_an_error():
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


def test_checkpoint_contains_the_averages(tmp_path):
    weight = keras.Variable(1.0)
    averaged = AveragedWeights(MovingAverage(decay=0.5, dynamic=False), [weight])
    weight.assign(3.0)
    averaged.update(tf.constant(1))
    path = tf.train.Checkpoint(averaged=averaged).write(str(tmp_path / "ckpt"))
    restored = AveragedWeights(MovingAverage(decay=0.5, dynamic=False), [weight])
    tf.train.Checkpoint(averaged=restored).read(path).assert_consumed()
    assert float(restored.averages[0]) == 2.0
