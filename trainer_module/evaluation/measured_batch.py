"""The part of a batch that an evaluation keeps, and its form as bytes, in which workers exchange it."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from detloom.trainer_module.boxes.masks import as_counts
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

_Image = TypeVar("_Image", ImageGroundTruth, ImageDetections)
_Arrays = Mapping[str, npt.NDArray[Any]]
_TRUTH, _FOUND, _LOSS = "truth.", "found.", "loss."
_ROWS, _BYTES = ".rows", ".bytes"  # number of rows of each image; size of each value


@dataclass(frozen=True)
class MeasuredBatch:
    """Ground truth and detections of the images of a batch.

    Attributes:
        number: position of the batch in the split.
        losses: means over the images.
    """

    number: int
    ground_truth: list[ImageGroundTruth]
    detections: list[ImageDetections]
    losses: dict[str, float]


def pack_batches(batches: Sequence[MeasuredBatch]) -> bytes:
    """Return the batches as an NPZ file without pickled objects."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "numbers": np.array([batch.number for batch in batches]),
        "sizes": np.array([len(batch.ground_truth) for batch in batches], np.int64),
    }
    for name in batches[0].losses if batches else ():
        arrays[f"{_LOSS}{name}"] = np.array([batch.losses[name] for batch in batches])
    arrays |= _pack_images(_TRUTH, [image for batch in batches for image in batch.ground_truth])
    arrays |= _pack_images(_FOUND, [image for batch in batches for image in batch.detections])
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack_batches(data: bytes) -> list[MeasuredBatch]:
    """Return the batches of `pack_batches`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    sizes = arrays["sizes"]
    ground_truth = _unpack_images(ImageGroundTruth, _TRUTH, arrays, sizes.sum())
    detections = _unpack_images(ImageDetections, _FOUND, arrays, sizes.sum())
    losses = {name.removeprefix(_LOSS): values for name, values in arrays.items() if name.startswith(_LOSS)}
    ends = np.cumsum(sizes)
    return [
        MeasuredBatch(
            number=int(arrays["numbers"][i]),
            ground_truth=ground_truth[end - size : end],
            detections=detections[end - size : end],
            losses={name: float(values[i]) for name, values in losses.items()},
        )
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


def _pack_images(prefix: str, images: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return one array per field, with the rows of all images; fields that are None are left out."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for field in dataclasses.fields(images[0]) if images else ():
        name, values = f"{prefix}{field.name}", [getattr(image, field.name) for image in images]
        if values[0] is None:
            continue
        if not isinstance(values[0], np.ndarray):
            arrays[name] = np.array(values)
            continue
        arrays[f"{name}{_ROWS}"] = np.array([len(value) for value in values])
        rows = np.concatenate(values)
        if rows.dtype == object:
            arrays[f"{name}{_BYTES}"] = np.array([len(value) for value in rows], np.int64)
            rows = np.frombuffer(b"".join(rows), np.uint8)
        arrays[name] = rows
    return arrays


def _unpack_images(cls: type[_Image], prefix: str, arrays: _Arrays, num_images: int) -> list[_Image]:
    columns: dict[str, Sequence[Any]] = {}
    for field in dataclasses.fields(cls):
        name = f"{prefix}{field.name}"
        if name not in arrays:
            continue
        values: Any = arrays[name]
        if f"{name}{_ROWS}" not in arrays:  # numbers, or tuples of them
            columns[field.name] = [tuple(value) if isinstance(value, list) else value for value in values.tolist()]
            continue
        if f"{name}{_BYTES}" in arrays:
            values = as_counts(_cut(values.tobytes(), arrays[f"{name}{_BYTES}"]))
        columns[field.name] = _cut(values, arrays[f"{name}{_ROWS}"])
    return [cls(**{name: values[i] for name, values in columns.items()}) for i in range(num_images)]


def _cut(values: Any, sizes: npt.NDArray[Any]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]
