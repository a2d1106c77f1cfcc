"""Read and check COCO files of any origin: an annotation file and a results file."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from detloom.components.evaluator.measurements import Split
from detloom.components.evaluator.slices import Feature
from detloom.components.example_gen.coco_masks import encode_mask, measure_mask
from detloom.components.example_gen.sources.json_values import is_pixel_count, is_text, name_type, show, to_number
from detloom.schemas.contracts.keypoint_sigmas import COCO_SIGMAS, sigmas_of
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    boxes_xywh_px_to_yxyx_rel,
)

MAX_FILE_BYTES = 2 * 2**30  # parsed, it needs about ten times as much memory
_MAX_ID = 2**63 - 1  # int64
_MAX_SIDE_PX = 2**20
_MAX_NUMBER = 1e9  # coordinates, areas and scores: comparisons of squares and sums stay exact enough
_MAX_EXTRA = 1000  # features of an image, values of a feature, keypoints of an object
_LISTS = ("images", "annotations", "categories")
_FLAGS = ("difficult", "group_of")  # extensions of COCO that the evaluator writes for PASCAL VOC and Open Images
_KINDS = ("bbox", "segmentation", "keypoints")

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class CocoSplit:
    """The content of an annotation file.

    Attributes:
        path: the file, for messages.
        split: images by ascending id; boxes may exceed [0, 1] if they exceed the image in the file.
        file_names: file name of each image of `split`, or its id as text if the file names none.
        dataset: the content in the COCO API's format, reduced to the keys that evaluation needs: annotations have
            `id`, `image_id`, `category_id`, `bbox`, `area`, `iscrowd`, and optionally `segmentation` and `keypoints`
            with `num_keypoints`, which are not checked here (see evaluate_coco_files.py).
    """

    path: Path
    split: Split
    file_names: list[str]
    dataset: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CocoDetections:
    """The content of a results file.

    Attributes:
        detections: one entry per image of the split, in its order; detections by descending score, ties in the order
            of the file. Detections with keypoints but without `bbox` have the box around the keypoints.
        results: the rows of the file, reduced to the keys that evaluation needs, with `area` as added by pycocotools'
            `loadRes`; masks are compressed run lengths. A missing `bbox` of a mask is added.
    """

    detections: list[ImageDetections]
    results: list[dict[str, Any]]


def read_coco_ground_truth(path: Path) -> CocoSplit:
    """Read an annotation file.

    An unused category 0 is dropped (Roboflow writes one named after the project). A missing `iscrowd` is 0, a missing
    `area` the area of the box.

    Raises:
        InputError: the file is not a valid COCO annotation file; the message names file and entry.
    """
    content = _read_json(path)
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in _LISTS):
        got = None
        if isinstance(content, dict):
            missing = next(key for key in _LISTS if not isinstance(content.get(key), list))
            got = f"an object without the list {missing!r}"
        allowed = "a COCO annotation file, an object with 'images', 'annotations' and 'categories'"
        raise InputError(f"{_name(path)}: got {got or name_type(content)}, allowed: {allowed}.")
    images = sorted(_read_rows(path, "images", content["images"], _read_image), key=lambda image: int(image["id"]))
    _check_unique(path, "images", [image["id"] for image in images])
    hw_by_id = {image["id"]: (image["height"], image["width"]) for image in images}
    categories = _read_rows(path, "categories", content["categories"], _read_category)
    _check_unique(path, "categories", [category["id"] for category in categories])
    known = {category["id"] for category in categories}
    annotations = _read_rows(
        path, "annotations", content["annotations"], lambda row: _read_annotation(row, hw_by_id, known)
    )
    _check_unique(path, "annotations", [row["id"] for row in annotations])
    if not any(row["category_id"] == 0 for row in annotations):
        categories = [category for category in categories if category["id"] != 0]
    return CocoSplit(
        path=path,
        split=Split(
            ground_truth=_group_truth(hw_by_id, annotations),
            features=[image.pop("features") for image in images],
            label_map=_read_label_map(path, categories),
            keypoints=_keypoints_of(categories),
        ),
        file_names=[image["file_name"] for image in images],
        dataset={"info": {}, "images": images, "categories": categories, "annotations": annotations},
    )


def read_coco_detections(path: Path, truth: CocoSplit) -> CocoDetections:
    """Read a results file: a list of detections of the images of `truth`.

    All rows must have the same keys of `bbox`, `segmentation` and `keypoints`; `[]` counts as missing.

    Raises:
        InputError: the file is not a valid COCO results file; the message names file and row.
    """
    content = _read_json(path)
    if not isinstance(content, list):
        raise InputError(
            f"{_name(path)}: got {name_type(content)}, allowed: a COCO results file, a list of detections."
        )
    kinds = _kinds_of(content[0]) if content else ()
    hw_by_id = {image.image_id: image.image_hw for image in truth.split.ground_truth}
    known = set(truth.split.label_map.class_ids)
    results = _read_rows(path, "results", content, lambda row: _read_result(row, kinds, hw_by_id, known))
    boxes = [row["bbox"] if "bbox" in row else _box_of_keypoints(row["keypoints"]) for row in results]
    return CocoDetections(detections=_group_detections(hw_by_id, results, boxes), results=results)


def _name(path: Path) -> str:
    return escape(str(path))


def _read_json(path: Path) -> Any:
    name = _name(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name[:200]}: cannot be read ({reason}).") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{name}: got more than {MAX_FILE_BYTES} bytes, allowed: at most that; split the file.")
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}: not JSON ({error.msg} in column {error.colno}).") from None
    except RecursionError:
        raise InputError(f"{name}: not a COCO file: the JSON is nested too deeply.") from None
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise InputError(f"{name}: not JSON ({error}).") from None


def _read_rows(path: Path, list_name: str, rows: Sequence[Any], read: Callable[[dict[str, Any]], _T]) -> list[_T]:
    """Read each row by `read`; turn a ValueError into an InputError with file and row."""
    found = []
    for index, row in enumerate(rows):
        try:
            if not isinstance(row, dict):
                raise ValueError(f"got {name_type(row)}, allowed: an object")
            found.append(read(row))
        except ValueError as error:
            raise InputError(f"{_name(path)}: {list_name}[{index}]: {error}.") from None
    return found


def _check_unique(path: Path, list_name: str, ids: Sequence[int]) -> None:
    twice = [each for each, count in Counter(ids).items() if count > 1]
    if twice:
        raise InputError(f"{_name(path)}: {list_name}: duplicate id {min(twice)}.")


def _read_id(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or abs(value) > _MAX_ID:
        raise ValueError(f"{key!r} must be an integer, got {_show(row, key)}")
    return value


def _read_known_id(row: Mapping[str, Any], key: str, known: Mapping[int, Any] | set[int], of: str) -> int:
    value = _read_id(row, key)
    if value not in known:
        raise ValueError(f"{key!r} {value} is not among the {of}")
    return value


def _read_number(row: Mapping[str, Any], key: str) -> float:
    number = to_number(row.get(key))
    if number is None or not -_MAX_NUMBER <= number <= _MAX_NUMBER:  # which NaN never is
        raise ValueError(f"{key!r} must be a finite number, got {_show(row, key)}")
    return number


def _read_numbers(row: Mapping[str, Any], key: str, allowed: str, length: int | None = None) -> list[float]:
    """Return the list unchanged: integers stay integers."""
    values = row.get(key)
    if type(values) is not list or (length is not None and len(values) != length):
        raise ValueError(f"{key!r} must be {allowed}, got {_show(row, key)}")
    for value in values:
        if type(value) not in (float, int) or not -_MAX_NUMBER <= value <= _MAX_NUMBER:
            raise ValueError(f"{key!r} must be {allowed}, all finite, got {show(value)} in {_show(row, key)}")
    return values


def _show(row: Mapping[str, Any], key: str) -> str:
    return show(row[key]) if key in row else "nothing"


def _read_box(row: Mapping[str, Any]) -> list[float]:
    box = _read_numbers(row, "bbox", "four numbers, x, y, width and height", 4)
    if box[2] < 0 or box[3] < 0:
        raise ValueError(f"'bbox' has a negative width or height, got {show(box)}, allowed: 0 or more")
    return box


def _read_image(row: dict[str, Any]) -> dict[str, Any]:
    image: dict[str, Any] = {"id": _read_id(row, "id")}
    for key in ("height", "width"):
        if not is_pixel_count(row.get(key)) or not 1 <= row[key] <= _MAX_SIDE_PX:
            raise ValueError(f"{key!r} must be an integer from 1 to {_MAX_SIDE_PX}, got {_show(row, key)}")
        image[key] = int(row[key])
    name = row.get("file_name")
    if name is not None and not is_text(name):
        raise ValueError(f"'file_name' must be text, got {show(name)}")
    return {**image, "file_name": name or str(image["id"]), "features": _read_features(row.get("features"))}


def _read_features(value: Any) -> dict[str, Feature]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_EXTRA or not all(map(is_text, value)):
        raise ValueError(f"'features' must be an object with a list for each name, got {show(value)}")
    return {key: tuple(map(_read_feature_value, _read_list(key, values))) for key, values in value.items()}


def _read_list(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or len(values) > _MAX_EXTRA:
        raise ValueError(f"'features': {show(key)} must be a list of at most {_MAX_EXTRA} values, got {show(values)}")
    return values


def _read_feature_value(value: Any) -> str | float:
    number = to_number(value)
    if isinstance(value, str) and (not value or is_text(value)):
        return value
    if number is None or not np.isfinite(number):
        raise ValueError(f"'features' must be text or finite numbers, got {show(value)}")
    return number


def _read_category(row: dict[str, Any]) -> dict[str, Any]:
    if not is_text(row.get("name")):
        raise ValueError(f"'name' must be text, got {_show(row, 'name')}")
    return {"id": _read_id(row, "id"), "name": row["name"], **_read_point_names(row)}


def _read_point_names(row: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a category's keypoints and their tolerances, which the evaluator writes; {} without them."""
    names = row.get("keypoints")
    if names in (None, []):
        return {}
    if not isinstance(names, list) or len(names) > _MAX_EXTRA or not all(map(is_text, names)):
        raise ValueError(f"'keypoints' must be a list of names, got {show(names)}")
    if row.get("keypoint_sigmas") is None:
        return {"keypoints": names}
    sigmas = _read_numbers(row, "keypoint_sigmas", "a positive number for each of the keypoints", len(names))
    if min(sigmas) <= 0:
        raise ValueError(f"'keypoint_sigmas' must be above 0, got {show(sigmas)}")
    return {"keypoints": names, "keypoint_sigmas": sigmas}


def _keypoints_of(categories: Sequence[Mapping[str, Any]]) -> Keypoints | None:
    """Return the keypoints of the first category that has some; without tolerances in the file, 17 have COCO's."""
    for category in categories:
        if names := category.get("keypoints"):
            usual = tuple(COCO_SIGMAS.values()) if len(names) == len(COCO_SIGMAS) else sigmas_of(names, {})
            return Keypoints(category["name"], tuple(names), tuple(category.get("keypoint_sigmas", usual)))
    return None


def _read_label_map(path: Path, categories: Sequence[Mapping[str, Any]]) -> LabelMap:
    ids = [category["id"] for category in categories]
    if ids and min(ids) < 1:
        # Raised here because the label map's message could not mention the results file.
        raise InputError(
            f"{_name(path)}: categories: got id {min(ids)}, allowed: 1 or more (0 is background); "
            "increase all category ids in this file and in the results file."
        )
    try:
        return LabelMap(tuple((category["id"], category["name"]) for category in categories))
    except InputError as error:
        raise InputError(f"{_name(path)}: categories: {error}") from None


def _read_annotation(
    row: dict[str, Any], hw_by_id: Mapping[int, tuple[int, int]], categories: set[int]
) -> dict[str, Any]:
    box = _read_box(row)
    crowd = row.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise ValueError(f"'iscrowd' must be 0 or 1, got {show(crowd)}")
    annotation = {
        "id": _read_id(row, "id"),
        "image_id": _read_known_id(row, "image_id", hw_by_id, "images"),
        "category_id": _read_known_id(row, "category_id", categories, "categories"),
        "bbox": box,
        "area": box[2] * box[3] if row.get("area") is None else _read_area(row),
        "iscrowd": int(crowd),
    }
    for key in _FLAGS:
        if row.get(key, 0) not in (0, 1):
            raise ValueError(f"{key!r} must be 0 or 1, got {show(row[key])}")
        annotation[key] = int(row.get(key, 0))
    for key in ("segmentation", "keypoints", "num_keypoints"):
        if row.get(key) not in (None, []):
            annotation[key] = row[key]
    return annotation


def _read_area(row: Mapping[str, Any]) -> float:
    area = _read_number(row, "area")
    if area < 0:
        raise ValueError(f"'area' must be 0 or more, got {area:g}")
    return area


def _kinds_of(row: Any) -> tuple[str, ...]:
    """Return which of `bbox`, `segmentation` and `keypoints` a results row has."""
    return tuple(key for key in _KINDS if isinstance(row, dict) and row.get(key) not in (None, []))


def _read_result(
    row: dict[str, Any], kinds: tuple[str, ...], hw_by_id: Mapping[int, tuple[int, int]], categories: set[int]
) -> dict[str, Any]:
    if not kinds:
        raise ValueError("has none of 'bbox', 'segmentation' and 'keypoints', allowed: at least one")
    if _kinds_of(row) != kinds:
        got = " and ".join(_kinds_of(row)) or "none of them"
        raise ValueError(f"has {got}, allowed: {' and '.join(kinds)} as in the first detection")
    image_id = _read_known_id(row, "image_id", hw_by_id, "images of the ground truth")
    result: dict[str, Any] = {
        "image_id": image_id,
        "category_id": _read_known_id(row, "category_id", categories, "categories of the ground truth"),
        "score": _read_number(row, "score"),
    }
    if "segmentation" in kinds:
        result["segmentation"] = encode_mask(row["segmentation"], hw_by_id[image_id])
        result["area"], result["bbox"] = measure_mask(result["segmentation"])
    if "keypoints" in kinds:
        result["keypoints"] = read_keypoints(row)
        of_points = _box_of_keypoints(result["keypoints"])
        result.setdefault("area", of_points[2] * of_points[3])
    # As in `loadRes`, the area is that of the box if there is one, also for masks and keypoints.
    if "bbox" in kinds:
        result["bbox"] = _read_box(row)
        result["area"] = result["bbox"][2] * result["bbox"][3]
    return result


def read_keypoints(row: Mapping[str, Any]) -> list[float]:
    """Read the keypoints of a row: x, y and visibility of at least one point.

    Raises:
        ValueError: the keypoints are invalid; the message names the problem.
    """
    allowed = f"x, y and visibility of 1 to {_MAX_EXTRA} points"
    keypoints = _read_numbers(row, "keypoints", allowed)
    if not keypoints or len(keypoints) % 3 or len(keypoints) > 3 * _MAX_EXTRA:
        raise ValueError(f"'keypoints' must be {allowed}, got {len(keypoints)} numbers")
    return keypoints


def _box_of_keypoints(keypoints: Sequence[float]) -> list[float]:
    x, y = keypoints[0::3], keypoints[1::3]
    return [min(x), min(y), max(x) - min(x), max(y) - min(y)]


def _group_truth(
    hw_by_id: Mapping[int, tuple[int, int]], annotations: Sequence[Mapping[str, Any]]
) -> list[ImageGroundTruth]:
    rows_by_id: dict[int, list[Mapping[str, Any]]] = {image_id: [] for image_id in hw_by_id}
    for row in annotations:
        rows_by_id[row["image_id"]].append(row)
    return [
        ImageGroundTruth(
            image_id=image_id,
            image_hw=hw_by_id[image_id],
            boxes_yxyx_rel=boxes_xywh_px_to_yxyx_rel([row["bbox"] for row in rows], hw_by_id[image_id]),
            class_ids=np.array([row["category_id"] for row in rows], np.int64),
            is_crowd=np.array([row["iscrowd"] for row in rows], bool),
            area_px=np.array([row["area"] for row in rows], np.float64),
            given_xywh_px=np.array([row["bbox"] for row in rows], np.float64).reshape(-1, 4),
            is_difficult=np.array([row["difficult"] for row in rows], bool),
            is_group_of=np.array([row["group_of"] for row in rows], bool),
        )
        for image_id, rows in rows_by_id.items()
    ]


def _group_detections(
    hw_by_id: Mapping[int, tuple[int, int]], results: Sequence[Mapping[str, Any]], boxes_xywh_px: Sequence[list[float]]
) -> list[ImageDetections]:
    rows_by_id: dict[int, list[int]] = {image_id: [] for image_id in hw_by_id}
    for position, row in enumerate(results):
        rows_by_id[row["image_id"]].append(position)
    detections = []
    for image_id, positions in rows_by_id.items():
        positions.sort(key=lambda position: -results[position]["score"])  # stable: keeps the order of ties
        detections.append(
            ImageDetections(
                image_id=image_id,
                boxes_yxyx_rel=boxes_xywh_px_to_yxyx_rel([boxes_xywh_px[i] for i in positions], hw_by_id[image_id]),
                scores=np.array([results[i]["score"] for i in positions], np.float64),
                class_ids=np.array([results[i]["category_id"] for i in positions], np.int64),
                given_xywh_px=np.array([boxes_xywh_px[i] for i in positions], np.float64).reshape(-1, 4),
            )
        )
    return detections
