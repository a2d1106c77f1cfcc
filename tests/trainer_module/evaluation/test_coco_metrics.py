import json

import numpy as np
import pytest
from pycocotools_reference import reference_metrics

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation.coco_images import (
    ImageDetections,
    ImageGroundTruth,
    boxes_yxyx_rel_to_xywh_px,
)
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics, compute_coco_metrics

ONE = pytest.approx(1.0, abs=1e-15)  # the COCO API divides by count + 2**-52, so a single match is just below 1
THREE_CLASSES = LabelMap(((1, "cat"), (3, "dog"), (7, "cup")))


def make_truth(boxes, class_ids, *, image_id=1, image_hw=(100, 200), is_crowd=None, area_px=None):
    boxes = np.asarray(boxes, float).reshape(-1, 4)
    crowd = np.zeros(len(boxes), bool) if is_crowd is None else np.asarray(is_crowd, bool)
    return ImageGroundTruth(image_id, image_hw, boxes, np.asarray(class_ids, int), crowd, area_px)


def make_found(boxes, scores, class_ids, *, image_id=1):
    boxes = np.asarray(boxes, float).reshape(-1, 4)
    return ImageDetections(image_id, boxes, np.asarray(scores, float), np.asarray(class_ids, int))


def random_boxes(rng, count):
    corner, size = (
        rng.uniform(0, 0.8, (count, 2)),
        rng.choice([0.0, 0.02, 0.1, 0.3], (count, 2)) * rng.random((count, 2)),
    )
    return np.concatenate([corner, np.minimum(corner + size, 1)], axis=1)


def random_case(seed):
    """Return images of all kinds: empty, crowded, over 100 detections, boxes without area, ties, exact copies."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for image_id in rng.permutation(rng.integers(0, 7)).tolist():
        num_truth = int(rng.choice([0, 1, 4, 15]))
        boxes = random_boxes(rng, num_truth)
        area = None if rng.random() < 0.5 else rng.choice([0.0, 32.0**2, 500.0, 96.0**2, 2e4], num_truth)
        image_hw = (int(rng.integers(10, 700)), int(rng.integers(10, 700)))
        truth.append(
            ImageGroundTruth(
                image_id, image_hw, boxes, rng.choice([1, 3, 7], num_truth), rng.random(num_truth) < 0.2, area
            )
        )
        if rng.random() < 0.8:
            near = np.repeat(boxes, 2, axis=0) + rng.choice([0, 0.01, 0.05]) * rng.normal(size=(2 * num_truth, 4))
            found_boxes = np.concatenate([near, random_boxes(rng, int(rng.choice([0, 2, 130])))])
            count = len(found_boxes)
            found.append(
                ImageDetections(image_id, found_boxes, rng.integers(0, 5, count) / 4, rng.choice([1, 3, 7], count))
            )
    return truth, found


@pytest.mark.parametrize(
    ("first_seed", "num_cases"),
    [(0, 30), *(pytest.param(i, 50, marks=pytest.mark.nightly) for i in range(30, 480, 50))],
)
def test_metrics_equal_pycocotools_to_the_last_digit_on_random_cases(first_seed, num_cases):
    for seed in range(first_seed, first_seed + num_cases):
        truth, found = random_case(seed)
        sizes = [("tiny", 0.0, 500.0), ("edge", 96.0**2, 96.0**2)] if seed % 2 else []
        ours = compute_coco_metrics(truth, found, THREE_CLASSES, sizes=sizes)
        assert ours == reference_metrics(truth, found, THREE_CLASSES, sizes), f"seed {seed}"


def test_additional_sizes_are_measured():
    # Areas: 20 x 20 = 10 x 40 = 400 and 50 x 50 = 2,500 pixels; one of the two small boxes is found.
    truth = make_truth([[0, 0, 0.2, 0.1], [0.3, 0, 0.4, 0.2], [0.5, 0.5, 1, 0.75]], [1, 1, 1])
    found = make_found([[0, 0, 0.2, 0.1], [0.5, 0.5, 1, 0.75]], [0.9, 0.8], [1, 1])
    metrics = compute_coco_metrics([truth], [found], THREE_CLASSES, sizes=[("tiny", 0, 400), ("vast", 1e5, 1e9)])
    tiny, vast = metrics.per_size
    # Precision is 1 up to a recall of 0.5: at 51 of the 101 points.
    assert (tiny.name, tiny.AP, tiny.AR100, tiny.num_boxes) == ("tiny", pytest.approx(51 / 101), 0.5, 2)
    assert (vast.AP, vast.AR100, vast.num_boxes) == (-1, -1, 0)


@pytest.mark.parametrize("num_truth", [2, 99, 100, 101, 199, 200, 201, 400, 1023, 1500])
@pytest.mark.parametrize("num_correct", [1, 2, 3])
def test_pycocotools_agrees_if_the_first_detections_of_many_objects_are_correct(num_truth, num_correct):
    corner = np.arange(num_truth)[:, None] / num_truth
    boxes = np.concatenate([corner, np.zeros_like(corner), corner + 1 / num_truth, np.ones_like(corner)], axis=1)
    truth = make_truth(boxes, [1] * num_truth, image_hw=(4000, 40))
    found_boxes = [*boxes[:num_correct], [0, 0, 1, 1], *boxes[3:5]]
    found = make_found(found_boxes, np.linspace(1, 0.5, len(found_boxes)), [1] * len(found_boxes))
    ours = compute_coco_metrics([truth], [found], THREE_CLASSES)
    assert ours == reference_metrics([truth], [found], THREE_CLASSES)


BOX, NOTHING = [[0, 0, 1, 1]], make_truth([], [])
EDGE_CASES = {
    "no image": ([], []),
    "empty image": ([NOTHING], []),
    "no truth": ([NOTHING], [make_found(BOX, [0.5], [1])]),
    "no detections": ([make_truth(BOX, [1])], []),
    "empty detections": ([make_truth(BOX, [1])], [make_found([], [], [])]),
    "only a crowd": ([make_truth(BOX, [1], is_crowd=[True])], [make_found(BOX, [0.5], [1])]),
    "no area": ([make_truth([[0.5] * 4], [1])], [make_found([[0.5] * 4], [0.5], [1])]),
    "inverted": ([make_truth(BOX, [1])], [make_found([[1, 1, 0, 0]], [0.5], [1])]),
    "150 copies": ([make_truth(BOX * 3, [1] * 3)], [make_found(BOX * 150, [0.5] * 150, [1] * 150)]),
}


@pytest.mark.parametrize(("truth", "found"), EDGE_CASES.values(), ids=EDGE_CASES)
def test_pycocotools_agrees_on_edge_cases(truth, found):
    assert compute_coco_metrics(truth, found, THREE_CLASSES) == reference_metrics(truth, found, THREE_CLASSES)


def test_perfect_detection_scores_one_and_other_sizes_are_explained():
    # 0.5 x 0.5 of 100 x 200 px = 50 x 100 px: area 5000, between 32^2 = 1024 and 96^2 = 9216, so medium.
    box = [[0.25, 0.25, 0.75, 0.75]]
    metrics = compute_coco_metrics([make_truth(box, [3])], [make_found(box, [0.9], [3])], THREE_CLASSES)
    assert {name: metrics.value_of(name) for name in METRIC_NAMES} == {
        **dict.fromkeys(("AP", "AP50", "AP75", "APm", "AR1", "AR10", "AR100", "ARm"), ONE),
        **dict.fromkeys(("APs", "APl", "ARs", "ARl"), -1.0),
    }
    assert metrics.explain("APs") == "no ground truth of this size"
    assert metrics.explain("AP") is None
    assert [(row.name, row.AP, row.num_boxes) for row in metrics.per_class] == [
        ("cat", -1.0, 0),
        ("dog", ONE, 1),
        ("cup", -1.0, 0),
    ]


def test_box_with_iou_0_60_matches_three_of_ten_thresholds():
    # 60 of 100 columns: IoU 0.6 passes the thresholds 0.50, 0.55, 0.60: 3 of 10.
    truth = make_truth([[0, 0, 1, 1]], [1], image_hw=(100, 100))
    metrics = compute_coco_metrics([truth], [make_found([[0, 0, 1, 0.6]], [0.9], [1])], THREE_CLASSES)
    assert pytest.approx(0.3) == metrics.AP
    assert (metrics.AP50, metrics.AP75) == (ONE, 0.0)


def test_metrics_round_trip_through_json():
    metrics = compute_coco_metrics(*random_case(3), THREE_CLASSES)
    assert CocoMetrics.from_dict(json.loads(json.dumps(metrics.to_dict()))) == metrics


def test_boxes_are_converted_to_left_top_width_height():
    # ymin 0.1 * 100 = 10, xmin 0.2 * 200 = 40, height 0.4 * 100 = 40, width 0.5 * 200 = 100
    np.testing.assert_allclose(boxes_yxyx_rel_to_xywh_px([[0.1, 0.2, 0.5, 0.7]], (100, 200)), [[40, 10, 100, 40]])


@pytest.mark.parametrize(
    ("truth", "found", "error", "message"),
    [
        ([make_truth(BOX, [2])], [], InputError, r"ground truth of image 1: got class id 2, allowed .*\[1, 3, 7\]"),
        ([NOTHING], [make_found(BOX, [np.nan], [1])], InputError, "detections of image 1"),
        ([NOTHING] * 2, [], ValueError, "ground truth: image_id 1 "),
        ([], [make_found([], [], [], image_id=4)], ValueError, "image_id 4 "),
    ],
)
def test_invalid_images_are_refused(truth, found, error, message):
    with pytest.raises(error, match=message):
        compute_coco_metrics(truth, found, THREE_CLASSES)


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"detections of image 1: scores has shape \(2,\), allowed: \(1,\)"):
        make_found([[0, 0, 1, 1]], [0.5, 0.4], [1])
