"""Backbones' weights in the files of Keras: by the names of layers, read with h5py; no model is loaded from a file."""

import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.center_net_config import CenterNetFeatureExtractor
from detloom.schemas.config import IMAGENET
from detloom.schemas.errors import InputError
from detloom.schemas.network_config import FeatureExtractor

_ENDINGS = (".h5", ".hdf5", ".keras")
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
# Of a file, of the weights in an archive, of the arrays in those: a small file can claim any size. EfficientNet-B7, the
# largest backbone, has 0.25 GiB, with the state of an optimizer three times that.
_MAX_BYTES = 2 << 30
# What h5py and zipfile raise on a damaged file, or on one made to harm.
_UNREADABLE = (
    tf.errors.OpError,
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
# Variables of a layer as Keras 3 numbers them in .weights.h5, by how many there are.
_NUMBERED = {1: ("kernel",), 2: ("kernel", "bias"), 4: ("gamma", "beta", "moving_mean", "moving_variance")}


def is_keras_file(path: str) -> bool:
    return path.endswith(_ENDINGS)


def read_keras_weights(
    path: str, extractor: FeatureExtractor | CenterNetFeatureExtractor | None
) -> dict[str, np.ndarray]:
    """Arrays by "layer/variable", as our backbone needs them.

    Args:
        path: of a file, or `imagenet`.
        extractor: None for a detector whose backbone is its own.

    Raises:
        InputError: if it cannot be read or downloaded.
    """
    arrays = _download(extractor) if path == IMAGENET else _read_file(path)
    is_other = isinstance(extractor, FeatureExtractor) and extractor.backbone.startswith("resnet")
    return _for_our_resnet(arrays) if is_other else arrays  # CenterNet's ResNets are those of keras.applications


def _read_file(path: str) -> dict[str, np.ndarray]:
    try:
        _check_size(path, tf.io.gfile.stat(path).length)
        with tf.io.gfile.GFile(path, "rb") as opened:
            content = opened.read()
        if path.endswith(".keras"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                _check_size(_WEIGHTS_IN_ARCHIVE, archive.getinfo(_WEIGHTS_IN_ARCHIVE).file_size)
                content = archive.read(_WEIGHTS_IN_ARCHIVE)
        with h5py.File(io.BytesIO(content), "r") as root:
            return {name: dataset[()] for name, dataset in _find_datasets(root).items()}
    except _UNREADABLE as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"train.fine_tune_checkpoint: {path} cannot be read ({cause}); allowed: a Keras file with weights, .h5, "
            ".weights.h5 or .keras."
        ) from None


def _check_size(what: str, num_bytes: int) -> None:
    if num_bytes > _MAX_BYTES:
        raise ValueError(f"{what} has {num_bytes} bytes, allowed: {_MAX_BYTES}")


def _find_datasets(root: h5py.File) -> dict[str, h5py.Dataset]:
    """By "layer/variable", what is to be read; all of it is checked before any is."""
    found = dict(_datasets(root))
    for dataset in found.values():
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"{dataset.name} has its values in another file")
    _check_size("what it holds", sum(_num_bytes(dataset) for dataset in found.values()))
    return found


def _num_bytes(dataset: h5py.Dataset) -> int:
    """That reading it takes: of a dataset that may grow, a chunk can be larger than the whole."""
    chunk = dataset.dtype.itemsize * math.prod(dataset.chunks) if dataset.chunks else 0
    return max(int(dataset.nbytes), chunk)


def _datasets(root: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Of both layouts: Keras 3's numbers a layer's variables, the older one names them. No link is followed."""
    layers: list[tuple[str, Any]] = []
    root.visititems(lambda name, node: layers.append((name, node)))
    for name, node in layers:
        if not isinstance(name, str):  # h5py gives bytes where they are no UTF-8
            raise ValueError(f"the name {name!r} in it is no text")
        if not isinstance(node, h5py.Dataset) or node.shape is None or not np.issubdtype(node.dtype, np.floating):
            continue
        *above, last = name.split("/")
        if above and above[-1] == "vars":
            group = node.parent
            names = _NUMBERED.get(len(group))
            if names and last.isdecimal() and int(last) < len(names) and "name" in group.attrs:
                yield f"{group.attrs['name']}/{names[int(last)]}", node
        else:
            layer = [step for step in above if step != "model_weights"]
            variable = last.partition(":")[0]
            if layer:
                yield f"{layer[0]}/{'kernel' if variable == 'depthwise_kernel' else variable}", node


def _download(extractor: FeatureExtractor | CenterNetFeatureExtractor | None) -> dict[str, np.ndarray]:
    if extractor is None:
        raise InputError(
            f"train.fine_tune_checkpoint: got '{IMAGENET}', but this detector's backbone is its own; allowed: one of "
            "its own checkpoints, or a file of Keras with the names of its layers."
        )
    try:
        model = _application(extractor)(include_top=False, weights="imagenet")
    except Exception as error:  # Keras raises a bare Exception where the network is absent
        cause = " ".join(str(error).split())
        raise InputError(
            f"train.fine_tune_checkpoint: the ImageNet weights of {extractor.backbone} cannot be had from "
            f"keras.applications ({cause}); where there is no network, give the path of the downloaded .h5 file."
        ) from None
    return {f"{layer.name}/{variable.name}": variable.numpy() for layer in model.layers for variable in layer.weights}


def _application(
    extractor: FeatureExtractor | CenterNetFeatureExtractor,
) -> Callable[..., keras.Model]:
    applications, backbone = keras.applications, extractor.backbone
    match backbone:
        case "mobilenet_v1":
            return lambda **given: applications.MobileNet(alpha=extractor.depth_multiplier, **given)
        case "mobilenet_v2":
            return lambda **given: applications.MobileNetV2(alpha=extractor.depth_multiplier, **given)
        case "resnet50_v1":
            return applications.ResNet50
        case "resnet101_v1":
            return applications.ResNet101
        case "resnet152_v1":
            return applications.ResNet152
    size = re.fullmatch(r"efficientnet[-_](b\d)", backbone)
    assert size, backbone
    return getattr(applications, f"EfficientNet{size[1].upper()}")


def _for_our_resnet(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """keras.applications trained its ResNets with biases before batch norm, which ours has not, on BGR pictures.

    A bias before batch norm only shifts what that subtracts: moving_mean - bias.
    """
    ours = dict(arrays)
    for name in [name for name in ours if name.endswith("_conv/bias")]:
        mean = name.replace("_conv/bias", "_bn/moving_mean")
        if mean in ours:
            ours[mean] = ours[mean] - ours.pop(name)
    if "conv1_conv/kernel" in ours:
        ours["conv1_conv/kernel"] = ours["conv1_conv/kernel"][:, :, ::-1]
    return ours
