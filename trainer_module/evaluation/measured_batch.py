"""The part of a batch that an evaluation keeps, and its form as JSON, in which workers exchange it."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detloom.trainer_module.boxes.masks import as_counts
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth


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


def encode_batches(batches: Sequence[MeasuredBatch]) -> bytes:
    """Return the batches as JSON, with the bytes of arrays in base64; unlike a pickle, it cannot run code."""
    return json.dumps(batches, default=_encode).encode()


def decode_batches(content: bytes) -> list[MeasuredBatch]:
    """Return the batches of `encode_batches`; values and types of arrays are the same."""
    return [
        MeasuredBatch(
            number=row["number"],
            ground_truth=[ImageGroundTruth(**_decode(image)) for image in row["ground_truth"]],
            detections=[ImageDetections(**_decode(image)) for image in row["detections"]],
            losses=row["losses"],
        )
        for row in json.loads(content)
    ]


def _encode(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        return vars(value)
    if value.dtype == object:
        return {"counts": [counts.decode("ascii") for counts in value]}
    return {"dtype": value.dtype.str, "shape": value.shape, "base64": base64.b64encode(value.tobytes()).decode()}


def _decode(value: Any) -> Any:
    match value:
        case {"counts": counts}:
            return as_counts([text.encode() for text in counts])
        case {"dtype": dtype, "shape": shape, "base64": text}:
            return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)
        case dict():
            return {name: _decode(item) for name, item in value.items()}
        case list():
            return tuple(value)
    return value
