"""Keys of backbone layers in checkpoints of the Object Detection API.

It numbers the layers with variables in the order of the Keras graph: by their distance from the end of the backbone,
and at the same distance by age. The layers of EfficientNets are numbered in forward order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from detloom.schemas.model.network import BiFpn, FeatureExtractor
from detloom.trainer_module.layers.backbones.efficientnet import efficientnet_layers
from detloom.trainer_module.layers.backbones.hourglass import (
    Hourglass,
    HourglassLevel,
    ResidualBlock,
    block_between,
    hourglass_level,
    stem_block,
)
from detloom.trainer_module.layers.backbones.mobilenet_v1 import MOBILENET_V1_BLOCKS
from detloom.trainer_module.layers.backbones.mobilenet_v2 import MOBILENET_V2_BLOCKS
from detloom.trainer_module.layers.backbones.resnet_v1 import RESNET_V1_BLOCKS

_BACKBONE = "model/_feature_extractor/classification_backbone"
_USED_EFFICIENTNET = "model/_feature_extractor/_efficientnet"
_HOURGLASSES = "model/_feature_extractor/_network"


def backbone_layer_keys(extractor: FeatureExtractor) -> dict[str, str]:
    """Return the key, without the variable name, of each layer with variables, by our layer name."""
    if extractor.backbone.startswith("efficientnet"):
        return efficientnet_layer_keys(extractor)
    overridden = extractor.override_base_feature_extractor_hyperparams
    has_batch_norm = not overridden or extractor.conv_hyperparams.batch_norm is not None
    names = [name for name in _layer_names(extractor) if has_batch_norm or not _is_batch_norm(name)]
    return numbered_layer_keys(names)


def numbered_layer_keys(names: Iterable[str], root: str = _BACKBONE) -> dict[str, str]:
    """Return the key of each layer of a Keras model, by our layer name, from the names in the reference's order."""
    return {name: f"{root}/layer_with_weights-{index}" for index, name in enumerate(names)}


def efficientnet_layer_keys(config: FeatureExtractor) -> dict[str, str]:
    """Return the key of each layer of an EfficientNet, by our layer name.

    The feature extractor of the Object Detection API holds two models over the same layers: the whole classification
    network, and the part up to the last feature map that the pyramid uses. Layers of the part are stored under it, the
    others under the whole network. With `features_of_last_blocks`, which that system does not have, some layers that
    it does not use get their keys as well.
    """
    assert isinstance(config.neck, BiFpn), config.neck
    reference = replace(config, neck=replace(config.neck, features_of_last_blocks=False))
    used = set(efficientnet_layers(reference))
    return {
        name: f"{_USED_EFFICIENTNET if name in used else _BACKBONE}/layer_with_weights-{index}"
        for index, name in enumerate(efficientnet_layers(config))
    }


def _layer_names(extractor: FeatureExtractor) -> Iterator[str]:
    match extractor.backbone:
        case "mobilenet_v1":
            return _mobilenet_v1_names()
        case "mobilenet_v2":
            return _mobilenet_v2_names()
        case "resnet50_v1" | "resnet101_v1" | "resnet152_v1":
            return _resnet_v1_names(RESNET_V1_BLOCKS[extractor.backbone])
    raise AssertionError(f"no MobileNet or ResNet: {extractor.backbone}")


def _mobilenet_v1_names() -> Iterator[str]:
    yield from ("conv1", "conv1_bn")
    for block in range(1, len(MOBILENET_V1_BLOCKS) + 1):
        yield from (f"conv_dw_{block}", f"conv_dw_{block}_bn", f"conv_pw_{block}", f"conv_pw_{block}_bn")


def _mobilenet_v2_names() -> Iterator[str]:
    yield from ("Conv1", "bn_Conv1")
    for block in range(sum(repetitions for _, _, repetitions, _ in MOBILENET_V2_BLOCKS)):
        name = f"block_{block}" if block else "expanded_conv"
        for part in ("expand", "depthwise", "project") if block else ("depthwise", "project"):
            yield from (f"{name}_{part}", f"{name}_{part}_BN")
    yield from ("Conv_1", "Conv_1_bn")


def _resnet_v1_names(blocks_by_level: tuple[int, ...]) -> Iterator[str]:
    """Yield the layer names. The shortcut convolution of a block is as deep as its last convolution, and older."""
    yield from ("conv1_conv", "conv1_bn")
    for level, repetitions in enumerate(blocks_by_level, start=2):
        for block in range(1, repetitions + 1):
            name = f"conv{level}_block{block}"
            for part in (1, 2):
                yield from (f"{name}_{part}_conv", f"{name}_{part}_bn")
            last = (0, 3) if block == 1 else (3,)
            yield from (f"{name}_{part}_conv" for part in last)
            yield from (f"{name}_{part}_bn" for part in last)


def resnet_v2_layer_names(backbone: str) -> Iterator[str]:
    """Yield the names of a ResNet V2's layers with variables in the reference's order, without the last batch norm.

    A block normalizes its input first. Only the shortcut of the first block of a level is a convolution.
    """
    yield "conv1_conv"
    for level, repetitions in enumerate(RESNET_V1_BLOCKS[backbone.replace("_v2", "_v1")], start=2):
        for block in range(1, repetitions + 1):
            name = f"conv{level}_block{block}"
            yield f"{name}_preact_bn"
            for part in (1, 2):
                yield from (f"{name}_{part}_conv", f"{name}_{part}_bn")
            yield from (f"{name}_{part}_conv" for part in ((0, 3) if block == 1 else (3,)))


def hourglass_layer_keys(config: Hourglass, root: str = _HOURGLASSES) -> dict[str, str]:
    """Return the key of each layer of stacked hourglasses, by our layer name. The reference nests levels and blocks."""
    stem = f"{root}/{'downsample_input' if config.is_stem_strided else 'conv_input'}"
    first = _conv_keys(f"{config.prefix}stem", f"{stem}/conv_block")
    keys = first | _block_keys(stem_block(config), f"{stem}/residual_block")
    for index in range(config.num_stacked):
        name = config.name_of(index + 1)
        keys |= _level_keys(hourglass_level(config, index + 1), f"{root}/hourglass_network/{index}")
        keys |= _conv_keys(f"{name}_output", f"{root}/output_conv/{index}")
        if index < config.num_stacked - 1:
            keys |= _conv_keys(f"{name}_next_input", f"{root}/intermediate_conv1/{index}")
            keys |= _conv_keys(f"{name}_next_output", f"{root}/intermediate_conv2/{index}")
            between = block_between(config, index + 1)
            keys |= _block_keys(between, f"{root}/intermediate_residual/{index}")
    return keys


def _level_keys(level: HourglassLevel, key: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    paths = {"encoder_block1": level.around, "encoder_block2": level.down, "decoder_block": level.up}
    if isinstance(level.inside, HourglassLevel):
        keys |= _level_keys(level.inside, f"{key}/inner_block/0")
    else:
        paths["inner_block"] = level.inside
    for path, blocks in paths.items():
        for index, block in enumerate(blocks):
            keys |= _block_keys(block, f"{key}/{path}/{index}")
    return keys


def _block_keys(block: ResidualBlock, key: str) -> dict[str, str]:
    shortcut = _conv_keys(f"{block.name}_0", f"{key}/skip") if block.has_conv_shortcut else {}
    return {
        **_conv_keys(f"{block.name}_1", f"{key}/conv_block"),
        **_conv_keys(f"{block.name}_2", key),
        **shortcut,
    }


def _conv_keys(name: str, key: str) -> dict[str, str]:
    return {f"{name}_conv": f"{key}/conv", f"{name}_bn": f"{key}/norm"}


def _is_batch_norm(name: str) -> bool:
    return name == "bn_Conv1" or name.endswith(("_bn", "_BN"))
