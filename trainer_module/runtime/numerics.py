"""Numeric modes: precision of the network, deterministic operations, compilation with XLA."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import config as _framework_config  # private modules: there is no public equivalent
from tensorflow.python.ops import control_flow_util as _control_flow

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Precision, Train


def precision_of(train: Train, *, on_tpu: bool) -> Precision:
    """Return the precision of a device: `bfloat16_on_tpu` is bfloat16 on a TPU and float32 elsewhere."""
    if train.precision == "bfloat16_on_tpu":
        return "bfloat16" if on_tpu else "float32"
    return train.precision


@contextlib.contextmanager
def network_precision(precision: Precision) -> Iterator[None]:
    """Set the precision of detectors that are built within the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def check_precision(precision: Precision) -> None:
    """Reject bfloat16 on a CPU: it is slower than float32, wrong, and can crash the process.

    The depthwise convolutions of oneDNN need instructions that some CPUs lack. TensorFlow's own operations exist on all
    CPUs (`TF_ENABLE_ONEDNN_OPTS=0`), but add up the gradients of kernels in bfloat16. The gradients of biases are added
    up like this with oneDNN too: the sum of 1,000 numbers near 1 is 44 % too small.

    Raises:
        InputError: for bfloat16 without GPU and TPU.
    """
    if precision == "bfloat16" and not has_accelerator():
        raise InputError("train.precision: got 'bfloat16' on a CPU, allowed there: 'float32'.")


def has_accelerator() -> bool:
    """Return True if TensorFlow has a GPU or a TPU."""
    return any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))


@contextlib.contextmanager
def execution_mode(config: Train) -> Iterator[None]:
    """Apply `train.deterministic` and `train.debug` within the block."""
    was_deterministic, was_eager = are_operations_deterministic(), tf.config.functions_run_eagerly()
    if config.deterministic or config.debug:
        tf.config.experimental.enable_op_determinism()
    tf.config.run_functions_eagerly(config.debug or was_eager)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(was_eager)
        if not was_deterministic:
            _framework_config.disable_op_determinism()


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute float32 in full within the block: by default, GPUs round the factors of products to 10 bits (TF32)."""
    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_enabled)


def are_operations_deterministic() -> bool:
    """Return True if deterministic operations are enabled; then there is no clock on the device either."""
    return bool(_framework_config.is_op_determinism_enabled())


def is_compiled_by_xla() -> bool:
    """Return True while a function that XLA compiles is traced; it cannot have operations that XLA does not support."""
    return not tf.executing_eagerly() and bool(
        _control_flow.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    )


def compiled_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, compiled with XLA where there is no GPU.

    On a CPU, TensorFlow's kernels pass over large tensors once per operation, each time into new memory; XLA fuses
    these into one or two passes. A GPU gains little and may lack the compiler. Arguments other than tensors have to be
    hashable; each new value is compiled separately.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    def call(*args: Any) -> Any:
        return function(*args) if tf.config.list_logical_devices("GPU") else compiled(*args)

    return call
