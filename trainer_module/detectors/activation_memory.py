"""Estimate the memory of a network's activations in training."""

import itertools
import math

import keras
import tensorflow as tf

_FACTOR = 1.1  # peak allocation of a step without gradients, divided by the size of all layers' outputs


def activation_bytes(network: keras.Model) -> int | None:
    """Estimate the bytes that a training step keeps for one image between forward and backward pass.

    The estimate is 1.1 times the outputs of all layers. The factor was measured with TensorFlow 2.16 on two CPU cores,
    as the peak of the resident set during three steps with momentum, minus its size before and minus the gradients,
    divided by those outputs: SSD MobileNetV2 FPNLite with its losses, 320 x 320, 1.24 (batch 8, 90 classes) and 0.85
    (batch 32, 3 classes); 640 x 640, 1.21 (batch 4, 90 classes); backbones alone at batch 2, EfficientNet-B0 1.15 and
    B3 1.10 (512 x 512), ResNet-50 0.72 (640 x 640). It was not measured on accelerators.

    Returns:
        None if unknown, as for images of varying size.
    """
    outputs = _layer_outputs(network)
    if outputs is None or any(None in output.shape[1:] for output in outputs):
        return None
    sizes = (math.prod(output.shape[1:]) * tf.as_dtype(output.dtype).size for output in outputs)
    return round(_FACTOR * sum(sizes))


def _layer_outputs(network: keras.Model) -> list[keras.KerasTensor] | None:
    """Return the outputs of every call of every layer, including nested models; None if the network is not a graph."""
    levels = getattr(network, "_nodes_by_depth", None)  # no public name for all outputs of a shared layer
    if levels is None:
        return None
    outputs: list[keras.KerasTensor] = []
    for node in itertools.chain.from_iterable(levels.values()):
        is_model = isinstance(node.operation, keras.Model)
        inner = _layer_outputs(node.operation) if is_model else node.outputs
        if inner is None:
            return None
        outputs += inner
    return outputs
