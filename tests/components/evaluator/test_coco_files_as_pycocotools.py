"""Metrics of random COCO files equal those of pycocotools."""

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

from detloom.components.evaluator.coco_files import read_coco_detections, read_coco_ground_truth
from detloom.components.evaluator.evaluate_coco_files import measure_file_keypoints, measure_file_masks
from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics

CLASS_IDS = (1, 3, 7)


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
        area = pixels[y : y + height + 1, x : x + width + 1]
        area[...] = rng.random(area.shape) < 0.8
    runs = coco_mask.encode(pixels)
    if compressed:
        return {"size": list(image_hw), "counts": runs["counts"].decode()}
    flat = np.concatenate(([0], pixels.ravel(order="F")))
    ends = np.append(np.flatnonzero(np.diff(flat)), flat.size - 1)
    return {"size": list(image_hw), "counts": np.diff(ends, prepend=0).tolist()}


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


def our_numbers(truth, found, iou_type):
    if iou_type == "keypoints":
        return list(asdict(measure_file_keypoints(truth, found.results)).values())
    metrics = measure_file_masks(truth, found.results) if iou_type == "segm" else None
    if metrics is None:
        metrics = compute_coco_metrics(truth.split.ground_truth, found.detections, truth.split.label_map)
    return [metrics.value_of(name) for name in METRIC_NAMES]


@pytest.mark.parametrize(
    ("iou_type", "kinds"),
    [
        ("bbox", ("bbox",)),
        ("segm", ("segmentation",)),
        ("segm", ("bbox", "segmentation")),
        ("keypoints", ("keypoints",)),
        ("keypoints", ("bbox", "keypoints")),
    ],
    ids=lambda value: value if isinstance(value, str) else " and ".join(value),
)
@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.nightly)])
def test_numbers_equal_pycocotools_to_the_last_digit(iou_type, kinds, seeds, tmp_path, capfd):
    num_measured = 0
    for seed in seeds:
        truth = random_truth(seed)
        results = random_results(seed, truth, *kinds)
        if results:  # pycocotools cannot read an empty list
            expected = official_numbers(truth, results, iou_type)
            for name, content in (("truth.json", truth), ("results.json", results)):
                (tmp_path / name).write_text(json.dumps(content))
            read_truth = read_coco_ground_truth(tmp_path / "truth.json")
            found = read_coco_detections(tmp_path / "results.json", read_truth)
            before = copy.deepcopy((read_truth.dataset, found.results))
            assert our_numbers(read_truth, found, iou_type) == expected, f"seed {seed}"
            assert (read_truth.dataset, found.results) == before
            num_measured += expected[0] > 0
    assert num_measured >= len(seeds) / 2
    assert capfd.readouterr() == ("", "")
