"""Curves of masks and keypoints by faster-coco-eval, equal to pycocotools to the last digit; no TensorFlow.

It needs a dictionary for each detection; boxes have a matcher of their own (matches.py).
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from detloom.schemas.contracts.arrays import Float64Array, Int64Array

IouType = Literal["bbox", "segm", "keypoints"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable Python's garbage collector of cycles, which would scan millions of small dictionaries repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def compute_coco_curves(
    truth_dataset: Mapping[str, Any],
    found_annotations: Sequence[Mapping[str, Any]],
    *,
    iou_type: IouType = "bbox",
    sizes: Sequence[tuple[str, float, float]] = (),
    sigmas: Sequence[float] | None = None,
) -> tuple[Float64Array, Float64Array]:
    """Compute precision [T, R, K, A, M] and recall [T, K, A, M] of the COCO API; K: categories by ascending id.

    Nothing is checked: external data have to be validated before, above all masks, which C code trusts. The arguments
    are not modified.

    Args:
        truth_dataset: content of a COCO annotation file. Masks are compressed runs; annotation ids are ignored.
        found_annotations: rows of a COCO results file; a missing `area` is that of `bbox`.
        sizes: sizes in addition to the API's own, as (name, minimum, maximum area in square pixels).
        sigmas: tolerance of each keypoint; None uses those of COCO's 17.
    """
    # Copy the dictionaries, because the library writes into them, and renumber ids: it confuses image ids beyond 2**53,
    # and treats a match with the annotation id 0 as no match.
    images, image_ids = _number_by_id(truth_dataset["images"])
    categories, class_ids = _number_by_id(truth_dataset["categories"])
    datasets = []
    for annotations in (truth_dataset["annotations"], found_annotations):
        rows = [
            {**row, "id": key, "image_id": image_ids[row["image_id"]], "category_id": class_ids[row["category_id"]]}
            for key, row in enumerate(annotations, start=1)
        ]
        datasets.append({"info": {}, "images": images, "categories": categories, "annotations": rows})
    truth, found = datasets
    for row in found["annotations"]:
        row["iscrowd"] = 0
        if "area" not in row:
            row["area"] = row["bbox"][2] * row["bbox"][3]
    return _curves_of_faster_coco_eval(truth, found, iou_type, sizes, sigmas)


def _number_by_id(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Return the rows with the ids 1, 2, ... in the order of their old ids, and the new id of each old one."""
    new_ids = {old: new for new, old in enumerate(sorted(row["id"] for row in rows), start=1)}
    return [{**row, "id": new_ids[row["id"]]} for row in rows], new_ids


def _curves_of_faster_coco_eval(
    truth: dict[str, Any],
    found: dict[str, Any],
    iou_type: IouType,
    sizes: Sequence[tuple[str, float, float]],
    sigmas: Sequence[float] | None,
) -> tuple[Float64Array, Float64Array]:
    from faster_coco_eval import COCO, COCOeval_faster

    def quiet(*_: object) -> None:
        return None

    coco_truth, coco_found = COCO(truth, print_function=quiet), COCO(found, print_function=quiet)
    evaluation = COCOeval_faster(coco_truth, coco_found, iouType=iou_type, print_function=quiet)
    # It leaves out classes without keypoints; pycocotools does not.
    params = evaluation.params
    params.catIds = sorted(coco_truth.getCatIds())
    standard_R = np.asarray(params.recThrs)
    # Add thresholds below 0.01, each half of the one before: `_round_as_pycocotools` distinguishes one object from two.
    halvings = np.arange(1, (len(truth["annotations"]) // 200).bit_length() + 1)
    recall_R = np.unique(np.concatenate([standard_R, 0.01 / 2.0**halvings]))
    params.recThrs = recall_R
    add_parameters(params, sizes, sigmas)
    evaluation.evaluate()
    evaluation.accumulate()
    precision_TRKAM = np.asarray(evaluation.eval["precision"])
    _round_as_pycocotools(precision_TRKAM, recall_R, _count_truth_KA(truth, params))
    return precision_TRKAM[:, np.isin(recall_R, standard_R)], np.asarray(evaluation.eval["recall"])


def add_parameters(params: Any, sizes: Sequence[tuple[str, float, float]], sigmas: Sequence[float] | None) -> None:
    """Add ranges of the area in pixels, by name, to the settings of the COCO API, and set the sigmas of keypoints."""
    params.areaRng = [*params.areaRng, *([low, high] for _, low, high in sizes)]
    params.areaRngLbl = [*params.areaRngLbl, *(name for name, _, _ in sizes)]
    if sigmas is not None:
        params.kpt_oks_sigmas = np.array(sigmas)


def _count_truth_KA(truth: Mapping[str, Any], params: Any) -> Int64Array:
    """Count the ground-truth objects by class and size; the library has marked those to ignore."""
    rows = [row for row in truth["annotations"] if not row["ignore"]]
    class_ids = np.array([row["category_id"] for row in rows])
    areas = np.array([row["area"] for row in rows])
    in_range = [(areas >= low) & (areas <= high) for low, high in params.areaRng]
    return np.array([[np.count_nonzero((class_ids == k) & inside) for inside in in_range] for k in params.catIds])


def _round_as_pycocotools(precision_TRKAM: Float64Array, recall_R: Float64Array, num_truth_KA: Int64Array) -> None:
    """Round a precision of 1 in place as pycocotools does.

    pycocotools divides by `true + false + 2**-52`. Rounding removes the addend unless the sum is 1: a precision of 1
    from a single correct detection is 1 - 2**-52 there, but 1 in faster-coco-eval. The curve shows which case it is:
    with two or more correct detections at the top, precision is still 1 at a recall between one and two objects.
    """
    for k, size in np.argwhere(num_truth_KA > 0):
        num_truth = num_truth_KA[k, size]
        curves_TRM = precision_TRKAM[:, :, k, size, :]
        is_single_TM = np.ones_like(curves_TRM[:, 0, :], bool)
        if num_truth > 1:
            beyond_one = np.searchsorted(recall_R, 2 / num_truth, side="right") - 1
            assert 1 / num_truth < recall_R[beyond_one] <= 2 / num_truth
            is_single_TM = curves_TRM[:, beyond_one, :] != 1
        curves_TRM[is_single_TM[:, None, :] & (curves_TRM == 1)] = 1 / (1 + np.spacing(1.0))
