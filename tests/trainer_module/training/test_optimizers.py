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


def test_momentum_adds_a_share_of_the_last_update():
    # updates 0.1 * 1, then 0.5 * 0.1 + 0.1 * 2
    optimizer = MomentumOptimizer(learning_rate=RATE, momentum=0.5)
    assert weight_after(optimizer, [1.0, 2.0]) == pytest.approx(1 - 0.1 - 0.25)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fused_momentum_equals_keras(momentum, nesterov):
    ours = build_optimizer(MomentumOptimizer(learning_rate=RATE, momentum=momentum, nesterov=nesterov))
    keras_own = keras.optimizers.SGD(0.1, momentum=momentum, nesterov=nesterov)
    random = np.random.default_rng(0)
    start, *gradients = random.normal(size=(6, 3, 4)).astype(np.float32)
    weights = [keras.Variable(start) for _ in range(2)]
    for gradient in gradients:
        for optimizer, weight in zip((ours, keras_own), weights, strict=True):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-6, atol=1e-6)
    slots = [[slot.numpy() for slot in optimizer.momentums] if momentum else [] for optimizer in (ours, keras_own)]
    np.testing.assert_allclose(slots[0], slots[1], rtol=1e-6, atol=1e-6)


def test_fused_adam_equals_keras():
    ours = build_optimizer(AdamOptimizer(learning_rate=RATE, epsilon=1e-3))
    keras_own = keras.optimizers.Adam(0.1, epsilon=1e-3)
    start, *gradients = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    weights = [keras.Variable(start) for _ in range(2)]
    for gradient in gradients:
        for optimizer, weight in zip((ours, keras_own), weights, strict=True):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-4)
    # Keras stores the rate after the step
    for one, other in zip(ours.variables[1:], keras_own.variables[2:], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4)


def test_apply_update_uses_the_given_rate_and_counts_no_step():
    built, weight = build_optimizer(MomentumOptimizer(learning_rate=RATE, momentum=0.0)), keras.Variable(1.0)
    built.build([weight])
    apply_update(built, [keras.ops.convert_to_tensor(2.0)], [weight], keras.ops.convert_to_tensor(0.25))
    assert float(weight.numpy()) == 0.5
    assert int(built.iterations.numpy()) == 0


def test_nesterov_momentum():
    # velocity 0.1, update 0.5 * 0.1 + 0.1 * 1; velocity 0.25, update 0.5 * 0.25 + 0.1 * 2
    optimizer = MomentumOptimizer(learning_rate=RATE, momentum=0.5, nesterov=True)
    assert weight_after(optimizer, [1.0, 2.0]) == pytest.approx(1 - 0.15 - 0.325)


def test_rmsprop_decays_the_mean_square_and_adds_epsilon_to_it():
    # mean squares 0.2 * 4 = 0.8 and 0.8 * 0.8 = 0.64; updates 0.1 * 2 / sqrt(0.8 + 0.2) = 0.2, then 0.5 * 0.2 + 0
    optimizer = RmsPropOptimizer(learning_rate=RATE, decay=0.8, momentum=0.5, epsilon=0.2)
    assert weight_after(optimizer, [2.0, 0.0]) == pytest.approx(1 - 0.2 - 0.1)


def test_rmsprop_decay_does_not_change_the_learning_rate():
    # the mean square is always 1: every update is 0.1 / sqrt(1 + 3)
    optimizer = RmsPropOptimizer(learning_rate=RATE, decay=0.0, momentum=0.0, epsilon=3.0)
    assert weight_after(optimizer, [1.0] * 3) == pytest.approx(1 - 3 * 0.05)


def test_adam_adds_epsilon_to_the_root():
    # first step: mean m = 0.1 * g, mean square v = 0.001 * g**2, rate 0.1 * sqrt(0.001) / 0.1 = sqrt(0.001);
    # update sqrt(0.001) * 0.1 * 2 / (sqrt(0.001) * 2 + epsilon), with epsilon = sqrt(0.001) * 2 half of 0.1
    optimizer = AdamOptimizer(learning_rate=RATE, epsilon=2 * 0.001**0.5)
    assert weight_after(optimizer, [2.0]) == pytest.approx(1 - 0.05, rel=1e-5)


def test_adamw_decays_only_kernels():
    optimizer = build_optimizer(AdamWOptimizer(learning_rate=ConstantLearningRate(learning_rate=1.0), weight_decay=0.5))
    dense = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    dense.build((None, 1))
    norm = keras.layers.BatchNormalization(beta_initializer="ones")
    norm.build((None, 1))
    variables = [*dense.trainable_variables, *norm.trainable_variables]
    optimizer.apply([keras.ops.zeros_like(variable) for variable in variables], variables)
    # with a zero gradient only decay changes a weight: 1 - 1.0 * 0.5
    values = {variable.name: float(np.squeeze(variable.numpy())) for variable in variables}
    assert values == {"kernel": 0.5, "bias": 1.0, "gamma": 1.0, "beta": 1.0}


def test_schedule_sets_the_rate_of_a_step():
    rate = ManualStepLearningRate(initial_learning_rate=1.0, schedule=(LearningRateStep(step=1, learning_rate=0.5),))
    optimizer = MomentumOptimizer(learning_rate=rate, momentum=0.0)
    assert weight_after(optimizer, [1.0, 1.0], start=2.0) == 0.5  # 2 - 1 - 0.5


@pytest.mark.parametrize("kind", [MomentumOptimizer, RmsPropOptimizer, AdamOptimizer, AdamWOptimizer])
def test_optimizer_neither_clips_nor_averages(kind):
    built = build_optimizer(kind(learning_rate=RATE))
    assert (built.clipnorm, built.global_clipnorm, built.use_ema) == (None, None, False)


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


def test_plain_average_starts_at_the_weights():
    # 0.5 * 10 + 0.5 * 2 = 6; 0.5 * 6 + 0.5 * 4 = 5
    assert averages_after(MovingAverage(decay=0.5, dynamic=False), [2.0, 4.0]) == [6.0, 5.0]


def test_dynamic_average_follows_early_training():
    # decay 2/11 from 0, then 3/12 = 1/4: 9/11 * 11 = 9; 9 / 4 + 3/4 * 5 = 6
    np.testing.assert_allclose(averages_after(MovingAverage(decay=0.9999), [11.0, 5.0]), [9.0, 6.0], rtol=1e-6)


def test_dynamic_average_is_limited_by_the_decay():
    # decay 2/11 from 0, then 0.2 instead of 3/12: 9; 0.2 * 9 + 0.8 * 5 = 5.8
    np.testing.assert_allclose(averages_after(MovingAverage(decay=0.2), [11.0, 5.0]), [9.0, 5.8], rtol=1e-6)


def test_dynamic_average_of_a_constant_weight_converges():
    # the remaining share of the start after 20 updates is 21! * 10! / 30! = 7e-7
    assert averages_after(MovingAverage(decay=0.9999), [3.0] * 20)[-1] == pytest.approx(3.0, rel=1e-6)


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
