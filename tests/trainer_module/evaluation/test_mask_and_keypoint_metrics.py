"""Metrics of boxes, masks and keypoints against pycocotools itself, from the same files."""

import contextlib
import io
from dataclasses import replace

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import KEYPOINT_METRIC_NAMES, METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Eval, KeypointSigma
from detloom.trainer_module.boxes.masks import encode_masks
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    format_coco_ground_truth,
    format_coco_results,
)
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics
from detloom.trainer_module.evaluation.keypoint_metrics import compute_keypoint_metrics, measured_keypoints

LABEL_MAP = LabelMap(((1, "car"), (7, "person")))
KEYPOINTS = Keypoints("person", ("head", "hand", "foot"), (0.05, 0.1, 0.02))
NUM_POINTS = 3


def blob(rng, image_hw, box_yxyx_rel):
    """Return a random mask in and around a box; one in ten is empty."""
    height, width = image_hw
    mask = np.zeros(image_hw, bool)
    ymin, xmin, ymax, xmax = (box_yxyx_rel * [height, width, height, width]).astype(int)
    mask[ymin : ymax + 1, xmin : xmax + 1] = rng.random(mask[ymin : ymax + 1, xmin : xmax + 1].shape) < 0.9
    return mask & (rng.random() < 0.9)


def random_case(seed):
    """Return images with crowds, objects without labelled points, empty masks, tied scores and many detections."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for image_id in range(1, 5):
        image_hw = (int(rng.integers(20, 150)), int(rng.integers(20, 150)))
        count = int(rng.choice([0, 1, 5]))
        corners = rng.uniform(0, 0.6, (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(0.05, 0.4, (count, 2))], axis=1)
        points = rng.random((count, NUM_POINTS, 2))
        points[rng.random((count, NUM_POINTS)) < rng.choice([0.2, 0.8])] = np.nan
        truth.append(
            ImageGroundTruth(
                image_id,
                image_hw,
                boxes,
                rng.choice([1, 7], count),
                rng.random(count) < 0.2,
                rng.choice([500.0, 2000.0, 1e4], count),
                mask_counts=encode_masks(blob(rng, image_hw, box) for box in boxes),
                keypoints_yx_rel=points,
            )
        )
        times = int(rng.choice([1, 2, 25]))
        near = np.repeat(boxes, times, axis=0) + rng.choice([0, 0.02]) * rng.normal(size=(count * times, 4))
        near = np.clip(near, 0, 1)
        moved = np.repeat(np.nan_to_num(points, nan=0.5), times, axis=0)
        moved = moved + rng.choice([0, 0.01, 0.1]) * rng.normal(size=moved.shape)
        order = np.argsort(-rng.integers(0, 5, len(near)), kind="stable")
        found.append(
            ImageDetections(
                image_id,
                near,
                np.sort(rng.integers(0, 5, len(near)) / 4)[::-1],
                rng.choice([1, 7], len(near)),
                mask_counts=encode_masks(blob(rng, image_hw, box) for box in near),
                keypoints_yx_rel=moved[order],
                keypoint_scores=np.ones(moved.shape[:2]),
            )
        )
    return truth, found


def numbers_of_pycocotools(dataset, rows, iou_type, sigmas=None):
    def index(content):
        coco = COCO()
        coco.dataset = content
        coco.createIndex()
        return coco

    with contextlib.redirect_stdout(io.StringIO()):
        truth = index(dataset)
        found = truth.loadRes(rows) if rows else index({**dataset, "annotations": []})
        evaluation = COCOeval(truth, found, iou_type)
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


@pytest.mark.parametrize("iou_type", ["segm", "bbox"])
def test_metrics_equal_pycocotools(iou_type):
    """Without `bbox`, `loadRes` takes the area of the mask, as in the Object Detection API."""
    shapes = {"bbox", "segmentation", "keypoints"} - {"segmentation" if iou_type == "segm" else "bbox"}
    for seed in range(12):
        truth, found = random_case(seed)
        rows = format_coco_results(found, {image.image_id: image.image_hw for image in truth})
        rows = [{key: value for key, value in row.items() if key not in shapes} for row in rows]
        expected = numbers_of_pycocotools(format_coco_ground_truth(truth, LABEL_MAP), rows, iou_type)
        metrics = compute_coco_metrics(truth, found, LABEL_MAP, iou_type=iou_type)
        assert [metrics.value_of(name) for name in METRIC_NAMES] == expected, seed


def test_keypoint_metrics_equal_pycocotools():
    for seed in range(12):
        truth, found = random_case(seed)
        dataset = format_coco_ground_truth(truth, LABEL_MAP)
        nothing = {"keypoints": [0] * 3 * NUM_POINTS, "num_keypoints": 0}
        people = [{**nothing, **row} for row in dataset["annotations"] if row["category_id"] == 7]
        dataset |= {"annotations": people, "categories": [{"id": 7, "name": "person"}]}
        rows = format_coco_results(found, {image.image_id: image.image_hw for image in truth})
        rows = [{k: v for k, v in row.items() if k != "segmentation"} for row in rows if row["category_id"] == 7]
        expected = numbers_of_pycocotools(dataset, rows, "keypoints", KEYPOINTS.sigmas)
        metrics = compute_keypoint_metrics(truth, found, LABEL_MAP, KEYPOINTS)
        assert [metrics.value_of(name) for name in KEYPOINT_METRIC_NAMES] == expected, seed


def test_without_labelled_keypoints_nothing_is_measured():
    truth, found = random_case(1)
    no_points = [replace(each, keypoints_yx_rel=np.full_like(each.keypoints_yx_rel, np.nan)) for each in truth]
    metrics = compute_keypoint_metrics(no_points, found, LABEL_MAP, KEYPOINTS)
    assert (metrics.AP, metrics.ARl) == (-1, -1)
    assert metrics.explain("APm") == "no ground truth of this size with labelled keypoints"


def test_a_keypoint_that_is_not_finite_is_refused():
    points = np.full((1, NUM_POINTS, 2), np.nan)
    found = ImageDetections(3, np.array([[0, 0, 1, 1.0]]), np.ones(1), np.array([7]), keypoints_yx_rel=points)
    with pytest.raises(InputError, match="image 3: a keypoint is not a finite number"):
        compute_keypoint_metrics([], [found], LABEL_MAP, KEYPOINTS)


def test_tolerances_come_from_the_evaluation_or_from_the_names():
    assert measured_keypoints(None, Eval()) is None
    assert measured_keypoints(KEYPOINTS, Eval()).sigmas == (0.05, 0.05, 0.05)
    given = tuple(KeypointSigma(name=name, sigma=0.2) for name in KEYPOINTS.names)
    assert measured_keypoints(KEYPOINTS, Eval(keypoint_sigmas=given)).sigmas == (0.2, 0.2, 0.2)
