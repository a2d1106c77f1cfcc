from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.layers.swish import swish
from detloom.trainer_module.runtime.numerics import (
    are_operations_deterministic,
    check_precision,
    execution_mode,
    is_compiled_by_xla,
    network_precision,
    precision_of,
)


@pytest.mark.parametrize(
    ("precision", "on_tpu", "expected"),
    [
        ("float32", True, "float32"),
        ("bfloat16_on_tpu", False, "float32"),
        ("bfloat16_on_tpu", True, "bfloat16"),
        ("float16", True, "float16"),
        ("bfloat16", False, "bfloat16"),
    ],
)
def test_bfloat16_on_tpu_is_float32_on_other_devices(tiny_config, precision, on_tpu, expected):
    train = replace(tiny_config.train, precision=precision)
    assert precision_of(train, on_tpu=on_tpu) == expected


def test_previous_policy_is_restored_after_an_error():
    inside = []

    def build():
        with network_precision("float16"):
            inside.append(keras.config.dtype_policy().name)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert inside == ["mixed_float16"]
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize("setting", ["deterministic", "debug"])
def test_the_mode_of_a_training_ends_with_it(tiny_config, setting):
    before = are_operations_deterministic(), tf.config.functions_run_eagerly()
    with execution_mode(replace(tiny_config.train, **{setting: True})):
        assert are_operations_deterministic()
        assert tf.config.functions_run_eagerly() == (setting == "debug")
    assert (are_operations_deterministic(), tf.config.functions_run_eagerly()) == before == (False, False)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_batch_norm_keeps_weights_and_statistics_in_float32(precision):
    inputs = np.random.default_rng(0).normal(3, 2, (2, 4, 4, 3)).astype(np.float32)
    with network_precision(precision):
        layer = FusedBatchNorm(momentum=0.5)
        layer.build(inputs.shape)
    with tf.GradientTape() as tape:
        output = layer(tf.cast(inputs, precision), training=True)
        loss = tf.reduce_sum(tf.cast(swish(output), tf.float32) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in layer.trainable_variables])
    assert output.dtype == precision
    assert {variable.dtype for variable in layer.weights} == {"float32"}
    assert all(gradient.dtype == tf.float32 and np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_allclose(layer.moving_mean, 0.5 * inputs.mean((0, 1, 2)), rtol=1e-2)


def test_bfloat16_is_refused_on_a_cpu():
    check_precision("float32")
    check_precision("float16")
    with pytest.raises(InputError, match=r"train\.precision: got 'bfloat16'"):
        check_precision("bfloat16")


def test_compilation_by_xla_is_known_while_a_function_is_traced():
    found = {}
    for jit in (False, True):

        @tf.function(jit_compile=jit)
        def traced(jit: bool = jit) -> None:
            found[jit] = is_compiled_by_xla()

        traced()
    assert found == {False: False, True: True}
    assert not is_compiled_by_xla()
