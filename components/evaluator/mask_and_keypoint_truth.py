"""Masks and keypoints in the ground truth of serialized tf.Examples, for models that return them."""

from dataclasses import dataclass

import numpy as np

from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.arrays import Array, BoolArray, Float32Array
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import encode_mask_pngs
from detloom.trainer_module.data.records import ExampleFeatures


@dataclass(frozen=True, kw_only=True)
class WantedShapes:
    """The shapes to read, beyond boxes.

    Attributes:
        keypoint_class_id, num_keypoints: class whose objects have keypoints, and their number; 0 reads none.
    """

    masks: bool = False
    keypoint_class_id: int = 0
    num_keypoints: int = 0


def read_shapes(
    features: ExampleFeatures, wanted: WantedShapes, is_crowd: BoolArray, image_hw: tuple[int, int]
) -> dict[str, Array]:
    """Return the columns `mask_counts` and `keypoints_yx_rel` of `ImageGroundTruth` that are wanted.

    Masks are left out if an object that is not a crowd has none.

    Raises:
        ValueError: for a mask or keypoints that cannot be read, with the end of a sentence.
    """
    columns: dict[str, Array] = {}
    if wanted.masks:
        pngs = features.texts(keys.MASK) or [b""] * len(is_crowd)
        if len(pngs) != len(is_crowd):
            raise ValueError(f"has {len(is_crowd)} boxes, but {len(pngs)} masks")
        if all(png or crowd for png, crowd in zip(pngs, is_crowd.tolist(), strict=True)):
            try:
                columns["mask_counts"] = encode_mask_pngs(pngs, image_hw)
            except (OSError, SyntaxError, InputError) as error:
                raise ValueError(f"has a mask that cannot be read ({error})") from None
    if wanted.num_keypoints:
        columns["keypoints_yx_rel"] = _read_keypoints(features, wanted)
    return columns


def _read_keypoints(features: ExampleFeatures, wanted: WantedShapes) -> Float32Array:
    """Return keypoints [G, P, 2] by the rules of `example_parser.py`."""
    class_ids = features.ints(keys.CLASS_ID)
    points = np.stack([features.floats(keys.KEYPOINT_Y), features.floats(keys.KEYPOINT_X)], axis=1)
    visibility, lengths = features.ints(keys.KEYPOINT_VISIBILITY), features.ints(keys.NUM_KEYPOINTS)
    if len(visibility) not in (0, len(points)) or len(lengths) not in (0, len(class_ids)):
        raise ValueError("has keypoint features of different lengths")
    if len(visibility):
        points = np.where(visibility[:, np.newaxis] > 0, points, np.nan)
    if lengths.sum() != len(points) and len(points) == wanted.num_keypoints * len(class_ids):
        lengths = np.full(len(class_ids), wanted.num_keypoints)  # the Object Detection API counts labelled points
    if lengths.sum() != len(points) or (lengths < 0).any():
        raise ValueError(f"has {len(points)} keypoints, but its boxes have {lengths.sum()}")
    found = np.full((len(class_ids), wanted.num_keypoints, 2), np.nan, np.float32)
    ends = np.cumsum(lengths)
    for row, (class_id, end, length) in enumerate(zip(class_ids, ends, lengths, strict=False)):
        if class_id != wanted.keypoint_class_id or not length:
            continue
        if length != wanted.num_keypoints:
            raise ValueError(f"has an object with {length} keypoints, allowed: 0 or {wanted.num_keypoints}")
        found[row] = points[end - length : end]
    return found
