"""Metrics of slices of the split: images by features of their examples, objects by size and position of their box."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from absl import logging

from detloom.components.evaluation_requirements import Feature
from detloom.schemas.contracts.arrays import Array
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import ImageSlices, ObjectSlices
from detloom.trainer_module.evaluation.coco_images import ImageGroundTruth
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, summarize_matches
from detloom.trainer_module.evaluation.matches import IOU_50, IOU_THRESHOLDS, Matches

MISSING = "(none)"  # value of an image without the feature
OTHERS = "(others)"  # the values that few images have, if there are too many values
_MAX_VALUES = 100  # of a subject with a slice of their own


@dataclass(frozen=True, kw_only=True)
class SliceMetrics:
    """COCO metrics of the images of a slice; `is_small` marks too few images for reliable metrics."""

    name: str
    metrics: CocoMetrics
    is_small: bool


@dataclass(frozen=True, kw_only=True)
class ObjectRecall:
    """Recall of the objects of a slice by detections of any score; None without objects.

    Attributes:
        recall50: recall at IoU 0.50.
        recall: mean recall over IoU 0.50:0.05:0.95.
    """

    name: str
    num_objects: int
    recall50: float | None
    recall: float | None
    is_small: bool


def split_images(
    ground_truth: Sequence[ImageGroundTruth], features: Sequence[Mapping[str, Feature]], slices: Sequence[ImageSlices]
) -> dict[str, list[int]]:
    """Return the positions of the images of every slice by its name; an image with several values is in several slices.

    Args:
        features: values of the features for the images of `ground_truth`, in its order.

    Raises:
        InputError: a feature with edges is not a number.
    """
    result: dict[str, list[int]] = {}
    for each in slices:
        names = [_names_of_image(each, truth, feature) for truth, feature in zip(ground_truth, features, strict=True)]
        members: dict[str, list[int]] = {}
        for position, of_image in enumerate(names):
            for name in of_image:
                members.setdefault(name, []).append(position)
        result.update(sorted(_merge_rare(each.subject, members).items(), key=lambda item: _sort_key(each, item[0])))
    return result


def _merge_rare(subject: str, members: dict[str, list[int]]) -> dict[str, list[int]]:
    """Put the images of the rarest slices into one, if there are too many slices."""
    if len(members) <= _MAX_VALUES:
        return members
    by_size = sorted(members, key=lambda name: (-len(members[name]), name))
    rare = {position for name in by_size[_MAX_VALUES:] for position in members[name]}
    logging.warning(
        "evaluator.image_slices: got %d values of '%s'; the %d most frequent have a slice of their own.",
        len(members),
        subject,
        _MAX_VALUES,
    )
    return {**{name: members[name] for name in by_size[:_MAX_VALUES]}, f"{subject}={OTHERS}": sorted(rare)}


def measure_slices(
    matches: Matches, label_map: LabelMap, members: Mapping[str, Sequence[int]], min_images: int
) -> tuple[SliceMetrics, ...]:
    """Compute the COCO metrics of each slice from its images only."""

    def measure(rows: Sequence[int]) -> CocoMetrics:
        is_member_I = np.zeros(matches.num_images, bool)
        is_member_I[np.asarray(rows, np.int64)] = True
        return summarize_matches(matches, label_map, is_used_I=is_member_I)

    return tuple(
        SliceMetrics(name=name, metrics=measure(rows), is_small=len(rows) < min_images)
        for name, rows in members.items()
    )


def measure_objects(
    matches: Matches, image_hw: npt.ArrayLike, slices: Sequence[ObjectSlices], min_objects: int
) -> tuple[ObjectRecall, ...]:
    """Compute the recall of the objects of each slice over all classes, without crowds."""
    rows = []
    counted = ~matches.is_crowd
    hw_G2 = np.array(image_hw, np.float64).reshape(-1, 2)[matches.truth.image_index[counted]]
    boxes_G4 = matches.truth_boxes_xywh_px[counted]
    is_found_TG = np.stack([matches.is_found(threshold, counted) for threshold in range(len(IOU_THRESHOLDS))])
    for each in slices:
        bins_G = np.searchsorted(each.edges, _OBJECT_VALUES[each.by](boxes_G4, hw_G2), side="right")
        for position, label in enumerate(_bin_labels(each.edges)):
            inside = bins_G == position
            share_T = is_found_TG[:, inside].mean(axis=1) if inside.any() else None
            num_objects = int(np.count_nonzero(inside))
            row = ObjectRecall(
                name=f"{each.by}={label}",
                num_objects=num_objects,
                recall50=None if share_T is None else float(share_T[IOU_50]),
                recall=None if share_T is None else float(share_T.mean()),
                is_small=num_objects < min_objects,
            )
            rows.append(row)
    return tuple(rows)


def _names_of_image(each: ImageSlices, truth: ImageGroundTruth, features: Mapping[str, Feature]) -> list[str]:
    values = (_IMAGE_VALUES[each.by](truth),) if each.by is not None else features.get(each.feature, ())
    labels = {_label(each, value, truth.image_id) for value in values} or {MISSING}
    return [f"{each.subject}={label}" for label in sorted(labels)]


def _label(each: ImageSlices, value: str | float, image_id: int) -> str:
    if not each.edges:
        return value if isinstance(value, str) else _format_number(value)
    if isinstance(value, str):
        raise InputError(
            f"evaluator.image_slices: got {value!r} as '{each.subject}' of image {image_id}, allowed: numbers, "
            "because edges are set."
        )
    return _bin_labels(each.edges)[int(np.searchsorted(each.edges, value, side="right"))]


def _bin_labels(edges: Sequence[float]) -> list[str]:
    """Return the labels of the bins, one more than edges; lower ends are inclusive."""
    texts = [_format_number(edge) for edge in edges]
    between = [f"{low} to below {high}" for low, high in itertools.pairwise(texts)]
    return [f"below {texts[0]}", *between, f"{texts[-1]} or more"]


def _format_number(value: float) -> str:
    """Format a number with all digits, so that different numbers have different names; integers without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _sort_key(each: ImageSlices, name: str) -> tuple[int, str]:
    """Return a key that sorts bins in their order and other values by name."""
    labels = [f"{each.subject}={label}" for label in _bin_labels(each.edges)] if each.edges else []
    return (labels.index(name) if name in labels else len(labels), name)


def _border_distance(boxes_xywh_px: Array, hw: Array) -> Array:
    start, end = boxes_xywh_px[:, :2], boxes_xywh_px[:, :2] + boxes_xywh_px[:, 2:]
    sides_wh = hw[:, ::-1]
    least: Array = np.minimum(start / sides_wh, 1 - end / sides_wh).min(axis=1)
    return least


_IMAGE_VALUES = {
    "num_boxes": lambda truth: float(np.count_nonzero(~np.asarray(truth.is_crowd, bool))),
    "short_side_px": lambda truth: float(min(truth.image_hw)),
    "aspect_ratio": lambda truth: truth.image_hw[1] / truth.image_hw[0],
}
_OBJECT_VALUES = {
    "side_px": lambda boxes, hw: np.sqrt(boxes[:, 2] * boxes[:, 3]),
    "aspect_ratio": lambda boxes, hw: boxes[:, 2] / np.maximum(boxes[:, 3], 1e-9),
    "relative_area": lambda boxes, hw: boxes[:, 2] * boxes[:, 3] / (hw[:, 0] * hw[:, 1]),
    "border_distance": _border_distance,
}
