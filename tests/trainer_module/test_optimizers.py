import json
import math

import keras
import numpy as np
import pytest

from detloom.schemas.config import AdamW, ConstantRate, CosineRate, Momentum, Training
from detloom.trainer_module.optimizers import build_learning_rate, build_optimizer


def make_training(optimizer, **changes) -> Training:
    return Training(batch_size=1, num_steps=100, optimizer=optimizer, **changes)


def test_cosine_rate_warms_up_holds_its_peak_and_ends_at_zero():
    rate = build_learning_rate(CosineRate(learning_rate=0.08, warmup_learning_rate=0.02, warmup_steps=10), 110)
    # halfway through warm-up (0.02 + 0.08) / 2; a quarter of the cosine 0.08 * (1 + cos(pi / 4)) / 2
    expected = [0.02, 0.05, 0.08, 0.08 * (1 + math.cos(math.pi / 4)) / 2, 0.0]
    np.testing.assert_allclose([float(rate(step)) for step in (0, 5, 10, 35, 110)], expected, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "rate", "num_steps"),
    [
        ("cosine", CosineRate(learning_rate=0.08, warmup_learning_rate=0.026666, warmup_steps=1000), 50000),
        ("cosine_no_warmup", CosineRate(learning_rate=0.1), 100),
    ],
)
def test_cosine_rate_equals_the_reference(reference_dir, name, rate, num_steps):
    table = json.loads((reference_dir / "lr_table.json").read_text())[name]["lr"]
    built = build_learning_rate(rate, num_steps)
    for step, expected in table.items():
        np.testing.assert_allclose(float(built(int(step))), expected, rtol=1e-5, atol=1e-8)


def test_biases_and_batch_norm_are_not_decayed():
    optimizer = build_optimizer(
        make_training(AdamW(rate=ConstantRate(learning_rate=1.0), weight_decay=0.5), clip_norm=None)
    )
    layer = keras.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    layer.build((None, 1))
    zeros = [keras.ops.zeros_like(variable) for variable in layer.trainable_variables]
    optimizer.apply(zeros, layer.trainable_variables)
    kernel, bias = (float(np.squeeze(variable.numpy())) for variable in layer.trainable_variables)
    assert (kernel, bias) == (0.5, 1.0)  # without gradient only decay moves a weight: 1 - 1.0 * 0.5


@pytest.mark.parametrize("optimizer", [Momentum, AdamW])
def test_clipping_and_averaging_come_from_the_configuration(optimizer):
    built = build_optimizer(
        make_training(optimizer(rate=ConstantRate(learning_rate=0.1)), clip_norm=3.0, ema_decay=0.9)
    )
    assert (built.global_clipnorm, built.use_ema, built.ema_momentum) == (3.0, True, 0.9)
