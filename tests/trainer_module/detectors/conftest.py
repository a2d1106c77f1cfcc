import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.export.folded_batch_norm import fold_batch_norms
from detloom.trainer_module.export.servable import Servable, detect_images, share_matched
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm

_HERE = Path(__file__).parent
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
        tf.config.run_functions_eagerly(False)

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
        tf.config.run_functions_eagerly(False)
        images = tf.constant(np.random.default_rng(0).integers(0, 256, (2, 50, 70, 3), np.uint8))
        with _spread_scores(detector):
            folded = fold_batch_norms(detector)
            function = tf.function(lambda images: detect_images(folded, Export(), images), jit_compile=True)
            plain = Servable(detector, Export()).from_images(images)
            one, other = ({name: value.numpy() for name, value in found.items()} for found in (plain, function(images)))
        if isinstance(detector.config, FasterRcnn):  # with random weights, it may find nothing
            assert one["detection_boxes"].shape == other["detection_boxes"].shape
        else:
            assert one["num_detections"].all()
        assert share_matched(one, other) >= 0.9
        assert_on_device(function, images)

    return check


@pytest.fixture(scope="session")
def assert_folds() -> Callable[..., None]:
    """Return a function that folds the batch norms of a detector and compares each part of its network.

    Args of the function:
        num_left: batch norms in the graph from images to detections after folding.
    """

    def check(detector: Detector, *, num_left: int = 0) -> None:
        random = np.random.default_rng(0)
        with _random_batch_norms(detector, random):
            folded = fold_batch_norms(detector)
            for part, folded_part in zip(_networks(detector), _networks(folded), strict=True):
                inputs = [random.normal(0, 1, (2, *each.shape[1:])).astype(np.float32) for each in part.inputs]
                values = inputs if len(inputs) > 1 else inputs[0]
                before, after = (tf.nest.flatten(each(values, training=False)) for each in (part, folded_part))
                for expected, value in zip(before, after, strict=True):
                    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        spec = tf.TensorSpec([1, *detector.preprocessing.network_hw, 3])
        graph = tf.function(folded.detect, autograph=False).get_concrete_function(spec).graph
        assert num_left == sum(operation.type == "FusedBatchNormV3" for operation in graph.get_operations())

    return check


def _networks(detector: Detector) -> list[keras.Model]:
    found: list[keras.Model] = []

    def convert(network: keras.Model) -> keras.Model:
        found.append(network)
        return network

    detector.with_networks(convert)
    return found


@contextlib.contextmanager
def _random_batch_norms(detector: Detector, random: np.random.Generator) -> Iterator[None]:
    norms = [layer for layer in detector.network.layers if isinstance(layer, FusedBatchNorm)]
    assert norms
    variables = [variable for layer in norms for variable in layer.weights]
    before = [variable.numpy() for variable in variables]
    for variable in variables:
        variable.assign(random.uniform(0.5, 1.5, variable.shape))
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


@pytest.fixture(scope="session")
def assert_low_precision_is_close(
    tmp_path_factory: pytest.TempPathFactory, tiny_config: TrainEvalConfig, changed: Callable[..., Any]
) -> Callable[..., None]:
    """Return a function that checks losses and gradients in bfloat16 and in float16 against those in float32.

    bfloat16 rounds to 8 bits, by up to 2**-9 = 0.2 % of a number, and float16 to 11 bits, by up to 2**-12 = 0.02 %.
    Losses differ by about as much. Gradients differ more: batch norm of few pixels, and backbones with random weights,
    amplify any rounding, and TensorFlow's operations for CPUs add up the bfloat16 gradients of biases and kernels in
    bfloat16. Only gradients of the heads have a bound.

    Args of the function:
        bfloat16, float16: bounds of the differences of losses and of the heads' gradients, see `precision_process.py`.
        built_in: "FILE:CONTEXT", see `precision_process.py`.
    """

    def check(
        model: Any, *, bfloat16: tuple[float, float], float16: tuple[float, float], built_in: str | None = None
    ) -> None:
        config_file = tmp_path_factory.mktemp("precision") / "config.json"
        config_file.write_text(to_canonical_json(changed(tiny_config, {"model": model})), encoding="utf-8")
        command = [sys.executable, str(_HERE / "precision_process.py"), str(config_file)]
        environment = {**os.environ, "PYTHONPATH": str(_HERE.parents[2]), "TF_ENABLE_ONEDNN_OPTS": "0"}
        done = subprocess.run(
            [*command, built_in] if built_in else command, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-5000:]
        found = json.loads(done.stdout.splitlines()[-1])
        for precision, (most_losses, most_heads) in (("bfloat16", bfloat16), ("float16", float16)):
            step = found[precision]
            assert (step["types"], step["is_finite"]) == (["float32"], True), precision
            assert 0 < step["losses"] < most_losses, step
            assert 0 < step["head_gradients"] < most_heads, step

    return check


@pytest.fixture(scope="session")
def assert_losses_of_halves_add_up() -> Callable[..., None]:
    """Return a function that checks the losses of a batch: their names, and those of its halves add up to them."""

    def check(detector: Detector, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> None:
        whole = detector.losses(outputs, batch)
        assert tuple(whole) == detector.loss_names
        middle = len(batch["image"]) // 2
        halves = [
            tuple({name: value[part] for name, value in values.items()} for values in (outputs, batch))
            for part in (slice(0, middle), slice(middle, None))
        ]
        counts = [detector.count_matches(part) for _, part in halves]
        np.testing.assert_allclose(sum(counts), detector.count_matches(batch))
        first, second = (detector.losses(*half, sum(counts)) for half in halves)
        for name, loss in whole.items():
            assert np.isfinite(loss.numpy())
            if not isinstance(detector.config, FasterRcnn) or name != "mask_loss":  # there, a mean of means
                assert float(first[name] + second[name]) == pytest.approx(float(loss), rel=1e-5)

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
