"""The numbers of training steps in the log: losses, learning rate, loss scale and gradient norms."""

from collections.abc import Sequence

import tensorflow as tf

from detloom.schemas.contracts.arrays import Array
from detloom.schemas.contracts.metric_names import LEARNING_RATE, LOSS

_LOSS_SCALE, _GRADIENT_NORM = "loss_scale", "gradient_norm"
_OF_LAST_STEP = (LEARNING_RATE, _LOSS_SCALE)  # a mean of these is meaningless


class LoggedNumbers:
    """Names and values of the numbers; `names` has the order of the values."""

    def __init__(self, loss_names: Sequence[str], variable_paths: Sequence[str], *, has_loss_scale: bool) -> None:
        """Log the gradient norm of each variable in `variable_paths` too."""
        scale = [_LOSS_SCALE] if has_loss_scale else []
        per_variable = [f"{_GRADIENT_NORM}/{path}" for path in variable_paths]
        self._has_single_norms = bool(per_variable)
        self.names = (LOSS, *loss_names, LEARNING_RATE, *scale, _GRADIENT_NORM, *per_variable)

    def of_step(
        self, losses: tf.Tensor, learning_rate: tf.Tensor, loss_scale: tf.Tensor | None, gradient_norms: tf.Tensor
    ) -> tf.Tensor:
        """Return the numbers of one step, whose update has this learning rate."""
        scale = [] if loss_scale is None else [loss_scale]
        single_norms = tf.unstack(gradient_norms) if self._has_single_norms else []
        loss, norm = tf.reduce_sum(losses), tf.norm(gradient_norms)
        return tf.stack([loss, *tf.unstack(losses), learning_rate, *scale, norm, *single_norms])

    def of_steps(self, means: Array, last: Array) -> dict[str, float]:
        """Return the means over several steps; of the learning rate and the loss scale, the value of the last step."""
        values = zip(self.names, means, last, strict=True)
        return {name: float(at_last if name in _OF_LAST_STEP else mean) for name, mean, at_last in values}
