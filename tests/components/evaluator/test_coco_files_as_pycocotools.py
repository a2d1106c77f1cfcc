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


def random_mask(rng, image_hw, box):
    """Make a mask near a box: a polygon, which may be degenerate or exceed the image, or runs of both kinds."""
    x, y, width, height = box
    if rng.random() < 0.4:
        points = rng.random((int(rng.integers(3, 9)), 2)) * [width, height] * rng.choice([0.5, 1, 1.3]) + [x, y]
        return [np.round(points, 1).ravel().tolist()]
    pixels = np.zeros(image_hw, np.uint8, order="F")
    area = pixels[int(y) : int(y + height) + 1, int(x) : int(x + width) + 1]
    area[...] = rng.random(area.shape) < 0.8
    if rng.random() < 0.5:
        return {"size": list(image_hw), "counts": coco_mask.encode(pixels)["counts"].decode()}
    flat = np.concatenate(([0], pixels.ravel(order="F")))
    ends = np.append(np.flatnonzero(np.diff(flat)), flat.size - 1)
    return {"size": list(image_hw), "counts": np.diff(ends, prepend=0).tolist()}


def as_compressed_runs(mask, image_hw):
    """Convert a mask by pycocotools; it accepts no other kind in results."""
    if isinstance(mask, dict) and isinstance(mask["counts"], str):
        return mask
    api = COCO()
    api.imgs = {1: {"height": image_hw[0], "width": image_hw[1]}}
    runs = api.annToRLE({"image_id": 1, "segmentation": mask})
    return {"size": list(runs["size"]), "counts": runs["counts"].decode()}


def random_files(seed):
    """Make annotations with unsorted ids, crowds and objects without keypoints, and detections with tied scores."""
    rng = np.random.default_rng(seed)
    images, annotations, results = [], [], []
    for image_id in rng.permutation(50)[:5].tolist():
        image_hw = tuple(rng.integers(40, 220, 2).tolist())
        images.append({"id": image_id, "height": image_hw[0], "width": image_hw[1], "file_name": f"{image_id}.jpg"})
        for _ in range(int(rng.choice([0, 1, 4, 12]))):
            sides = np.array(image_hw[::-1]) * rng.uniform(0.02, 0.6, 2)
            box = np.round([*(rng.random(2) * (image_hw[::-1] - sides)), *sides], 1)
            is_crowd = int(rng.random() < 0.15)
            is_labelled = (rng.random(17) < rng.choice([0, 0.7, 1])) & (not is_crowd)
            points = np.round(rng.random((17, 2)) * box[2:] + box[:2], 2) * is_labelled[:, None]
            key = {"image_id": image_id, "category_id": int(rng.choice(CLASS_IDS))}
            annotation = {
                **key,
                "id": int(rng.integers(1, 2**40)),
                "bbox": box.tolist(),
                "area": float(rng.choice([box[2] * box[3] * 0.6, 32.0**2, 96.0**2])),
                "iscrowd": is_crowd,
                "segmentation": random_mask(rng, image_hw, box),
                "keypoints": np.column_stack([points, 2 * is_labelled]).ravel().tolist(),
                "num_keypoints": int(is_labelled.sum()),
            }
            annotations.append(annotation)
            for _ in range(int(rng.choice([0, 1, 2, 40], p=[0.2, 0.4, 0.35, 0.05]))):
                found_box = np.maximum(box + rng.choice([0, 1, 5]) * rng.normal(size=4), [0, 0, 1, 1])
                mask = annotation["segmentation"] if rng.random() < 0.4 else random_mask(rng, image_hw, found_box)
                found_points = points + rng.choice([0, 0.02, 0.1, 0.5]) * rng.normal(size=(17, 2)) * box[2:]
                found = {
                    **key,
                    "score": float(rng.integers(0, 6) / 5 if rng.random() < 0.5 else rng.random()),
                    "bbox": found_box.tolist(),
                    "segmentation": as_compressed_runs(mask, image_hw),
                    "keypoints": np.column_stack([found_points, np.ones(17)]).ravel().tolist(),
                }
                if rng.random() < 0.1:
                    found["category_id"] = int(rng.choice(CLASS_IDS))
                results.append(found)
    rng.shuffle(results)
    categories = [{"id": class_id, "name": f"class {class_id}"} for class_id in CLASS_IDS]
    return {"images": images, "annotations": annotations, "categories": categories}, results


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
        truth, results = random_files(seed)
        results = [{key: row[key] for key in ("image_id", "category_id", "score", *kinds)} for row in results]
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
