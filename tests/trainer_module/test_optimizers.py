import keras
import numpy as np
import pytest

from detloom.schemas.optimizer_config import (
    AdamOptimizer,
    AdamWOptimizer,
    ConstantLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    MomentumOptimizer,
    RmsPropOptimizer,
)
from detloom.trainer_module.optimizers import apply_update, build_optimizer

RATE = ConstantLearningRate(learning_rate=0.1)


def weight_after(optimizer, gradients, start=1.0):
    """One weight after steps with these gradients."""
    built, weight = build_optimizer(optimizer), keras.Variable(start)
    for gradient in gradients:
        built.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    return float(weight.numpy())


def test_momentum_keeps_a_share_of_the_last_update():
    # updates 0.1 * 1, then 0.5 * 0.1 + 0.1 * 2
    optimizer = MomentumOptimizer(learning_rate=RATE, momentum=0.5)
    assert weight_after(optimizer, [1.0, 2.0]) == pytest.approx(1 - 0.1 - 0.25)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_fused_update_gives_keras_weights_and_slots(momentum, nesterov):
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


def test_the_fused_adam_gives_keras_weights_and_slots():
    ours = build_optimizer(AdamOptimizer(learning_rate=RATE, epsilon=1e-3))
    keras_own = keras.optimizers.Adam(0.1, epsilon=1e-3)
    start, *gradients = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32)
    weights = [keras.Variable(start) for _ in range(2)]
    for gradient in gradients:
        for optimizer, weight in zip((ours, keras_own), weights, strict=True):
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [weight])
    np.testing.assert_allclose(weights[0].numpy(), weights[1].numpy(), rtol=1e-4)
    # after the count of steps, Keras keeps the rate
    for one, other in zip(ours.variables[1:], keras_own.variables[2:], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4)


def test_an_update_without_counting_takes_the_rate_that_it_is_given():
    built, weight = build_optimizer(MomentumOptimizer(learning_rate=RATE, momentum=0.0)), keras.Variable(1.0)
    built.build([weight])
    apply_update(built, [keras.ops.convert_to_tensor(2.0)], [weight], keras.ops.convert_to_tensor(0.25))
    assert float(weight.numpy()) == 0.5
    assert int(built.iterations.numpy()) == 0


def test_nesterovs_momentum_looks_ahead():
    # velocity 0.1, update 0.5 * 0.1 + 0.1 * 1; velocity 0.25, update 0.5 * 0.25 + 0.1 * 2
    optimizer = MomentumOptimizer(learning_rate=RATE, momentum=0.5, nesterov=True)
    assert weight_after(optimizer, [1.0, 2.0]) == pytest.approx(1 - 0.15 - 0.325)


def test_rmsprop_keeps_a_share_of_the_mean_square_and_adds_epsilon_to_it():
    # mean squares 0.2 * 4 = 0.8 and 0.8 * 0.8 = 0.64; updates 0.1 * 2 / sqrt(0.8 + 0.2) = 0.2, then 0.5 * 0.2 + 0
    optimizer = RmsPropOptimizer(learning_rate=RATE, decay=0.8, momentum=0.5, epsilon=0.2)
    assert weight_after(optimizer, [2.0, 0.0]) == pytest.approx(1 - 0.2 - 0.1)


def test_rmsprops_decay_leaves_the_learning_rate_alone():
    # the mean square is 1 from the first step on: every update is 0.1 / sqrt(1 + 3)
    optimizer = RmsPropOptimizer(learning_rate=RATE, decay=0.0, momentum=0.0, epsilon=3.0)
    assert weight_after(optimizer, [1.0] * 3) == pytest.approx(1 - 3 * 0.05)


def test_adam_adds_epsilon_to_the_root():
    # first step: mean m = 0.1 * g, mean square v = 0.001 * g**2, rate 0.1 * sqrt(0.001) / 0.1 = sqrt(0.001);
    # update sqrt(0.001) * 0.1 * 2 / (sqrt(0.001) * 2 + epsilon), with epsilon = sqrt(0.001) * 2 half of 0.1
    optimizer = AdamOptimizer(learning_rate=RATE, epsilon=2 * 0.001**0.5)
    assert weight_after(optimizer, [2.0]) == pytest.approx(1 - 0.05, rel=1e-5)


def test_adamw_decays_kernels_but_neither_biases_nor_batch_norm():
    optimizer = build_optimizer(AdamWOptimizer(learning_rate=ConstantLearningRate(learning_rate=1.0), weight_decay=0.5))
    dense = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    dense.build((None, 1))
    norm = keras.layers.BatchNormalization(beta_initializer="ones")
    norm.build((None, 1))
    variables = [*dense.trainable_variables, *norm.trainable_variables]
    optimizer.apply([keras.ops.zeros_like(variable) for variable in variables], variables)
    # without gradient only decay moves a weight: 1 - 1.0 * 0.5
    values = {variable.name: float(np.squeeze(variable.numpy())) for variable in variables}
    assert values == {"kernel": 0.5, "bias": 1.0, "gamma": 1.0, "beta": 1.0}


def test_the_rate_of_a_step_is_the_schedules():
    rate = ManualStepLearningRate(initial_learning_rate=1.0, schedule=(LearningRateStep(step=1, learning_rate=0.5),))
    optimizer = MomentumOptimizer(learning_rate=rate, momentum=0.0)
    assert weight_after(optimizer, [1.0, 1.0], start=2.0) == 0.5  # 2 - 1 - 0.5


@pytest.mark.parametrize("kind", [MomentumOptimizer, RmsPropOptimizer, AdamOptimizer, AdamWOptimizer])
def test_clipping_and_averaging_are_not_left_to_the_optimizer(kind):
    built = build_optimizer(kind(learning_rate=RATE))
    assert (built.clipnorm, built.global_clipnorm, built.use_ema) == (None, None, False)
