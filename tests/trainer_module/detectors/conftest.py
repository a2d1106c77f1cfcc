import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.export import Export
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.export import saved_model

_OF_HOST = re.compile(r"\b(?:infeed|outfeed|send|recv|custom-call)\(")
_DYNAMIC = re.compile(r"<=\d+")  # the upper bound of a dimension whose size is not known


def assert_on_device(compiled: Any, *args: tf.Tensor) -> None:
    """Assert that a compiled function has neither dynamic dimensions nor transfers from or to the host."""
    hlo = compiled.experimental_get_compiler_ir(*args)(stage="hlo")
    assert "ENTRY" in hlo
    assert (_DYNAMIC.findall(hlo), _OF_HOST.findall(hlo)) == ([], [])


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
        function = tf.function(step, jit_compile=True)
        compiled, gradients = function()
        assert_on_device(function)
        assert compiled.numpy() == pytest.approx(plain.numpy(), rel=1e-3)
        assert all(np.isfinite(gradient.numpy()).all() for gradient in gradients)

    return check


@pytest.fixture(scope="session")
def assert_export_compiles() -> Callable[[Detector], None]:
    """Return a function that checks the exported graph, from images to detections, under XLA."""

    def check(detector: Detector) -> None:
        servable, traced_for_xla = (saved_model._Servable(detector, Export()) for _ in range(2))
        images = tf.constant(np.random.default_rng(0).integers(0, 256, (2, 50, 70, 3), np.uint8))
        function = tf.function(traced_for_xla.from_images, jit_compile=True, autograph=False)
        with _spread_scores(detector):
            plain = tf.function(servable.from_images, autograph=False)(images)
            one, other = ({name: value.numpy() for name, value in found.items()} for found in (plain, function(images)))
        if isinstance(detector.config, FasterRcnn):  # with random weights, it may find nothing
            assert one["detection_boxes"].shape == other["detection_boxes"].shape
        else:
            assert one["num_detections"].all()
        assert saved_model.share_matched(one, other) >= 0.9
        assert_on_device(function, images)

    return check


@contextlib.contextmanager
def _spread_scores(detector: Detector) -> Iterator[None]:
    """Set the heads of dense detectors so that rounding decides nothing.

    Scores differ clearly, and centers are not on the border between two cells, whose embeddings decide on the mask.
    """
    random, pattern = np.random.default_rng(0), re.compile("head_(class|size|offset).*kernel")
    kernels = [each for each in detector.network.trainable_variables if pattern.search(each.path)]
    before = [each.numpy() for each in kernels]
    for kernel in kernels:
        kernel.assign(random.normal(0, 0.5, kernel.shape))
    yield
    for kernel, value in zip(kernels, before, strict=True):
        kernel.assign(value)
