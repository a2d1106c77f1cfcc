"""The protocol of runtimes: encoded images in, detections out. Imports no TensorFlow."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.model_files import has_pixel_boxes

Rows = dict[str, npt.NDArray[Any]]
"""Detections of one image, without padding; see `schemas/contracts/detections.py`."""


class FailedCallError(InputError):
    """A model did not return detections for a batch.

    Attributes:
        is_refusal: the model cannot read one of the images; False if it failed for another reason.
    """

    def __init__(self, reason: str, *, is_refusal: bool) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal


class Runtime(Protocol):
    """A loaded model: images in, detections out."""

    def detect(self, images: Sequence[EncodedImage]) -> list[Rows]:
        """Return the detections of each image, in order; boxes are relative to the image.

        Raises:
            InputError: an image cannot be decoded (`FailedCallError` if the model says so), or the outputs are not
                those of an exported detector.
        """


class ContractRuntime(ABC):
    """A `Runtime` whose model has the outputs of its contract: a whole model of a version, not a TFLite file."""

    def __init__(self, model_dir: str) -> None:
        """Read the units of the boxes; see `has_pixel_boxes` for errors."""
        self.model_dir = model_dir
        self.has_pixel_boxes = has_pixel_boxes(model_dir)

    @abstractmethod
    def call(self, images: Sequence[EncodedImage]) -> dict[str, npt.NDArray[Any]]:
        """Return the outputs for a batch, as in `schemas/contracts/detections.py`: padded, in the contract's units.

        Raises:
            FailedCallError: with the reason.
            InputError: an image cannot be decoded.
            ValueError: see `check_outputs`.
        """

    def detect(self, images: Sequence[EncodedImage]) -> list[Rows]:
        """See `Runtime`."""
        try:
            outputs = self.call(images)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{self.model_dir}: {error}; export the model again.") from None
        if self.has_pixel_boxes:
            hw_B12 = np.array([[image.image_hw] for image in images], np.float32)
            outputs[names.BOXES] = outputs[names.BOXES] / np.tile(hw_B12, 2)
            if names.KEYPOINTS in outputs:
                outputs[names.KEYPOINTS] = outputs[names.KEYPOINTS] / hw_B12[:, np.newaxis]
        return split_rows(outputs)


def detect_each(runtime: Runtime, images: Sequence[EncodedImage], batch_size: int = 0) -> Iterator[Rows | InputError]:
    """Yield the detections of each image, or why there are none; a batch that fails is divided into images.

    Args:
        batch_size: smaller batches are filled with the last image.
    """
    filled = list(images) + list(images[-1:]) * (batch_size - len(images))
    try:
        found: list[Rows | InputError] = [*runtime.detect(filled)[: len(images)]] if images else []
    except InputError as error:
        if len(images) > 1:
            for image in images:
                yield from detect_each(runtime, [image], batch_size)
            return
        found = [error]
    yield from found


def check_outputs(
    outputs: Mapping[str, npt.NDArray[Any]], specification: Mapping[str, names.Output], sizes: Mapping[str | int, int]
) -> None:
    """Check type and shape of the outputs for a batch, and the number of detections.

    Args:
        sizes: those that are known, by letter of `schemas/contracts/detections.py`.

    Raises:
        ValueError: with the output, what it is and what is allowed.
    """
    known = dict(sizes)
    for name in filter(outputs.__contains__, specification):
        value, shape = outputs[name], specification[name].shape
        fits = value.dtype.kind in "fiu" and value.ndim == len(shape)
        for size, got in zip(shape, value.shape, strict=False):
            fits = fits and got == known.setdefault(size, size if isinstance(size, int) else got)
        if not fits:
            allowed = f"numbers [{', '.join(str(known.get(size, size)) for size in shape)}]"
            raise ValueError(f"the model returned {name} as {value.dtype} {list(value.shape)}, allowed: {allowed}")
    counts = outputs.get(names.NUM_DETECTIONS)
    if counts is not None and not ((counts >= 0) & (counts <= known["M"])).all():
        raise ValueError(f"the model returned {names.NUM_DETECTIONS} {counts.tolist()}, allowed: 0 to {known['M']}")


def split_rows(outputs: Mapping[str, npt.NDArray[Any]]) -> list[Rows]:
    """Split the outputs of a batch into the detections of each image, without padding; class ids become int64."""
    counts = np.rint(outputs[names.NUM_DETECTIONS]).astype(int)
    columns = {name: value for name, value in outputs.items() if name != names.NUM_DETECTIONS}
    columns[names.CLASSES] = np.rint(columns[names.CLASSES]).astype(np.int64)
    return [{name: value[i, :count] for name, value in columns.items()} for i, count in enumerate(counts)]
