"""A moving average of the trained weights."""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from detloom.schemas.optimizer_config import MovingAverage


class AveragedWeights(tf.Module):
    """Averages of variables, kept beside them; a checkpoint that tracks this object holds them.

    With `dynamic`, it is the average of the Object Detection API and of google/automl's EfficientDet.
    """

    def __init__(self, config: MovingAverage, variables: Sequence[keras.Variable]) -> None:
        """Make the averages; call it in the strategy's scope."""
        super().__init__()
        self._config, self._variables = config, list(variables)
        # The first shares that a dynamic average keeps of its start, 2/11, 3/12, ..., wipe it out, and 0 is what the
        # reference starts from. A fixed share keeps it for long: after 1,000 steps at 0.9999, 90 % of the average.
        self.averages = [
            tf.Variable(tf.zeros_like(variable) if config.dynamic else variable, trainable=False)
            for variable in self._variables
        ]

    def update(self, num_updates: tf.Tensor) -> None:
        """Take in the weights as they are now, after `num_updates` updates of them (1 at the first call)."""
        kept = tf.constant(self._config.decay, tf.float32)
        if self._config.dynamic:
            count = tf.cast(num_updates, tf.float32)
            kept = tf.minimum(kept, (1 + count) / (10 + count))
        for average, variable in zip(self.averages, self._variables, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=average.handle, alpha=1 - kept, delta=average - tf.convert_to_tensor(variable)
            )

    @contextlib.contextmanager
    def in_network(self) -> Iterator[None]:
        """The averages in the variables; afterwards the trained weights again, to the last bit."""
        trained = [variable.numpy() for variable in self._variables]
        try:
            for variable, average in zip(self._variables, self.averages, strict=True):
                variable.assign(average)
            yield
        finally:
            for variable, value in zip(self._variables, trained, strict=True):
                variable.assign(value)
