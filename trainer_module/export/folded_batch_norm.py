"""Fold batch norms into the convolutions before them, so that an exported network does not compute them.

With s = gamma / sqrt(variance + epsilon), batch norm of a convolution with kernel K and bias b is the convolution with
kernel K * s and bias (b - mean) * s + beta. TensorFlow then fuses the convolution, the bias and ReLU.
"""

import logging
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.contracts.arrays import Float32Array
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.runtime.numerics import without_tf32

_LOGGER = logging.getLogger("detloom")
_TOLERANCE = 1e-4  # largest difference of an output due to rounding, over its largest value
_Conv: TypeAlias = (
    keras.layers.Conv2D | keras.layers.DepthwiseConv2D | keras.layers.SeparableConv2D | keras.layers.Conv2DTranspose
)


def fold_batch_norms(detector: Detector) -> Detector:
    """Return a copy of the detector for inference, whose outputs differ by rounding only.

    Layers that are not folded are shared with the detector; kernels and biases that are folded are new variables with
    the current values. If a convolution is followed by several batch norms (heads that share it between levels), the
    copy has a kernel for each.

    Batch norms after other layers, such as an addition, are left. All are left, with a warning, if the outputs for a
    random input differ by more than rounding, as with the weights of a training that diverged.
    """
    convs: dict[tuple[str, str], FoldedConv] = {}  # by names: parts of a network share their layers
    folded = detector.with_networks(lambda network: _fold_network(network, convs))
    if _equal_outputs(detector.network, folded.network):
        return folded
    _LOGGER.warning(
        "Export: batch norms are not folded into convolutions, because that changes outputs of the network."
    )
    return detector


class FoldedConv(keras.layers.Layer):
    """A convolution and the batch norm after it, as one convolution with bias."""

    def __init__(self, conv: _Conv, batch_norm: FusedBatchNorm, input_shape: tuple[int | None, ...]) -> None:
        """Copy the current weights.

        Args:
            input_shape: of the convolution.
        """
        super().__init__(name=f"{conv.name}_{batch_norm.name}")
        scale_C, offset_C = _scale_and_offset(batch_norm)
        kernels, bias_C = conv.get_weights(), np.float32(0)
        if conv.use_bias:
            *kernels, bias_C = kernels
        kernels[-1] = kernels[-1] * _along_kernel(conv, scale_C)  # the last kernel has the output channels
        self.conv = type(conv).from_config(_config_without_bias(conv))
        self.conv.build(input_shape)
        self.conv.set_weights(kernels)
        self.bias = self.add_weight(name="bias", shape=scale_C.shape, initializer="zeros")
        self.bias.assign(bias_C * scale_C + offset_C)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        # Keras adds a bias as a reshaped tensor, which costs two more operations.
        return tf.nn.bias_add(self.conv(inputs), tf.convert_to_tensor(self.bias))


def _fold_network(network: keras.Model, folded: dict[tuple[str, str], FoldedConv]) -> keras.Model:
    """Call the layers of a network again, with a folded convolution instead of each batch norm that allows it."""
    # Convolution, input and output by the id of the output, which is kept so that no other tensor gets its id.
    convs: dict[int, tuple[_Conv, keras.KerasTensor, keras.KerasTensor]] = {}

    def call(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, FusedBatchNorm) and id(args[0]) in convs:
            conv, inputs, _ = convs[id(args[0])]
            key = (conv.name, layer.name)
            if key not in folded:
                folded[key] = FoldedConv(conv, layer, inputs.shape)
            return folded[key](inputs)
        outputs = layer(*args, **kwargs)
        if isinstance(layer, _Conv) and layer.activation is keras.activations.linear:
            convs[id(outputs)] = (layer, args[0], outputs)
        return outputs

    with np.errstate(over="ignore", invalid="ignore"):  # weights of a training that diverged
        return keras.models.clone_model(network, clone_function=lambda layer: layer, call_function=call)


def _equal_outputs(network: keras.Model, folded: keras.Model) -> bool:
    """Compare finite outputs for one random input."""
    random = np.random.default_rng(0)
    inputs = tf.nest.map_structure(lambda each: random.normal(0, 1, (1, *each.shape[1:])), network.input)
    with without_tf32():
        before, after = (tf.nest.flatten(model(inputs, training=False)) for model in (network, folded))
    for expected, output in zip((each.numpy() for each in before), (each.numpy() for each in after), strict=True):
        tolerance = _TOLERANCE * np.abs(expected).max()
        if np.isfinite(expected).all() and not np.allclose(output, expected, rtol=0, atol=tolerance):
            return False
    return True


def _scale_and_offset(batch_norm: FusedBatchNorm) -> tuple[Float32Array, Float32Array]:
    """Return s and beta - mean * s."""
    scale_C = 1 / np.sqrt(batch_norm.moving_variance.numpy() + batch_norm.epsilon)
    if batch_norm.scale:
        scale_C = scale_C * batch_norm.gamma.numpy()
    offset_C = -batch_norm.moving_mean.numpy() * scale_C
    if batch_norm.center:
        offset_C = offset_C + batch_norm.beta.numpy()
    return scale_C, offset_C


def _along_kernel(conv: _Conv, scale_C: Float32Array) -> Float32Array:
    """Reshape a value for each output channel so that it broadcasts to the kernel."""
    if isinstance(conv, keras.layers.DepthwiseConv2D):  # [h, w, input channels, outputs of each]
        return scale_C.reshape(-1, conv.depth_multiplier)
    if isinstance(conv, keras.layers.Conv2DTranspose):  # [h, w, output channels, input channels]
        return scale_C[:, np.newaxis]
    return scale_C


def _config_without_bias(conv: _Conv) -> dict[str, Any]:
    """Return the Keras arguments of a convolution for inference, without the initializers and penalties of training."""
    config = {name: value for name, value in conv.get_config().items() if not name.endswith("_regularizer")}
    return config | {name: "zeros" for name in config if name.endswith("_initializer")} | {"use_bias": False}
