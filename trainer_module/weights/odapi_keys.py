"""Keys of weights in checkpoints of the Object Detection API."""

import keras

from detloom.trainer_module.detectors.detector import Family

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # suffix of the keys of variables in object-based checkpoints


def odapi_keys(family: Family, network: keras.Model) -> dict[str, str]:
    """Return the key of each weight of the network, including moving statistics, by "layer/variable".

    {} if the family does not support checkpoints of the Object Detection API.
    """
    layer_keys = family.odapi_layer_keys(network)
    if not layer_keys:
        return {}
    for layer in network.layers:
        assert layer.name in layer_keys or not layer.weights, f"no key for the layer {layer.name}"
    return _variable_keys(layer_keys, network)


def odapi_classification_keys(family: Family, network: keras.Model) -> dict[str, str]:
    """Return the same for the backbone in a checkpoint that was trained on classification."""
    return _variable_keys(family.odapi_classification_keys(network), network)


def _variable_keys(layer_keys: dict[str, str], network: keras.Model) -> dict[str, str]:
    return {
        f"{layer.name}/{variable.name}": f"{layer_keys[layer.name]}/{_attribute(layer, variable)}{VALUE}"
        for layer in network.layers
        if layer.name in layer_keys
        for variable in layer.weights
    }


def _attribute(layer: keras.layers.Layer, variable: keras.Variable) -> str:
    """Return the attribute of a variable; Keras 2 has another name for the kernel of a depthwise convolution."""
    is_depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
    return "depthwise_kernel" if is_depthwise and variable.name == "kernel" else str(variable.name)
