import numpy as np
import pytest

from detloom.components.evaluator.analysis import error_types
from detloom.components.evaluator.analysis.error_types import RIGHT, ErrorType, analyze_errors
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable

NOWHERE = [900, 900, 10, 10]
AP_HALF = 51 / 101  # precision 1 up to recall 1/2: at 0, 0.01, ... 0.50 of the 101 points


def square(number):
    """Return one of several disjoint squares of 10 px as xywh."""
    return [20 * number, 0, 10, 10]


def make_image(truth=(), found=(), *, crowd=()):
    """Make an image from truth (box, class id), found (box, score, class id) and crowds as positions in truth."""
    return image_of(
        np.array([box for box, _ in truth], float).reshape(-1, 4),
        np.array([class_id for _, class_id in truth], int),
        np.isin(np.arange(len(truth)), crowd),
        np.array([box for box, _, _ in found], float).reshape(-1, 4),
        np.array([score for _, score, _ in found], float),
        np.array([class_id for _, _, class_id in found], int),
    )


def image_of(truth_boxes, truth_ids, is_crowd, boxes, scores, class_ids):
    """Return ground truth and detections of boxes in pixels, xywh."""
    truth = ImageGroundTruth(
        1, (1000, 1000), np.zeros_like(truth_boxes), truth_ids, is_crowd, given_xywh_px=truth_boxes
    )
    return truth, ImageDetections(1, np.zeros_like(boxes), scores, class_ids, given_xywh_px=boxes)


def analyze(images):
    truth = ImageTable.of(ImageGroundTruth, [truth for truth, _ in images])
    found = ImageTable.of(ImageDetections, [found for _, found in images])
    return analyze_errors(truth, found)


def costs_of(images):
    return analyze(images)[0]


def wrong_of(images):
    """Return (image, detection, type, whether it is on a crowd) of each false positive."""
    outcomes = analyze(images)[1]
    return [
        (int(image), int(row), list(ErrorType)[number], bool(on_crowd))
        for image, row, number, on_crowd in zip(
            outcomes.image_index, outcomes.rows, outcomes.type_numbers, outcomes.is_on_crowd, strict=True
        )
        if number != RIGHT
    ]


def make_random_images(seed, *, num_decimals):
    """Make objects of classes 1 to 3 with some crowds, and detections of classes 1 to 4 near objects or anywhere."""
    rng = np.random.default_rng(seed)
    images = []
    for _ in range(30):
        num_truth, num_found = int(rng.random() * 7), int(rng.random() * 130)
        truth_boxes = 5 + rng.random((num_truth, 4)) * [60, 60, 40, 40]
        boxes = 5 + rng.random((num_found, 4)) * [60, 60, 40, 40]
        truth_ids = 1 + (rng.random(num_truth) * 3).astype(int)
        class_ids = 1 + (rng.random(num_found) * 4).astype(int)
        meant = (rng.random(num_found) * num_truth).astype(int)
        is_near, is_same_class = rng.random(num_found) < 0.7, rng.random(num_found) < 0.8
        shifts, scores = rng.random((num_found, 4)) * 10 - 5, np.round(rng.random(num_found), num_decimals)
        if num_truth:
            boxes[is_near] = np.maximum(truth_boxes[meant] + shifts, 1)[is_near]
            class_ids[is_near & is_same_class] = truth_ids[meant][is_near & is_same_class]
        is_crowd = rng.random(num_truth) < 0.1
        images.append(image_of(truth_boxes, truth_ids, is_crowd, boxes, scores, class_ids))
    return images


def costs_above_zero(analysis):
    return {error_type: cost for error_type, cost in analysis.cost_by_type.items() if cost > 0}


def summary_of(analysis):
    return [analysis.AP50, analysis.false_positive_cost, analysis.false_negative_cost]


def counts_above_zero(analysis):
    return {error_type: count for error_type, count in analysis.count_by_type.items() if count > 0}


POOR = [0, 0, 10, 4]  # IoU 40 / 100 with square(0)
BOTH_ERRORS = {ErrorType.LOCALIZATION: 1, ErrorType.CLASSIFICATION: 1}
HUNDRED = [(NOWHERE, 0.9, 2)] * 100
GROUP, INSIDE = [100, 100, 50, 50], [110, 110, 10, 10]


@pytest.mark.parametrize(
    ("found", "AP50", "counts", "costs"),
    [
        # The object is not missed besides.
        ([(POOR, 0.9, 1)], 0, {ErrorType.LOCALIZATION: 1}, {ErrorType.LOCALIZATION: 1.0}),
        # Class 2 is removed, class 1 has AP 1.
        ([(square(0), 0.9, 2)], 0, {ErrorType.CLASSIFICATION: 1}, {ErrorType.CLASSIFICATION: 1.0}),
        # Both wrong: fixing only one of the two still leaves AP 0.
        ([(POOR, 0.9, 2)], 0, {ErrorType.BOTH: 1, ErrorType.MISSED: 1}, {}),
        # Of two errors on one object, the one with the higher score is fixed.
        ([([0, 0, 10, 3], 0.8, 1), (POOR, 0.9, 1)], 0, {ErrorType.LOCALIZATION: 2}, {ErrorType.LOCALIZATION: 1.0}),
        # The localization error has the lower score, so no true positive is left after it is removed.
        ([(POOR, 0.8, 1), (square(0), 0.9, 2)], 0, BOTH_ERRORS, {ErrorType.CLASSIFICATION: 1.0}),
        # A localization error on a matched object is removed.
        ([(POOR, 0.95, 1), (square(0), 0.9, 1)], 0.5, {ErrorType.LOCALIZATION: 1}, {ErrorType.LOCALIZATION: 0.5}),
        # A class without ground truth counts in the mean.
        ([(square(0), 0.9, 1), (NOWHERE, 0.8, 2)], 0.5, {ErrorType.BACKGROUND: 1}, {ErrorType.BACKGROUND: 0.5}),
        # Only the hundred best detections of an image count.
        ([(square(0), 0.1, 1), *HUNDRED], 0, {ErrorType.BACKGROUND: 100, ErrorType.MISSED: 1}, {}),
    ],
)
def test_errors_of_one_object_match_values_by_hand(found, AP50, counts, costs):
    analysis = costs_of([make_image([(square(0), 1)], found)])
    assert (analysis.AP50, counts_above_zero(analysis), costs_above_zero(analysis)) == (AP50, counts, costs)


@pytest.mark.parametrize(
    ("wrong_box", "error_type"), [([0, 0, 10, 9], ErrorType.DUPLICATE), (NOWHERE, ErrorType.BACKGROUND)]
)
def test_a_second_detection_is_a_duplicate_and_one_on_nothing_is_background(wrong_box, error_type):
    found = [(square(0), 0.9, 1), (wrong_box, 0.8, 1), (square(1), 0.7, 1)]
    analysis = costs_of([make_image([(square(0), 1), (square(1), 1)], found)])
    # True, false, true: precision 1 at 51 points, 2/3 at the other 50; 1 everywhere without the false positive.
    assert counts_above_zero(analysis) == {error_type: 1}
    assert costs_above_zero(analysis) == {error_type: pytest.approx(50 / 3 / 101, abs=1e-12)}
    assert summary_of(analysis) == pytest.approx([(51 + 50 * 2 / 3) / 101, 50 / 3 / 101, 0], abs=1e-12)


def test_an_object_without_any_detection_is_missed():
    analysis = costs_of([make_image([(square(0), 1), (square(1), 1)], [(square(0), 0.9, 1)])])
    assert counts_above_zero(analysis) == {ErrorType.MISSED: 1}
    assert costs_above_zero(analysis) == {ErrorType.MISSED: pytest.approx(1 - AP_HALF, abs=1e-12)}
    assert summary_of(analysis) == pytest.approx([AP_HALF, 0, 1 - AP_HALF], abs=1e-12)


@pytest.mark.parametrize(
    ("width", "class_id", "error_type"),
    [
        (5, 1, None),  # IoU 0.5, right class
        (1, 1, ErrorType.LOCALIZATION),  # IoU 0.1: localization comes before background
        (0.9, 1, ErrorType.BACKGROUND),
        (5, 2, ErrorType.CLASSIFICATION),
        (4.9, 2, ErrorType.BOTH),
        (1, 2, ErrorType.BACKGROUND),
    ],
)
def test_types_at_the_thresholds(width, class_id, error_type):
    image = make_image([([0, 0, 10, 10], 1)], [([0, 0, width, 10], 0.9, class_id)])
    assert wrong_of([image]) == ([] if error_type is None else [(0, 0, error_type, False)])


@pytest.mark.parametrize(("crowd_class", "AP50"), [(1, 1), (2, 0.5)])
def test_detections_on_a_crowd_of_their_class_cost_nothing_and_are_flagged(crowd_class, AP50):
    truth, found = [(GROUP, crowd_class), (square(0), 1)], [(INSIDE, 0.9, 1), (square(0), 0.8, 1)]
    image = make_image(truth, found, crowd=[0])
    assert costs_of([image]).AP50 == AP50
    assert wrong_of([image]) == [(0, 0, ErrorType.BACKGROUND, crowd_class == 1)]


def test_errors_refer_to_the_arrays_of_their_image():
    first = make_image([(square(0), 1)], [(square(0), 0.9, 1)])
    truth = [([500, 500, 50, 50], 1), (square(0), 1), (square(1), 1)]
    found = [(square(0), 0.3, 1), (NOWHERE, 0.5, 1), ([0, 0, 10, 9], 0.7, 1)]
    images = [first, make_image(truth, found, crowd=[0])]
    # By descending score; detection 2 of score 0.7 has object 1.
    assert wrong_of(images) == [(1, 1, ErrorType.BACKGROUND, False), (1, 0, ErrorType.DUPLICATE, False)]
    assert counts_above_zero(costs_of(images))[ErrorType.MISSED] == 1


def test_the_highest_false_positives_are_one_of_each_image_and_none_on_a_crowd():
    images = [
        make_image([], [(NOWHERE, 0.2, 1), (NOWHERE, 0.6, 2)]),
        make_image([(GROUP, 1)], [(INSIDE, 0.9, 1)], crowd=[0]),
        make_image([(square(0), 1)], [(square(0), 0.99, 1), (square(0), 0.7, 2)]),
    ]
    highest = analyze(images)[1].highest_wrong(3)
    found = [(wrong.image_index, wrong.detection_index, wrong.error_type, wrong.score) for wrong in highest]
    assert found == [(2, 1, ErrorType.CLASSIFICATION, 0.7), (0, 1, ErrorType.BACKGROUND, 0.6)]
    assert analyze(images)[1].highest_wrong(1) == highest[:1]


def test_blocks_of_images_do_not_change_the_numbers(monkeypatch):
    images = make_random_images(4, num_decimals=2)
    whole, wrong = costs_of(images), wrong_of(images)
    monkeypatch.setattr(error_types, "BLOCK_IMAGES", 7)
    assert (costs_of(images), wrong_of(images)) == (whole, wrong)


@pytest.mark.parametrize(
    "images",
    [[], [make_image()], [make_image([(square(0), 1)], [(square(0), 0.9, 1)], crowd=[0])]],
    ids=["no image", "empty image", "crowd only"],
)
def test_without_objects_and_counted_detections_all_numbers_are_zero(images):
    analysis = costs_of(images)
    assert (summary_of(analysis), costs_above_zero(analysis)) == ([0, 0, 0], {})


@pytest.mark.parametrize(
    ("image", "counts"),
    [
        (make_image([(square(0), 1), (square(1), 2)]), {ErrorType.MISSED: 2}),
        (make_image(found=[(square(0), 0.9, 1)]), {ErrorType.BACKGROUND: 1}),
    ],
)
def test_without_detections_or_objects_one_type_costs_everything(image, counts):
    analysis = costs_of([image])
    assert (analysis.AP50, counts_above_zero(analysis)) == (0, counts)
    assert costs_above_zero(analysis) == dict.fromkeys(counts, 1.0)


def test_perfect_detections_cost_nothing():
    perfect = []
    for image, _ in make_random_images(0, num_decimals=12):
        truth = list(zip(image.xywh_px(), image.class_ids, strict=True))
        perfect.append(make_image(truth, [(box, 0.1 * (1 + i), class_id) for i, (box, class_id) in enumerate(truth)]))
    analysis = costs_of(perfect)
    assert (summary_of(analysis), costs_above_zero(analysis), wrong_of(perfect)) == ([1, 0, 0], {}, [])


@pytest.mark.parametrize("seed", range(2))
def test_costs_are_not_negative_and_the_order_of_images_does_not_matter(seed):
    images = make_random_images(seed, num_decimals=12)
    analysis, reversed_ = costs_of(images), costs_of(images[::-1])
    costs = [*analysis.cost_by_type.values(), analysis.false_positive_cost, analysis.false_negative_cost]
    assert min(costs) >= 0
    assert max(costs) <= 1 - analysis.AP50
    assert reversed_.cost_by_type == pytest.approx(analysis.cost_by_type, abs=1e-12)
    assert reversed_.count_by_type == analysis.count_by_type


# Results of tidecv 1.0.1 (with pycocotools and numpy 1.26.4) for make_random_images(17, num_decimals=KEY), divided by
# 100: summary_of(), costs, counts. With 2 decimals many scores are tied.
TYPES = ("localization", "classification", "duplicate", "background", "both", "missed")
GOLDEN = {
    2: (
        [0.17125800586374873, 0.4252766476015979, 0.030419308368095165],
        [0.01943273806971206, 0, 0.01195034102665872, 0.06934581902939158, 0.0005568327274734841, 0.009926540706012545],
        [215, 84, 347, 815, 135, 7],
    ),
    12: (
        [0.17987056288930703, 0.4166640905760396, 0.044631618931311505],
        [
            0.03393101305813666,
            0.005423365637018804,
            0.01873616069411746,
            0.08369131561197526,
            0.010559529342200911,
            0.02164571633167693,
        ],
        [215, 84, 346, 815, 136, 7],
    ),
}


@pytest.mark.parametrize("num_decimals", sorted(GOLDEN))
def test_numbers_equal_tidecv(num_decimals):
    summary, costs, counts = GOLDEN[num_decimals]
    analysis = costs_of(make_random_images(17, num_decimals=num_decimals))
    assert [analysis.count_by_type[ErrorType(name)] for name in TYPES] == counts
    assert [analysis.cost_by_type[ErrorType(name)] for name in TYPES] == pytest.approx(costs, abs=1e-12)
    assert summary_of(analysis) == pytest.approx(summary, abs=1e-12)
