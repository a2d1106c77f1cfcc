import contextlib
import io

import numpy as np
import pytest
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detloom.trainer_module.evaluation import matches as rules
from detloom.trainer_module.evaluation.coco_images import format_coco_ground_truth, format_coco_results
from detloom.trainer_module.evaluation.matches import match_detections, pairwise_iou


def match_with_pycocotools(truth, found, label_map):
    """Return, for each threshold, (image id, class id, detection's position, whether it is matched, is ignored).

    At the lowest one, the object's position or None says whether it is matched.
    """
    dataset = format_coco_ground_truth(truth, label_map)
    annotations = format_coco_results(found, {image.image_id: image.image_hw for image in truth})
    for number, row in enumerate(annotations, start=1):
        row.update(id=number, area=row["bbox"][2] * row["bbox"][3], iscrowd=0)
    with contextlib.redirect_stdout(io.StringIO()):
        indexed = []
        for rows in (dataset["annotations"], annotations):
            coco = COCO()
            coco.dataset = {**dataset, "annotations": rows}
            coco.createIndex()
            indexed.append(coco)
        evaluation = COCOeval(*indexed, iouType="bbox")
        evaluation.evaluate()
    truth_rows, found_rows = _positions(dataset["annotations"]), _positions(annotations)
    result = [set() for _ in range(10)]
    for entry in filter(None, evaluation.evalImgs):
        if entry["aRng"] != [0, 1e10]:
            continue
        for t, pairs in enumerate(result):
            columns = zip(entry["dtIds"], entry["dtMatches"][t], entry["dtIgnore"][t], strict=True)
            for found_id, truth_id, is_ignored in columns:
                where = (entry["image_id"], entry["category_id"], found_rows[found_id])
                row = truth_rows[int(truth_id)] if truth_id else None
                pairs.add((*where, row if t == 0 else row is not None, bool(is_ignored)))
    return result


def _positions(annotations):
    counts, positions = {}, {}
    for row in annotations:
        positions[row["id"]] = counts.get(row["image_id"], 0)
        counts[row["image_id"]] = positions[row["id"]] + 1
    return positions


def match_with_ours(truth, found, label_map):
    matches = match_detections(truth, found, label_map)
    image_ids = [truth[i].image_id for i in matches.found.image_index]
    class_ids = [label_map.class_ids[k] for k in matches.found.class_index]
    result = []
    for t in range(10):
        matched = (matches.is_true(t) | matches.is_ignored(t)).tolist()
        if t == 0:
            matched = [int(matches.truth.row[g]) if g >= 0 else None for g in matches.truth_of_found]
        rows = matches.found.row.tolist()
        result.append(set(zip(image_ids, class_ids, rows, matched, matches.is_ignored(t).tolist(), strict=True)))
    return result


@pytest.mark.parametrize("seed", range(20))
def test_the_matches_equal_pycocotools(seed, make_split, label_map):
    truth, found = make_split(seed)
    assert match_with_ours(truth, found, label_map) == match_with_pycocotools(truth, found, label_map)


def test_surplus_detections_are_dropped_as_in_pycocotools(make_split, label_map):
    truth, found = make_split(7, num_images=3, max_boxes=3, max_found=600)
    assert match_with_ours(truth, found, label_map) == match_with_pycocotools(truth, found, label_map)


def test_chunks_do_not_change_the_matches(make_split, label_map, monkeypatch):
    truth, found = make_split(3, num_images=30)
    whole = match_with_ours(truth, found, label_map)
    monkeypatch.setattr(rules, "_MAX_CELLS", 1)
    assert match_with_ours(truth, found, label_map) == whole


def test_detections_are_sorted_and_flagged(make_image, label_map):
    truth, found = make_image(
        1,
        truth=[(1, 0, 0, 20, 20), (1, 40, 40, 80, 80)],
        found=[(1, 0, 0, 20, 20, 0.5), (1, 0, 0, 20, 20, 0.9), (1, 45, 45, 60, 60, 0.7), (3, 0, 0, 20, 20, 0.8)],
        crowds=[1],
    )
    matches = match_detections([truth], [found], label_map)
    assert matches.scores.tolist() == [0.9, 0.7, 0.5, 0.8]  # cats by score, then the dog
    assert matches.is_true(0).tolist() == [True, False, False, False]
    assert matches.is_ignored(0).tolist() == [False, True, False, False]
    assert matches.is_found(0).tolist() == [True, True]
    assert matches.found_of_class(1) == slice(3, 4)


def test_empty_splits_and_images_have_no_matches(label_map, make_image):
    matches = match_detections([], [], label_map)
    assert matches.true_AN.shape == (4, 0)
    truth, found = make_image(1)
    assert len(match_detections([truth], [found], label_map).truth) == 0


def test_different_images_are_refused(make_image, label_map):
    (truth, _), (_, found) = make_image(1), make_image(2)
    with pytest.raises(ValueError, match="ground_truth and detections: got"):
        match_detections([truth], [found], label_map)


def test_rows_refer_to_the_arrays_of_the_image(make_split, label_map):
    truth, found = make_split(11)
    matches = match_detections(truth, found, label_map)
    scores = [found[i].scores[row] for i, row in zip(matches.found.image_index, matches.found.row, strict=True)]
    np.testing.assert_array_equal(scores, matches.scores)


def test_iou_matches_values_by_hand():
    # 10 x 10 and 10 x 10 shifted by 5: intersection 50, union 150. A crowd uses only the area of the first box.
    square, crowd = np.array([[0, 0, 10, 10]]), np.array([[5, 0, 100, 100]])
    iou = pairwise_iou(square, np.array([[5, 0, 10, 10], [10, 0, 10, 10]]))
    np.testing.assert_array_equal(iou, [[50 / 150, 0]])
    assert pairwise_iou(square, crowd, np.array([True])) == 0.5


@pytest.mark.parametrize("is_crowd", [False, True])
def test_equal_to_pycocotools_to_the_last_digit(is_crowd):
    generator = np.random.default_rng(0)
    first, second = generator.random((50, 4)) * 100, generator.random((40, 4)) * 100
    crowd = np.full(40, is_crowd)
    expected = mask.iou(first, second, crowd.astype(np.uint8))
    np.testing.assert_array_equal(pairwise_iou(first, second, crowd), expected)


def test_iou_without_boxes_or_area_is_empty_or_zero():
    assert pairwise_iou(np.zeros((0, 4)), np.zeros((3, 4))).shape == (0, 3)
    assert pairwise_iou(np.zeros((1, 4)), np.zeros((1, 4))) == 0  # boxes without area
