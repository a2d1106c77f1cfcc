"""Which parts of a training step XLA compiles by itself, where the whole step is not compiled anyway."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def compiled_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled where there is no GPU.

    On a CPU such work is passes over large tensors, each into fresh memory: TensorFlow's own kernels make one for every
    operation, XLA one or two for all of them. A GPU hardly gains, and may lack the compiler. What a caller passes
    beside tensors must be hashable; a new value compiles anew.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    def call(*args: Any) -> Any:
        return function(*args) if tf.config.list_logical_devices("GPU") else compiled(*args)

    return call
