"""Where the Object Detection API's checkpoints keep the layers of MobileNets and ResNets.

That system numbers the layers that have variables in the order of Keras' graph: by their distance from the end of the
backbone, and at the same distance by age.
"""

from collections.abc import Iterator

from detloom.schemas.network_config import FeatureExtractor
from detloom.trainer_module.backbones.mobilenet_v1 import MOBILENET_V1_BLOCKS
from detloom.trainer_module.backbones.mobilenet_v2 import MOBILENET_V2_BLOCKS
from detloom.trainer_module.backbones.resnet_v1 import RESNET_V1_BLOCKS

_BACKBONE_KEY = "model/_feature_extractor/classification_backbone"


def backbone_layer_keys(extractor: FeatureExtractor) -> dict[str, str]:
    """Our layer name -> the checkpoint key without the variable's name, for every layer with variables."""
    overridden = extractor.override_base_feature_extractor_hyperparams
    has_batch_norm = not overridden or extractor.conv_hyperparams.batch_norm is not None
    names = [name for name in _layer_names(extractor) if has_batch_norm or not _is_batch_norm(name)]
    return {name: f"{_BACKBONE_KEY}/layer_with_weights-{index}" for index, name in enumerate(names)}


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
    """The shortcut's convolution stands beside the block's last one, at the same distance, and is older."""
    yield from ("conv1_conv", "conv1_bn")
    for level, repetitions in enumerate(blocks_by_level, start=2):
        for block in range(1, repetitions + 1):
            name = f"conv{level}_block{block}"
            for part in (1, 2):
                yield from (f"{name}_{part}_conv", f"{name}_{part}_bn")
            last = (0, 3) if block == 1 else (3,)
            yield from (f"{name}_{part}_conv" for part in last)
            yield from (f"{name}_{part}_bn" for part in last)


def _is_batch_norm(name: str) -> bool:
    return name == "bn_Conv1" or name.endswith(("_bn", "_BN"))
