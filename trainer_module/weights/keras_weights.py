"""Read backbone weights from Keras files by layer name, with h5py; no model in a file is loaded."""

import io
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.schemas.model.config import IMAGENET
from detloom.schemas.model.faster_rcnn import FasterRcnnFeatureExtractor
from detloom.schemas.model.network import FeatureExtractor

_Extractor = FeatureExtractor | CenterNetFeatureExtractor | FasterRcnnFeatureExtractor
KERAS_ENDINGS = (".h5", ".hdf5", ".keras")
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
# Limit for a file, for the weights in an archive and for their arrays: a small file can claim any size. The largest
# backbone, EfficientNet-B7, has 0.25 GiB, with optimizer state three times that.
_MAX_BYTES = 2 << 30
# Errors of h5py and zipfile on a corrupt or malicious file.
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
_APPLICATIONS = {  # by backbone, except EfficientNets
    "mobilenet_v1": "MobileNet",
    "mobilenet_v2": "MobileNetV2",
    "resnet50_v1": "ResNet50",
    "resnet101_v1": "ResNet101",
    "resnet152_v1": "ResNet152",
    "resnet50_v2": "ResNet50V2",
    "resnet101_v2": "ResNet101V2",
}
# Variables of a layer in Keras 3's numbering in .weights.h5, by their count.
_NUMBERED = {1: ("kernel",), 2: ("kernel", "bias"), 4: ("gamma", "beta", "moving_mean", "moving_variance")}


def read_keras_weights(path: str, extractor: _Extractor | None) -> dict[str, np.ndarray]:
    """Read arrays by "layer/variable", converted for our backbone.

    Args:
        path: a file, or `imagenet`.
        extractor: None for a detector with its own backbone.

    Raises:
        InputError: if it cannot be read or downloaded.
    """
    arrays = _download(extractor) if path == IMAGENET else _read_file(path)
    is_other = isinstance(extractor, FeatureExtractor | FasterRcnnFeatureExtractor) and extractor.backbone.startswith(
        "resnet"
    )
    return _for_our_resnet(arrays) if is_other else arrays  # CenterNet's ResNets equal those of keras.applications


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
    """Return the datasets to read by "layer/variable"; all are checked before any is read."""
    datasets = dict(_datasets(root))
    for dataset in datasets.values():
        if dataset.external or dataset.is_virtual:
            raise ValueError(f"{dataset.name} stores its values in another file")
    _check_size("the content", sum(_num_bytes(dataset) for dataset in datasets.values()))
    return datasets


def _num_bytes(dataset: h5py.Dataset) -> int:
    """Return the memory for reading a dataset: one chunk of a resizable dataset can be larger than the whole."""
    chunk = dataset.dtype.itemsize * math.prod(dataset.chunks) if dataset.chunks else 0
    return max(int(dataset.nbytes), chunk)


def _datasets(root: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield datasets of both layouts: Keras 3 numbers a layer's variables, Keras 2 names them. Links are ignored."""
    layers: list[tuple[str, Any]] = []
    root.visititems(lambda name, node: layers.append((name, node)))
    for name, node in layers:
        if not isinstance(name, str):  # h5py returns bytes for invalid UTF-8
            raise ValueError(f"the name {name!r} in it is not text")
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


def _download(extractor: _Extractor | None) -> dict[str, np.ndarray]:
    if extractor is None or extractor.backbone.startswith("hourglass"):
        raise InputError(
            f"train.fine_tune_checkpoint: got '{IMAGENET}', but this detector has its own backbone; allowed: one of "
            "its own checkpoints, or a Keras file with the names of its layers."
        )
    if extractor.backbone == "inception_resnet_v2":
        raise InputError(
            f"train.fine_tune_checkpoint: got '{IMAGENET}', but keras.applications does not name the layers of "
            "inception_resnet_v2; allowed: a checkpoint of the Object Detection API."
        )
    try:
        model = _application(extractor)
    except Exception as error:  # Keras raises a bare Exception without network access
        cause = " ".join(str(error).split())
        raise InputError(
            f"train.fine_tune_checkpoint: the ImageNet weights of {extractor.backbone} cannot be downloaded from "
            f"keras.applications ({cause}); without network access, give the path of the downloaded .h5 file."
        ) from None
    return {f"{layer.name}/{variable.name}": variable.numpy() for layer in model.layers for variable in layer.weights}


def _application(extractor: _Extractor) -> keras.Model:
    """Build the model of keras.applications with its ImageNet weights."""
    backbone = extractor.backbone
    size = re.fullmatch(r"efficientnet[-_](b\d)", backbone)
    name = f"EfficientNet{size[1].upper()}" if size else _APPLICATIONS[backbone]
    width = {"alpha": extractor.depth_multiplier} if backbone.startswith("mobilenet") else {}
    return getattr(keras.applications, name)(**width, include_top=False, weights="imagenet")


def _for_our_resnet(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert ResNets of keras.applications: they have biases before batch norm, which ours lack, and use BGR images.

    A bias before batch norm only shifts the mean that batch norm subtracts: moving_mean - bias.
    """
    ours = dict(arrays)
    for name in [name for name in ours if name.endswith("_conv/bias")]:
        mean = name.replace("_conv/bias", "_bn/moving_mean")
        if mean in ours:
            ours[mean] = ours[mean] - ours.pop(name)
    if "conv1_conv/kernel" in ours:
        ours["conv1_conv/kernel"] = ours["conv1_conv/kernel"][:, :, ::-1]
    return ours
