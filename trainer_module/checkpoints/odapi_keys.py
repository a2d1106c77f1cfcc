"""Keys of the Object Detection API's TF2 checkpoints for the variables of a network, built from its structure."""

import keras

from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model
from detloom.schemas.model_config import Ssd
from detloom.schemas.network_config import BiFpn, FeatureExtractor
from detloom.trainer_module.checkpoints.odapi_backbones import backbone_layer_keys
from detloom.trainer_module.checkpoints.odapi_bifpn import bifpn_layer_keys
from detloom.trainer_module.checkpoints.odapi_centernet import centernet_layer_keys
from detloom.trainer_module.checkpoints.odapi_efficientnet import efficientnet_layer_keys
from detloom.trainer_module.checkpoints.odapi_heads import head_layer_keys
from detloom.trainer_module.checkpoints.odapi_necks import neck_layer_keys

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # how the key of a variable ends in a checkpoint that stores objects


def odapi_keys(config: Model, network: keras.Model) -> dict[str, str]:
    """Our "layer/variable" -> the whole key, for every weight of the network, moving statistics too.

    Empty for a family of detectors that the Object Detection API's checkpoints are not mapped to.
    """
    layer_keys = _layer_keys(config)
    if not layer_keys:
        return {}
    found: dict[str, str] = {}
    for layer in network.layers:
        for variable in layer.weights:
            assert layer.name in layer_keys, f"no key for the layer {layer.name}"
            found[f"{layer.name}/{variable.name}"] = f"{layer_keys[layer.name]}/{_attribute(layer, variable)}{VALUE}"
    return found


def _layer_keys(config: Model) -> dict[str, str]:
    keys: dict[str, str] = {}
    match config:
        case Ssd(feature_extractor=extractor):
            keys = {**_backbone_keys(extractor), **_neck_keys(extractor), **head_layer_keys(config)}
        case CenterNet():
            keys = centernet_layer_keys(config)
    return keys


def _backbone_keys(extractor: FeatureExtractor) -> dict[str, str]:
    if extractor.backbone.startswith("efficientnet"):
        return efficientnet_layer_keys(extractor)
    return backbone_layer_keys(extractor)


def _neck_keys(extractor: FeatureExtractor) -> dict[str, str]:
    return bifpn_layer_keys(extractor) if isinstance(extractor.neck, BiFpn) else neck_layer_keys(extractor)


def _attribute(layer: keras.layers.Layer, variable: keras.Variable) -> str:
    """Keras 2 calls the kernel of a depthwise convolution by another name than Keras 3."""
    is_depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
    return "depthwise_kernel" if is_depthwise and variable.name == "kernel" else str(variable.name)
