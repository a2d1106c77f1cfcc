import contextlib
import copy
import io
import json
from dataclasses import asdict

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detloom.components.evaluator.coco_file_metrics import (
    compute_coco_file_metrics,
    compute_coco_keypoint_metrics,
    iou_types_of,
)
from detloom.components.evaluator.coco_files import read_coco_detections, read_coco_ground_truth
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.errors import InputError

CLASS_IDS = (1, 3, 7)
TEN_NAMES = ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl")


def random_polygons(rng, box, count=None):
    """Make one or two polygons of 3 to 8 points in and around a box; some are degenerate or exceed the image."""
    x, y, width, height = box
    polygons = []
    for _ in range(count or int(rng.integers(1, 3))):
        points = rng.random((int(rng.integers(3, 9)), 2)) * [width, height] * rng.choice([0.5, 1, 1.3]) + [x, y]
        polygons.append(np.round(points, int(rng.integers(0, 3))).ravel().tolist())
    return polygons


def random_runs(rng, image_hw, box, compressed):
    """Make a random blob as run lengths."""
    x, y, width, height = (int(value) for value in box)
    pixels = np.zeros(image_hw, np.uint8, order="F")
    if rng.random() < 0.9:
        pixels[y : y + height + 1, x : x + width + 1] = (
            rng.random(pixels[y : y + height + 1, x : x + width + 1].shape) < 0.8
        )
    flat = pixels.ravel(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate(([0], changes, [flat.size]))).tolist()
    counts = [0, *counts] if flat[0] else counts
    if not compressed:
        return {"size": list(image_hw), "counts": counts}
    return {"size": list(image_hw), "counts": coco_mask.encode(pixels)["counts"].decode()}


def random_mask(rng, image_hw, box):
    kind = rng.integers(0, 3)
    return random_polygons(rng, box) if kind == 0 else random_runs(rng, image_hw, box, compressed=kind == 1)


def random_keypoints(rng, box, noise=0.0, labelled=0.7):
    x, y, width, height = box
    points = rng.random((17, 2)) * [width, height] + [x, y]
    seen = np.where(rng.random(17) < labelled, rng.integers(1, 3, 17), 0)
    points = points + noise * rng.normal(size=(17, 2)) * [width, height]
    return np.column_stack([np.round(points, 2) * (seen > 0)[:, None], seen]).ravel().tolist()


def nudged(rng, keypoints, box):
    points = np.array(keypoints).reshape(17, 3)
    noise = rng.choice([0, 0.02, 0.1, 0.5]) * rng.normal(size=(17, 2)) * box[2:]
    return np.column_stack([points[:, :2] + noise, np.ones(17)]).ravel().tolist()


def random_truth(seed):
    """Make images of various sizes with unsorted ids, boxes of all sizes, crowds, objects without keypoints."""
    rng = np.random.default_rng(seed)
    images, annotations = [], []
    for image_id in rng.permutation(50)[: int(rng.integers(1, 7))].tolist():
        image_hw = (int(rng.integers(20, 220)), int(rng.integers(20, 220)))
        images.append({"id": image_id, "height": image_hw[0], "width": image_hw[1], "file_name": f"{image_id}.jpg"})
        for _ in range(int(rng.choice([0, 1, 4, 12]))):
            sides = np.array(image_hw[::-1]) * rng.uniform(0.02, 0.6, 2)
            corner = rng.random(2) * (np.array(image_hw[::-1]) - sides)
            box = np.round([*corner, *sides], int(rng.integers(0, 3))).tolist()
            crowd = int(rng.random() < 0.15)
            keypoints = random_keypoints(rng, box, labelled=rng.choice([0, 0.1, 0.7, 1]) * (1 - crowd))
            of_crowd = random_runs(rng, image_hw, box, compressed=bool(rng.integers(2)))
            annotation = {
                "image_id": image_id,
                "category_id": int(rng.choice(CLASS_IDS)),
                "bbox": box,
                "area": float(rng.choice([box[2] * box[3], box[2] * box[3] * 0.6, 32.0**2, 96.0**2])),
                "iscrowd": crowd,
                "segmentation": of_crowd if crowd else random_mask(rng, image_hw, box),
                "keypoints": keypoints,
                "num_keypoints": sum(visibility > 0 for visibility in keypoints[2::3]),
            }
            annotations.append(annotation)
    for key, annotation in zip(rng.permutation(len(annotations)).tolist(), annotations, strict=True):
        annotation["id"] = key + 1
    categories = [{"id": class_id, "name": f"class {class_id}"} for class_id in CLASS_IDS]
    return {"images": images, "annotations": annotations, "categories": categories}


def as_compressed_runs(mask, image_hw):
    """Convert a mask to compressed run lengths by pycocotools."""
    api = COCO()
    api.imgs = {1: {"height": image_hw[0], "width": image_hw[1]}}
    runs = api.annToRLE({"image_id": 1, "segmentation": mask})
    return {"size": list(runs["size"]), "counts": runs["counts"].decode()}


def random_results(seed, truth, *kinds):
    """Make copies of objects, shifted ones and unrelated ones, some images with more than 100, with tied scores."""
    rng = np.random.default_rng(seed + 10_000)
    hw_by_id = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    rows = []
    for annotation in truth["annotations"]:
        for _ in range(int(rng.choice([0, 1, 2, 40], p=[0.2, 0.4, 0.35, 0.05]))):
            image_hw = hw_by_id[annotation["image_id"]]
            x, y, width, height = np.array(annotation["bbox"]) + rng.choice([0, 1, 5]) * rng.normal(size=4)
            box = [float(max(x, 0)), float(max(y, 0)), float(max(width, 1)), float(max(height, 1))]
            mask = annotation["segmentation"] if rng.random() < 0.4 else random_mask(rng, image_hw, box)
            if isinstance(mask, list) or isinstance(mask["counts"], list):
                mask = as_compressed_runs(mask, image_hw)  # the only kind that pycocotools accepts in results
            row = {
                "image_id": annotation["image_id"],
                "category_id": annotation["category_id"] if rng.random() < 0.9 else int(rng.choice(CLASS_IDS)),
                "score": float(rng.integers(0, 6) / 5 if rng.random() < 0.5 else rng.random()),
                "bbox": box,
                "segmentation": mask,
                "keypoints": nudged(rng, annotation["keypoints"], box),
            }
            rows.append(
                {key: value for key, value in row.items() if key in ("image_id", "category_id", "score", *kinds)}
            )
    rng.shuffle(rows)
    return rows


def official_numbers(truth, results, iou_type):
    """Return the metrics of pycocotools, used as in its demo."""
    with contextlib.redirect_stdout(io.StringIO()):
        api = COCO()
        api.dataset = copy.deepcopy(truth)
        api.createIndex()
        evaluation = COCOeval(api, api.loadRes(copy.deepcopy(results)), iou_type)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


def read(tmp_path, truth, results):
    for name, content in (("truth.json", truth), ("results.json", results)):
        (tmp_path / name).write_text(json.dumps(content))
    split = read_coco_ground_truth(tmp_path / "truth.json")
    return split, read_coco_detections(tmp_path / "results.json", split).results


def our_numbers(split, results, iou_type):
    if iou_type == "keypoints":
        return list(asdict(compute_coco_keypoint_metrics(split, results)).values())
    metrics = compute_coco_file_metrics(split, results, iou_type)
    return [metrics.value_of(name) for name in METRIC_NAMES]


@pytest.mark.parametrize(
    ("iou_type", "kinds"),
    [
        ("bbox", ("bbox",)),
        ("bbox", ("segmentation",)),
        ("segm", ("segmentation",)),
        ("segm", ("bbox", "segmentation")),
        ("keypoints", ("keypoints",)),
        ("keypoints", ("bbox", "keypoints")),
    ],
    ids=lambda value: value if isinstance(value, str) else " and ".join(value),
)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.nightly)])
def test_numbers_equal_pycocotools_to_the_last_digit_on_random_files(iou_type, kinds, seeds, tmp_path):
    num_measured = 0
    for seed in seeds:
        truth = random_truth(seed)
        results = random_results(seed, truth, *kinds)
        if results:  # pycocotools cannot read an empty list
            expected = official_numbers(truth, results, iou_type)
            assert our_numbers(*read(tmp_path, truth, results), iou_type) == expected, f"seed {seed}"
            num_measured += expected[0] > 0
    assert num_measured >= len(seeds) / 2


SQUARE = {"id": 1, "image_id": 5, "category_id": 1, "bbox": [10, 10, 40, 40]}  # 1,600 px: medium
FOUND = {"image_id": 5, "category_id": 1, "score": 0.9, "bbox": [10, 10, 40, 40]}
POLYGON = [[10, 10, 50, 10, 50, 50, 10, 50]]


def make_truth(*annotations):
    return {
        "images": [{"id": 5, "height": 100, "width": 100}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": list(annotations),
    }


def test_one_of_two_squares_detected_matches_values_by_hand(tmp_path):
    # Recall reaches 0.5 at precision 1: at 51 of 101 points. The precision of one true positive is 1 - 2**-52.
    other = {**SQUARE, "id": 2, "bbox": [60, 60, 30, 30]}
    split, results = read(tmp_path, make_truth(SQUARE, other), [FOUND])
    metrics = compute_coco_file_metrics(split, results, "bbox")
    assert pytest.approx(51 / 101) == metrics.AP
    assert metrics.AR100 == 0.5
    assert (metrics.num_images, metrics.num_boxes, metrics.per_class[0].num_boxes) == (1, 2, 2)


def test_a_mask_is_measured_by_its_pixels(tmp_path):
    # Left half of the square: the mask has IoU 0.5, the box is that of the square.
    half = {**FOUND, "segmentation": [[10, 10, 30, 10, 30, 50, 10, 50]]}
    split, results = read(tmp_path, make_truth({**SQUARE, "segmentation": POLYGON}), [half])
    assert iou_types_of(results, split) == ("bbox", "segm")
    boxes, masks = (compute_coco_file_metrics(split, results, iou_type) for iou_type in ("bbox", "segm"))
    # The mask reaches only the first of the thresholds 0.50, 0.55, ...
    assert pytest.approx([1, 0.1]) == [boxes.AP, masks.AP]


def test_custom_sizes_are_measured(tmp_path):
    split, results = read(tmp_path, make_truth(SQUARE), [FOUND])
    metrics = compute_coco_file_metrics(split, results, "bbox", sizes=[("tiny", 0, 100), ("middling", 100, 2000)])
    assert [(row.name, row.num_boxes) for row in metrics.per_size] == [("tiny", 0), ("middling", 1)]
    assert [row.AP for row in metrics.per_size] == [-1, pytest.approx(1)]


def test_the_input_is_not_modified(tmp_path):
    truth = random_truth(1)
    split, results = read(tmp_path, truth, random_results(1, truth, "bbox", "segmentation", "keypoints"))
    before = copy.deepcopy((split.dataset, results))
    assert iou_types_of(results, split) == ("bbox", "segm", "keypoints")
    for iou_type in iou_types_of(results, split):
        our_numbers(split, results, iou_type)
    assert (split.dataset, results) == before


def test_an_annotation_with_the_id_0_counts(tmp_path):
    split, results = read(tmp_path, make_truth({**SQUARE, "id": 0}), [FOUND])
    assert our_numbers(split, results, "bbox")[0] == pytest.approx(1)


def test_ids_of_19_digits_are_distinguished(tmp_path):
    truth = make_truth({**SQUARE, "id": 2**63 - 1, "image_id": 2**63 - 1}, {**SQUARE, "id": 2**63 - 2})
    truth["images"] = [{"id": image_id, "height": 100, "width": 100} for image_id in (5, 2**63 - 2, 2**63 - 1)]
    split, results = read(tmp_path, truth, [FOUND, {**FOUND, "image_id": 2**63 - 2}])
    # The object of image 5 is detected; the other detection is in an image without objects whose id is close to one.
    assert compute_coco_file_metrics(split, results, "bbox").AR100 == 0.5


@pytest.mark.parametrize("num_annotations", [0, 1])
def test_without_detections_AP_is_zero_and_without_ground_truth_minus_one(num_annotations, tmp_path):
    split, results = read(tmp_path, make_truth(*[SQUARE] * num_annotations), [])
    assert iou_types_of(results, split) == ("bbox",)
    expected = 0 if num_annotations else -1
    assert our_numbers(split, results, "bbox")[0] == expected
    assert compute_coco_keypoint_metrics(split, results).AP == -1  # the square has no keypoints


def test_an_object_without_keypoints_is_ignored(tmp_path):
    keypoints = [20.0, 20.0, 2.0] * 17
    stranger = {**SQUARE, "id": 2, "bbox": [60, 60, 30, 30]}
    truth = make_truth({**SQUARE, "keypoints": keypoints}, stranger)
    rows = [{**FOUND, "keypoints": each} for each in ([70.0, 70.0, 1.0] * 17, keypoints)]
    split, results = read(tmp_path, truth, rows)
    metrics = compute_coco_keypoint_metrics(split, results)
    assert (metrics.AP, metrics.AR, metrics.APm, metrics.APl) == (pytest.approx(1), 1, pytest.approx(1), -1)


def test_detections_with_only_keypoints_are_measured_only_on_keypoints(tmp_path):
    keypoints = [20.0, 20.0, 2.0] * 17
    row = {key: FOUND[key] for key in ("image_id", "category_id", "score")}
    split, results = read(tmp_path, make_truth({**SQUARE, "keypoints": keypoints}), [{**row, "keypoints": keypoints}])
    assert iou_types_of(results, split) == ("keypoints",)
    with pytest.raises(InputError, match=r"results\[0\]: has no 'bbox'"):
        compute_coco_file_metrics(split, results, "bbox")


def test_masks_are_not_measured_without_masks_in_the_ground_truth(tmp_path):
    split, results = read(tmp_path, make_truth(SQUARE), [{**FOUND, "segmentation": POLYGON}])
    assert iou_types_of(results, split) == ("bbox",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has no 'segmentation'"),
        ({"segmentation": [[1, 2, 3, 4]]}, "polygon 0 .*got 4 numbers"),
        ({"segmentation": {"size": [9, 9], "counts": [81]}}, r"size \[9, 9\], allowed: .*\[100, 100\]"),
    ],
)
def test_an_annotation_with_an_invalid_mask_is_refused_with_its_index(changes, message, tmp_path):
    truth = make_truth({**SQUARE, "segmentation": POLYGON}, {**SQUARE, "id": 2, **changes})
    split, results = read(tmp_path, truth, [{**FOUND, "segmentation": POLYGON}])
    assert compute_coco_file_metrics(split, results, "bbox").num_boxes == 2
    with pytest.raises(InputError, match=rf"truth\.json: annotations\[1\]: .*{message}"):
        compute_coco_file_metrics(split, results, "segm")


@pytest.mark.parametrize(
    ("of_truth", "found", "message"),
    [
        ({"keypoints": [1, 2, 2] * 5}, [1, 2, 2] * 17, r"annotations\[0\]: 'keypoints' has 15 numbers, allowed: 51"),
        ({"keypoints": [1, 2, 2] * 17}, [1, 2, 2] * 5, r"results\[0\]: 'keypoints' has 15 numbers, allowed: 51"),
        ({"keypoints": [1, 2]}, [1, 2, 2] * 17, r"annotations\[0\]: 'keypoints' .*got 2 numbers"),
        (
            {"keypoints": [1, 2, 2] * 17, "num_keypoints": -1},
            [1, 2, 2] * 17,
            r"annotations\[0\]: 'num_keypoints' .*got -1",
        ),
    ],
)
def test_keypoints_other_than_the_17_of_persons_are_refused(of_truth, found, message, tmp_path):
    split, results = read(tmp_path, make_truth({**SQUARE, **of_truth}), [{**FOUND, "keypoints": found}])
    with pytest.raises(InputError, match=message):
        compute_coco_keypoint_metrics(split, results)


def test_nothing_is_printed(tmp_path, capfd):
    truth = random_truth(2)
    split, results = read(tmp_path, truth, random_results(2, truth, "segmentation", "keypoints"))
    for iou_type in ("bbox", "segm", "keypoints"):
        our_numbers(split, results, iou_type)
    assert capfd.readouterr() == ("", "")
