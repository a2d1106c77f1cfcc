"""Keys of backbone layers in checkpoints of the Object Detection API.

It numbers the layers with variables in the order of the Keras graph: by their distance from the end of the backbone,
and at the same distance by age. Our backbones have the same graphs.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import keras

from detloom.schemas.model.network import BiFpn, FeatureExtractor
from detloom.trainer_module.layers.backbones.efficientnet import efficientnet_blocks
from detloom.trainer_module.layers.backbones.hourglass import Hourglass

_BACKBONE = "model/_feature_extractor/classification_backbone"
_USED_EFFICIENTNET = "model/_feature_extractor/_efficientnet"
_HOURGLASSES = "model/_feature_extractor/_network"
# Number of the hourglass, name of the block or convolution, number of the convolution of a block, kind of layer.
_HOURGLASS_LAYER = re.compile(r"(?:hourglass(\d+)_)?(.+?)(?:_([012]))?_(conv|bn)")
_HOURGLASS_BLOCK = re.compile(r"level(\d+)_(around|down|inside|up)(\d+)")
_PATHS = {"around": "encoder_block1", "down": "encoder_block2", "inside": "inner_block", "up": "decoder_block"}
_BETWEEN = {
    "output": "output_conv",
    "next_input": "intermediate_conv1",
    "next_output": "intermediate_conv2",
    "next_block": "intermediate_residual",
}
_CONVOLUTIONS = {"0": "/skip", "1": "/conv_block", "2": "", None: ""}
_KINDS = {"conv": "conv", "bn": "norm"}


def backbone_layers(network: keras.Model) -> list[str]:
    """Return the names of the backbone's layers with variables, in the order of the Keras graph."""
    layers = [layer.name for layer in network.layers if layer.weights]
    return [name for name in layers if not name.startswith(("neck_", "head_"))]


def backbone_layer_keys(extractor: FeatureExtractor, network: keras.Model) -> dict[str, str]:
    """Return the key, without the variable name, of each layer with variables, by our layer name."""
    names = backbone_layers(network)
    if extractor.backbone.startswith("efficientnet"):
        return _efficientnet_layer_keys(extractor, names)
    return numbered_layer_keys(names)


def numbered_layer_keys(names: Iterable[str], root: str = _BACKBONE) -> dict[str, str]:
    """Return the key of each layer of a Keras model, by our layer name, from the names in the reference's order."""
    return {name: f"{root}/layer_with_weights-{index}" for index, name in enumerate(names)}


def _efficientnet_layer_keys(config: FeatureExtractor, names: list[str]) -> dict[str, str]:
    """Return the key of each layer of an EfficientNet, by our layer name.

    The feature extractor of the Object Detection API holds two models over the same layers: the whole classification
    network, and the part up to the last feature map that the pyramid uses. Layers of the part are stored under it, the
    others under the whole network. With `features_of_last_blocks`, which that system does not have, some layers that
    it does not use get their keys as well.
    """
    assert isinstance(config.neck, BiFpn), config.neck
    reference = replace(config, neck=replace(config.neck, features_of_last_blocks=False))
    used = {"stem", *(block.name for block in efficientnet_blocks(reference))}
    keys = {}
    for index, name in enumerate(names):
        root = _USED_EFFICIENTNET if name.partition("_")[0] in used else _BACKBONE
        keys[name] = f"{root}/layer_with_weights-{index}"
    return keys


def hourglass_layer_keys(config: Hourglass, network: keras.Model, root: str = _HOURGLASSES) -> dict[str, str]:
    """Return the key of each layer of stacked hourglasses, by our layer name. The reference nests levels and blocks."""
    stem = "downsample_input" if config.is_stem_strided else "conv_input"
    keys = {}
    for layer in network.layers:
        match = _HOURGLASS_LAYER.fullmatch(layer.name.removeprefix(config.prefix))
        if match is None or not layer.weights or not layer.name.startswith(config.prefix):
            continue
        number, block, convolution, kind = match.groups()
        if number:
            place = _place_in_hourglass(int(number) - 1, block)
        elif block in ("stem", "stem_block"):
            place = f"{stem}/{'residual_block' if block == 'stem_block' else 'conv_block'}"
        else:
            continue  # a layer of another part
        keys[layer.name] = f"{root}/{place}{_CONVOLUTIONS[convolution]}/{_KINDS[kind]}"
    return keys


def _place_in_hourglass(index: int, block: str) -> str:
    """Return the place of a block or convolution of an hourglass, counted from 0."""
    if block in _BETWEEN:
        return f"{_BETWEEN[block]}/{index}"
    match = _HOURGLASS_BLOCK.fullmatch(block)
    assert match is not None, block
    level, path, number = match.groups()
    inner = "inner_block/0/" * (int(level) - 1)
    return f"hourglass_network/{index}/{inner}{_PATHS[path]}/{int(number) - 1}"
