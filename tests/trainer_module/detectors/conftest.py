from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.detectors.detector import Detector


@pytest.fixture(scope="session")
def assert_step_compiles() -> Callable[..., None]:
    """Return a function that checks a training step under XLA: the loss is that without XLA, gradients are finite."""

    def check(detector: Detector, batch: dict[str, tf.Tensor], *, unconnected_gradients: str = "none") -> None:
        def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                loss = tf.add_n(list(detector.losses(detector.forward(batch, training=True), batch).values()))
            variables = detector.network.trainable_variables
            return loss, tape.gradient(loss, variables, unconnected_gradients=unconnected_gradients)

        plain, _ = tf.function(step)()
        compiled, gradients = tf.function(step, jit_compile=True)()
        assert compiled.numpy() == pytest.approx(plain.numpy(), rel=1e-3)
        assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)

    return check
