import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detloom.components.evaluator.analysis import voc
from detloom.components.evaluator.analysis.voc import VOC_RULES, VocRules, compute_voc_metrics
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable

SHARED = Path(os.environ.get("DETLOOM_SHARED", Path(__file__).parents[5] / "shared"))
PARITY = SHARED / "parity" / "metrics"

PASCAL_VOC = VOC_RULES["pascal_voc"]
PASCAL_VOC_2007 = VOC_RULES["pascal_voc_2007"]
WEIGHTED_PASCAL_VOC = VOC_RULES["weighted_pascal_voc"]
OPEN_IMAGES_V2 = VOC_RULES["open_images_v2"]
OPEN_IMAGES_CHALLENGE = VOC_RULES["open_images_challenge"]

SIDE = 1024  # px of the images; a power of two, so that relative boxes are exact
NOWHERE = [900, 900, 910, 910]


def square(number):
    """Return one of several disjoint squares of 10 px as yxyx."""
    return [0, 20 * number, 10, 20 * number + 10]


def make_image(truth=(), found=(), *, difficult=(), group_of=(), verified=()):
    """Make an image from truth (box, class id) and found (box, score, class id); flags are positions in truth."""
    positions = np.arange(len(truth))
    of_truth = ImageGroundTruth(
        image_id=1,
        image_hw=(SIDE, SIDE),
        boxes_yxyx_rel=np.array([box for box, _ in truth]).reshape(-1, 4) / SIDE,
        class_ids=np.array([class_id for _, class_id in truth], int),
        is_crowd=np.zeros(len(truth), bool),
        is_difficult=np.isin(positions, difficult),
        is_group_of=np.isin(positions, group_of),
        verified_class_ids=tuple(verified),
    )
    detections = ImageDetections(
        image_id=1,
        boxes_yxyx_rel=np.array([box for box, _, _ in found]).reshape(-1, 4) / SIDE,
        scores=np.array([score for _, score, _ in found], np.float32),
        class_ids=np.array([class_id for _, _, class_id in found], int),
    )
    return of_truth, detections


def compute_all(images, class_ids, rules_by_name=VOC_RULES, **options):
    truth = ImageTable.of(ImageGroundTruth, [truth for truth, _ in images])
    found = ImageTable.of(ImageDetections, [found for _, found in images])
    return compute_voc_metrics(truth, found, class_ids, rules_by_name, **options)


def compute(images, class_ids, rules, **options):
    return compute_all(images, class_ids, {"rules": rules}, **options)["rules"]


def AP_of_class_1(image, rules, **options):
    return compute([image], [1], rules, **options).AP_by_class_id[1]


HALF = make_image([([0, 0, 10, 10], 1)], [([0, 0, 10, 5], 0.9, 1)])  # IoU 50 / 100
THREE_OBJECTS = make_image(
    [(square(0), 1), (square(1), 1), (square(2), 1)],
    [(square(0), 0.9, 1), (NOWHERE, 0.8, 1), (square(1), 0.7, 1)],
)  # true, false, true: precision 1, 1/2, 2/3 at recall 1/3, 1/3, 2/3


THREE_OF_TEN = make_image([(square(i), 1) for i in range(10)], [(square(i), 0.9, 1) for i in range(3)])
# IoU of the second detection: 90 / 110 with the first object, which is taken, 70 / 130 with the second.
TAKEN = make_image([([0, 0, 10, 10], 1), ([0, 4, 10, 14], 1)], [([0, 0, 10, 10], 0.9, 1), ([0, 1, 10, 11], 0.8, 1)])
# 8 of 18 px of the width are in the group.
BESIDE = [([0, 12, 10, 30], 0.9, 1), (square(9), 0.8, 1)]
BESIDE_GROUP = make_image([([0, 0, 20, 20], 1), (square(9), 1)], BESIDE, group_of=[0])
WITHOUT_AREA = [([5, 5, 5, 9], 0.95, 1), ([5, 9, 8, 5], 0.94, 1)]


@pytest.mark.parametrize(
    ("image", "rules", "options", "AP"),
    [
        (THREE_OBJECTS, PASCAL_VOC, {}, 5 / 9),  # 1/3 * 1 + 1/3 * 2/3
        (THREE_OBJECTS, PASCAL_VOC_2007, {}, 6 / 11),  # 1 at recall 0 to 0.3; 2/3 at 0.4 to 0.6; 0 at the other four
        (THREE_OF_TEN, PASCAL_VOC_2007, {}, 4 / 11),  # recall 3/10 is reached exactly
        (TAKEN, PASCAL_VOC, {}, 0.5),
        (HALF, PASCAL_VOC, {}, 1.0),
        (HALF, PASCAL_VOC, {"min_iou": 0.51}, 0.0),
        (BESIDE_GROUP, OPEN_IMAGES_V2, {}, 0.5),
        (make_image([(square(0), 1)], [*WITHOUT_AREA, (square(0), 0.9, 1)]), PASCAL_VOC, {}, 1.0),
    ],
)
def test_AP_of_one_class_matches_values_by_hand(image, rules, options, AP):
    assert AP_of_class_1(image, rules, **options) == pytest.approx(AP, abs=1e-12)


def test_weighted_mAP_is_the_AP_of_one_curve_over_all_classes():
    image = make_image(
        [(square(0), 1), (square(1), 2), (square(2), 2)],
        [(square(0), 0.9, 1), (NOWHERE, 0.8, 2), (square(1), 0.7, 2)],
    )
    plain = compute([image], [1, 2], PASCAL_VOC)
    weighted = compute([image], [1, 2], WEIGHTED_PASCAL_VOC)
    assert plain.AP_by_class_id == weighted.AP_by_class_id == {1: 1.0, 2: 0.25}  # 1/2 of class 2 at precision 1/2
    assert plain.mAP == 0.625  # (1 + 1/4) / 2
    assert weighted.mAP == pytest.approx(5 / 9, abs=1e-12)  # true, false, true for three objects, as THREE_OBJECTS


@pytest.mark.parametrize(
    ("rules", "num_truth", "AP"),
    [
        (PASCAL_VOC, 1, 1.0),
        (OPEN_IMAGES_V2, 2, 5 / 6),  # true, false (a duplicate), true: 1/2 * 1 + 1/2 * 2/3
    ],
)
def test_only_voc_ignores_detections_on_difficult_objects(rules, num_truth, AP):
    found = [(square(0), 0.9, 1), (square(0), 0.85, 1), (square(1), 0.8, 1)]
    metrics = compute([make_image([(square(0), 1), (square(1), 1)], found, difficult=[0])], [1], rules)
    assert metrics.AP_by_class_id == {1: pytest.approx(AP, abs=1e-12)}
    assert metrics.num_truth_by_class_id == {1: num_truth}


# A group of 20 x 20 px with two detections in it, and an object that is detected with a lower score.
GROUP = make_image(
    [([0, 0, 20, 20], 1), ([50, 50, 60, 60], 1)],
    [([0, 0, 5, 5], 0.9, 1), ([5, 5, 10, 10], 0.8, 1), ([50, 50, 60, 60], 0.7, 1)],
    group_of=[0],
)


@pytest.mark.parametrize(
    ("rules", "num_truth", "AP"),
    [
        (OPEN_IMAGES_V2, 1, 1.0),  # both detections are ignored
        (OPEN_IMAGES_CHALLENGE, 2, 1.0),  # the group is detected once, the second detection is ignored
        (PASCAL_VOC, 2, 1 / 6),  # an ordinary object: IoU 25 / 400, so false, false, true: 1/2 * 1/3
        (VocRules(group_of_weight=0.5), 1.5, 1.0),
    ],
)
def test_a_group_counts_by_its_weight(rules, num_truth, AP):
    metrics = compute([GROUP], [1], rules)
    assert metrics.num_truth_by_class_id == {1: num_truth}
    assert metrics.AP_by_class_id[1] == pytest.approx(AP, abs=1e-12)


@pytest.mark.parametrize(("rules", "AP"), [(OPEN_IMAGES_V2, 1.0), (OPEN_IMAGES_CHALLENGE, 0.5)])
def test_an_undetected_group_is_missed_with_its_weight(rules, AP):
    image = make_image([([0, 0, 20, 20], 1), (square(9), 1)], [(square(9), 0.9, 1)], group_of=[0])
    assert AP_of_class_1(image, rules) == AP


@pytest.mark.parametrize(
    ("rules", "verified", "AP"),
    [
        (OPEN_IMAGES_CHALLENGE, (), 1.0),  # class 2 was not verified in the first image
        (OPEN_IMAGES_CHALLENGE, (2,), 0.5),  # class 2 was verified: false, true
        (OPEN_IMAGES_V2, (), 0.5),
    ],
)
def test_the_challenge_ignores_detections_of_unverified_classes(rules, verified, AP):
    first = make_image([(square(0), 1)], [(square(5), 0.9, 2)], verified=verified)
    second = make_image([(square(0), 2)], [(square(0), 0.8, 2)])
    assert compute([first, second], [1, 2], rules).AP_by_class_id[2] == AP


def test_classes_without_ground_truth_have_no_AP_and_do_not_affect_the_mean():
    image = make_image([(square(0), 1)], [(square(0), 0.9, 1), (square(1), 0.95, 2)])
    for rules in (PASCAL_VOC, WEIGHTED_PASCAL_VOC):
        metrics = compute([image], [1, 2], rules)
        assert metrics.mAP == 1.0
        assert metrics.AP_by_class_id == {1: 1.0, 2: None}
        assert metrics.num_truth_by_class_id == {1: 1, 2: 0}


def test_other_classes_are_ignored():
    image = make_image([(square(0), 1), (square(1), 7)], [(square(0), 0.9, 1), (square(2), 0.95, 7)])
    metrics = compute([image], [1], WEIGHTED_PASCAL_VOC)
    assert (metrics.mAP, metrics.AP_by_class_id) == (1.0, {1: 1.0})


@pytest.mark.parametrize("rules", VOC_RULES.values())
@pytest.mark.parametrize("images", [[], [make_image()], [make_image(found=[(square(0), 0.9, 1)])]])
def test_without_ground_truth_AP_is_none(rules, images):
    metrics = compute(images, [1], rules)
    assert (metrics.mAP, metrics.AP_by_class_id, metrics.num_truth_by_class_id) == (None, {1: None}, {1: 0})


@pytest.mark.parametrize("rules", VOC_RULES.values())
def test_AP_is_0_without_detections_and_1_with_perfect_ones(rules):
    truth = [(square(i), 1 + i % 3) for i in range(30)]
    found = [(box, 0.01 * (1 + i), class_id) for i, (box, class_id) in enumerate(truth)]
    assert compute([make_image(truth, found)], [1, 2, 3], rules).mAP == pytest.approx(1.0, abs=1e-12)
    metrics = compute([make_image([(square(0), 1)])], [1], rules)
    assert (metrics.mAP, metrics.AP_by_class_id) == (0.0, {1: 0.0})


def test_a_crowd_is_a_group_of_objects():
    truth, found = GROUP
    image = replace(truth, is_group_of=None, is_crowd=truth.is_group_of), found
    assert compute([image], [1], OPEN_IMAGES_V2) == compute([GROUP], [1], OPEN_IMAGES_V2)
    assert compute([image], [1], PASCAL_VOC) == compute([GROUP], [1], PASCAL_VOC)


def test_blocks_of_images_do_not_change_the_numbers(monkeypatch):
    images = [GROUP, THREE_OBJECTS, make_image(), make_image([(square(0), 2)], [(square(1), 0.6, 1)], verified=[1])]
    whole = compute_all(images, [1, 2])
    monkeypatch.setattr(voc, "BLOCK_IMAGES", 1)
    assert compute_all(images, [1, 2]) == whole


@pytest.mark.skipif(not PARITY.is_dir(), reason=f"no reference values at {PARITY} (set DETLOOM_SHARED)")
@pytest.mark.parametrize("key", [name for name in VOC_RULES if name != "pascal_voc_2007"])
def test_numbers_equal_the_object_detection_api(key):
    # For open_images_challenge, the reference got no verified labels.
    cases = json.loads((PARITY / "cases.json").read_text())
    expected = list(json.loads((PARITY / "expected.json").read_text())[key].values())
    images = [
        make_image(
            list(zip(case["gt_boxes"], case["gt_classes"], strict=True)),
            list(zip(case["det_boxes"], case["det_scores"], case["det_classes"], strict=True)),
            difficult=np.flatnonzero(case["difficult"]),
            group_of=np.flatnonzero(case["group_of"]),
        )
        for case in cases["images"]
    ]
    metrics = compute_all(images, [row["id"] for row in cases["categories"]])[key]
    assert metrics.mAP == pytest.approx(expected[0], abs=1e-9)
    assert list(metrics.AP_by_class_id.values()) == [
        None if value is None else pytest.approx(value, abs=1e-9) for value in expected[1:]
    ]
