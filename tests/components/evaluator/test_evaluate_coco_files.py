import json

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.coco_files import read_coco_detections, read_coco_ground_truth
from detloom.components.evaluator.evaluate_coco_files import (
    FileInputs,
    evaluate_files,
    measure_file_keypoints,
    measure_file_masks,
)
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.report.output_files import DETECTIONS_FILE, GROUND_TRUTH_FILE, METRICS_FILE, PAGE_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.gates import BaselineGate, Gates
from detloom.trainer_module.evaluation.coco_images import format_coco_ground_truth, format_coco_results
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics

PARAMS = EvaluatorParams(gates=Gates(baseline=BaselineGate(num_resamples=100)))


@pytest.fixture
def write_files(tmp_path, make_good_split, label_map):
    """Write the files of a split with two models; return the inputs with the given changes."""
    truth, *models = make_good_split(0, 20)
    hw_by_id = {image.image_id: image.image_hw for image in truth}
    names = {image.image_id: f"{image.image_id}.png" for image in truth}

    def write(**changes):
        dataset = format_coco_ground_truth(truth, label_map, names)
        (tmp_path / "labels.json").write_text(json.dumps(dataset))
        paths = [tmp_path / f"found{number}.json" for number in range(2)]
        for path, found in zip(paths, models, strict=True):
            path.write_text(json.dumps(format_coco_results(found, hw_by_id)))
        inputs = {"ground_truth": tmp_path / "labels.json", "detections": paths[0], "baseline_detections": paths[1]}
        return FileInputs(**{**inputs, **changes})

    write.truth, write.found = truth, models[0]
    return write


def test_metrics_equal_those_of_the_files(write_files, tmp_path, label_map):
    result = evaluate_files(write_files(), PARAMS, tmp_path / "out")
    expected = compute_coco_metrics(write_files.truth, write_files.found, label_map)
    assert result.candidate.find_value("AP")[0] == pytest.approx(expected.AP, abs=1e-12)
    assert json.loads((tmp_path / "out" / METRICS_FILE).read_text())["candidate"]["AP"] == result.candidate.coco.AP
    assert result.baseline.coco.AP < expected.AP
    assert (tmp_path / "out" / PAGE_FILE).is_file()


def test_written_files_can_be_evaluated_again_with_the_same_metrics(write_files, tmp_path):
    first = evaluate_files(write_files(baseline_detections=None), PARAMS, tmp_path / "out")
    inputs = FileInputs(
        ground_truth=tmp_path / "out" / GROUND_TRUTH_FILE, detections=tmp_path / "out" / DETECTIONS_FILE
    )
    again = evaluate_files(inputs, PARAMS, tmp_path / "again")
    assert again.candidate.find_value("AP")[0] == pytest.approx(first.candidate.coco.AP, abs=1e-12)
    assert again.file_names == first.file_names


def test_masks_and_keypoints_have_their_own_metrics(write_files, tmp_path):
    inputs = write_files(baseline_detections=None)
    dataset, found = (json.loads(path.read_text()) for path in (inputs.ground_truth, inputs.detections))
    for row in (*dataset["annotations"], *found):
        x, y, width, height = row["bbox"]
        row["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
        row["keypoints"] = [x, y, 2] * 17
    inputs.ground_truth.write_text(json.dumps(dataset))
    inputs.detections.write_text(json.dumps(found))
    candidate = evaluate_files(inputs, PARAMS, tmp_path / "out").candidate
    written = json.loads((tmp_path / "out" / METRICS_FILE).read_text())
    assert written["masks"]["candidate"]["AP"] == candidate.masks.AP
    assert pytest.approx(candidate.coco.AP, abs=0.05) == candidate.masks.AP
    assert written["keypoints"]["candidate"]["AP"] == candidate.keypoints.AP > 0


def test_existing_images_are_shown(write_files, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr("absl.logging.warning", lambda text, *values: warnings.append(text % values))
    images = tmp_path / "images"
    images.mkdir()
    for number in range(2):
        Image.fromarray(np.zeros((300, 300, 3), np.uint8)).save(images / f"{number}.png")
    evaluate_files(write_files(images_dir=images), PARAMS, tmp_path / "out")
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "data:image/jpeg" in page
    assert any(text.startswith("2.png: ") for text in warnings)


@pytest.mark.reliability("hostile input", "evaluate")
def test_a_file_name_outside_the_folder_is_refused(write_files, tmp_path):
    inputs = write_files(images_dir=tmp_path)
    dataset = json.loads(inputs.ground_truth.read_text())
    for image in dataset["images"]:
        image["file_name"] = "../secret.png"
    inputs.ground_truth.write_text(json.dumps(dataset))
    with pytest.raises(InputError, match=r"\.\./secret\.png: "):
        evaluate_files(inputs, PARAMS, tmp_path / "out")


SQUARE = {"id": 1, "image_id": 5, "category_id": 1, "bbox": [10, 10, 40, 40]}  # 1,600 px: medium
FOUND = {"image_id": 5, "category_id": 1, "score": 0.9, "bbox": [10, 10, 40, 40]}
POLYGON = [[10, 10, 50, 10, 50, 50, 10, 50]]
POINTS = [20.0, 20.0, 2.0] * 17


@pytest.fixture
def read(tmp_path):
    """Read annotations and detections of one image of 100 x 100 pixels."""

    def call(annotations, results, image_ids=(5,)):
        images = [{"id": image_id, "height": 100, "width": 100} for image_id in image_ids]
        truth = {"images": images, "categories": [{"id": 1, "name": "cat"}], "annotations": annotations}
        for name, content in (("truth.json", truth), ("results.json", results)):
            (tmp_path / name).write_text(json.dumps(content))
        split = read_coco_ground_truth(tmp_path / "truth.json")
        return split, read_coco_detections(tmp_path / "results.json", split).results

    return call


def test_a_mask_is_measured_by_its_pixels_and_in_sizes_of_its_own(read):
    # Left half of the square: the mask reaches only the first of the thresholds 0.50, 0.55, ...
    half = {**FOUND, "segmentation": [[10, 10, 30, 10, 30, 50, 10, 50]]}
    split, results = read([{**SQUARE, "id": 0, "segmentation": POLYGON}], [half])
    metrics = measure_file_masks(split, results, [("tiny", 0, 100), ("middling", 100, 2000)])
    assert pytest.approx(0.1) == metrics.AP
    assert [(row.name, row.num_boxes, row.AP) for row in metrics.per_size] == [
        ("tiny", 0, -1),
        ("middling", 1, pytest.approx(0.1)),
    ]


def test_ids_of_19_digits_are_distinguished(read):
    square, found = ({**row, "segmentation": POLYGON} for row in (SQUARE, FOUND))
    far = 2**63 - 2
    annotations = [{**square, "id": far + 1, "image_id": far + 1}, {**square, "id": far}]
    # The object of image 5 is detected; the other detection is in an image without objects whose id is close to one.
    split, results = read(annotations, [found, {**found, "image_id": far}], (5, far, far + 1))
    assert measure_file_masks(split, results).AR100 == 0.5


def test_an_object_without_keypoints_is_ignored(read):
    stranger = {**SQUARE, "id": 2, "bbox": [60, 60, 30, 30]}
    rows = [{**FOUND, "keypoints": points} for points in ([70.0, 70.0, 1.0] * 17, POINTS)]
    metrics = measure_file_keypoints(*read([{**SQUARE, "keypoints": POINTS}, stranger], rows))
    assert (metrics.AP, metrics.AR, metrics.APm, metrics.APl) == (pytest.approx(1), 1, pytest.approx(1), -1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has no 'segmentation'"),
        ({"segmentation": [[1, 2, 3, 4]]}, "polygon 0 .*got 4 numbers"),
        ({"segmentation": {"size": [9, 9], "counts": [81]}}, r"size \[9, 9\], allowed: .*\[100, 100\]"),
    ],
)
def test_an_annotation_with_an_invalid_mask_is_refused_with_its_index(changes, message, read):
    annotations = [{**SQUARE, "segmentation": POLYGON}, {**SQUARE, "id": 2, **changes}]
    split, results = read(annotations, [{**FOUND, "segmentation": POLYGON}])
    with pytest.raises(InputError, match=rf"truth\.json: annotations\[1\]: .*{message}"):
        measure_file_masks(split, results)


@pytest.mark.parametrize(
    ("of_truth", "found", "message"),
    [
        ({"keypoints": [1, 2, 2] * 5}, POINTS, r"annotations\[0\]: 'keypoints' has 15 numbers, allowed: 51"),
        ({"keypoints": POINTS}, [1, 2, 2] * 5, r"results\[0\]: 'keypoints' has 15 numbers, allowed: 51"),
        ({"keypoints": [1, 2]}, POINTS, r"annotations\[0\]: 'keypoints' .*got 2 numbers"),
        ({"keypoints": POINTS, "num_keypoints": -1}, POINTS, r"annotations\[0\]: 'num_keypoints' .*got -1"),
    ],
)
def test_keypoints_other_than_the_17_of_persons_are_refused(of_truth, found, message, read):
    split, results = read([{**SQUARE, **of_truth}], [{**FOUND, "keypoints": found}])
    with pytest.raises(InputError, match=message):
        measure_file_keypoints(split, results)
