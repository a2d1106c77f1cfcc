import json
import math

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.optimizers import (
    ConstantLearningRate,
    CosineDecayLearningRate,
    EfficientDetCosineLearningRate,
    EfficientDetStepwiseLearningRate,
    ExponentialDecayLearningRate,
    LearningRateStep,
    ManualStepLearningRate,
    PolynomialLearningRate,
)
from detloom.trainer_module.training.learning_rates import ConfiguredLearningRate

# The configurations of the reference's table (lr_table.json), by name.
EXPONENTIAL = {"initial_learning_rate": 0.1, "decay_steps": 100, "decay_factor": 0.5}
TABLE = {
    "constant": ConstantLearningRate(learning_rate=0.02),
    "constant_default": ConstantLearningRate(),
    "exponential": ExponentialDecayLearningRate(initial_learning_rate=0.004, decay_steps=1000, decay_factor=0.95),
    "exponential_default_fields": ExponentialDecayLearningRate(),
    "exponential_smooth_minlr": ExponentialDecayLearningRate(**EXPONENTIAL, staircase=False, min_learning_rate=0.01),
    "exponential_burnin": ExponentialDecayLearningRate(**EXPONENTIAL, burnin_learning_rate=0.01, burnin_steps=50),
    "exponential_burnin_lr0": ExponentialDecayLearningRate(**EXPONENTIAL, burnin_steps=50),
    "manual_step": ManualStepLearningRate(
        initial_learning_rate=0.1,
        schedule=(LearningRateStep(step=100, learning_rate=0.01), LearningRateStep(step=200, learning_rate=0.001)),
    ),
    "manual_step_warmup": ManualStepLearningRate(
        initial_learning_rate=0.01,
        schedule=(
            LearningRateStep(step=100, learning_rate=0.1),
            LearningRateStep(step=300, learning_rate=0.02),
            LearningRateStep(step=500, learning_rate=0.004),
        ),
        warmup=True,
    ),
    "cosine": CosineDecayLearningRate(
        learning_rate_base=0.08, total_steps=50000, warmup_learning_rate=0.026666, warmup_steps=1000
    ),
    "cosine_hold": CosineDecayLearningRate(
        learning_rate_base=0.04,
        total_steps=1000,
        warmup_learning_rate=0.01,
        warmup_steps=100,
        hold_base_rate_steps=200,
    ),
    "cosine_no_warmup": CosineDecayLearningRate(
        learning_rate_base=0.1, total_steps=100, warmup_learning_rate=0.0, warmup_steps=0
    ),
    "cosine_default_fields": CosineDecayLearningRate(),
}
# Some values of the table, for machines without the file.
LITERALS = [
    ("exponential", 100000, 2.3682088794885203e-05),
    ("exponential_smooth_minlr", 1, 0.09930925071239471),
    ("exponential_smooth_minlr", 333, 0.009999999776482582),
    ("exponential_burnin", 49, 0.009999999776482582),
    ("exponential_burnin", 50, 0.10000000149011612),
    ("exponential_burnin", 150, 0.05000000074505806),
    ("manual_step", 99, 0.10000000149011612),
    ("manual_step", 100, 0.009999999776482582),
    ("manual_step_warmup", 50, 0.054999999701976776),
    ("manual_step_warmup", 100, 0.10000000149011612),
    ("manual_step_warmup", 500, 0.004000000189989805),
    ("cosine", 500, 0.05333299934864044),
    ("cosine", 2000, 0.07991781085729599),
    ("cosine", 50001, 0.0),
    ("cosine_hold", 150, 0.03999999910593033),
    ("cosine_hold", 301, 0.03999979794025421),
    ("cosine_hold", 999, 2.0146369195117586e-07),
]


def rate_at(config, step: int) -> float:
    rate = ConfiguredLearningRate(config)(tf.constant(step, tf.int64))
    assert rate.dtype == tf.float32
    return float(rate)


@pytest.mark.parametrize(("name", "step", "expected"), LITERALS)
def test_rates_equal_selected_reference_values(name, step, expected):
    np.testing.assert_allclose(rate_at(TABLE[name], step), expected, rtol=1e-6, atol=0)


def test_rates_equal_the_reference_table(reference_dir):
    table = json.loads((reference_dir / "lr_table.json").read_text())
    assert set(table) - {"manual_step_no_schedule"} == set(TABLE)
    for name, config in TABLE.items():
        rate = ConfiguredLearningRate(config)
        for step, expected in table[name]["lr"].items():
            message = f"{name} at step {step}"
            np.testing.assert_allclose(float(rate(int(step))), expected, rtol=1e-6, atol=0, err_msg=message)


WARM_UP = {"learning_rate": 0.16, "warmup_learning_rate": 0.01, "warmup_steps": 100}


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (
            EfficientDetCosineLearningRate(**WARM_UP, total_steps=1000),
            {
                0: 0.01,
                50: 0.085,  # half way from 0.01 to 0.16
                100: 0.16 * (1 + math.cos(math.pi / 9)) / 2,  # the decay started at step 0: 100 of 900 steps
                450: 0.08,
                900: 0.0,
                1000: 0.16 * (1 - math.cos(math.pi / 9)) / 2,  # 100 of 900 steps past the minimum: it rises again
            },
        ),
        (
            EfficientDetStepwiseLearningRate(**WARM_UP, first_drop_step=400, second_drop_step=700),
            {0: 0.01, 50: 0.085, 100: 0.16, 399: 0.16, 400: 0.016, 699: 0.016, 700: 0.0016, 9999: 0.0016},
        ),
        (
            PolynomialLearningRate(**WARM_UP, total_steps=1000, power=2.0),
            # (1 - 0.1)**2 at step 100: the decay started at step 0
            {0: 0.01, 50: 0.085, 100: 0.16 * 0.81, 500: 0.16 * 0.25, 1000: 0.0, 1001: 0.0},
        ),
    ],
    ids=["cosine", "stepwise", "polynomial"],
)
def test_rates_of_efficientdet_start_at_step_0(config, rates):
    for step, expected in rates.items():
        np.testing.assert_allclose(rate_at(config, step), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "config",
    [
        EfficientDetCosineLearningRate(total_steps=10),
        EfficientDetStepwiseLearningRate(first_drop_step=5, second_drop_step=6),
        PolynomialLearningRate(total_steps=10),
    ],
)
def test_first_rate_without_warm_up_is_the_full_rate(config):
    np.testing.assert_allclose(rate_at(config, 0), 0.08, rtol=1e-6)


def test_rate_held_until_the_last_step_is_finite():
    config = CosineDecayLearningRate(
        learning_rate_base=0.1, total_steps=10, warmup_steps=4, warmup_learning_rate=0.0, hold_base_rate_steps=6
    )
    np.testing.assert_allclose([rate_at(config, step) for step in (2, 4, 10, 11)], [0.05, 0.1, 0.1, 0.0], rtol=1e-6)
