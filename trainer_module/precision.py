"""What the network computes in: Keras' policies of mixed precision. Weights and outputs are float32 always."""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from detloom.schemas.config import Precision, Train
from detloom.schemas.errors import InputError


def precision_of(train: Train, *, on_tpu: bool) -> Precision:
    """`use_bfloat16` is the reference's setting: it counts on TPU alone."""
    return "bfloat16" if on_tpu and train.use_bfloat16 and train.precision == "float32" else train.precision


@contextlib.contextmanager
def network_precision(precision: Precision) -> Iterator[None]:
    """The detector that is built while it is open computes in this."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32" if precision == "float32" else f"mixed_{precision}")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def refuse_without_accelerator(precision: Precision) -> None:
    """bfloat16 on a CPU is slower than float32 at best; at worst, TensorFlow's kernels end the process.

    Its backward pass of depthwise convolutions (oneDNN) uses instructions that not every CPU has that it runs on.

    Raises:
        InputError: for bfloat16 where there is neither GPU nor TPU.
    """
    has_accelerator = any(tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU"))
    if precision == "bfloat16" and not has_accelerator:
        raise InputError("train.precision: got 'bfloat16' on a CPU, allowed there: 'float32'.")
