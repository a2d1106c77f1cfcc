"""A TensorFlow Lite model in the process of `model_process.py`."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.arrays import Array


class TfliteSession:
    """A loaded model; `description`: names of inputs and outputs by signature, and the inputs of `serving_default`."""

    def __init__(self, content: bytes) -> None:
        self._interpreter = tf.lite.Interpreter(model_content=content, num_threads=1)  # the runner does not own it
        self._interpreter.allocate_tensors()  # a signature's runner alone does not use XNNPACK's kernels
        signatures = self._interpreter.get_signature_list()
        has_images = names.SIGNATURE_IMAGES in signatures
        self._runner: Any = self._interpreter.get_signature_runner(names.SIGNATURE_IMAGES) if has_images else None
        details = self._runner.get_input_details() if self._runner is not None else {}
        inputs = {name: (each["shape"].tolist(), each["dtype"]) for name, each in details.items()}
        self.description = signatures, inputs

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Call `serving_default`."""
        outputs: dict[str, Array] = self._runner(**inputs)
        return outputs
