import json

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.evaluate_coco_files import OTHER_METRICS_FILE, FileInputs, evaluate_files
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
    result = evaluate_files(write_files(), PARAMS, tmp_path / "out").evaluation
    expected = compute_coco_metrics(write_files.truth, write_files.found, label_map)
    assert result.candidate.find_value("AP")[0] == pytest.approx(expected.AP, abs=1e-12)
    assert json.loads((tmp_path / "out" / METRICS_FILE).read_text())["candidate"]["AP"] == result.candidate.coco.AP
    assert result.baseline.coco.AP < expected.AP
    assert (tmp_path / "out" / PAGE_FILE).is_file()
    assert not (tmp_path / "out" / OTHER_METRICS_FILE).exists()


def test_written_files_can_be_evaluated_again_with_the_same_metrics(write_files, tmp_path):
    first = evaluate_files(write_files(baseline_detections=None), PARAMS, tmp_path / "out").evaluation
    inputs = FileInputs(
        ground_truth=tmp_path / "out" / GROUND_TRUTH_FILE, detections=tmp_path / "out" / DETECTIONS_FILE
    )
    again = evaluate_files(inputs, PARAMS, tmp_path / "again").evaluation
    assert again.candidate.find_value("AP")[0] == pytest.approx(first.candidate.coco.AP, abs=1e-12)
    assert again.file_names == first.file_names


def test_masks_have_their_own_metrics(write_files, tmp_path):
    inputs = write_files(baseline_detections=None)
    dataset, found = (json.loads(path.read_text()) for path in (inputs.ground_truth, inputs.detections))
    for row in (*dataset["annotations"], *found):
        x, y, width, height = row["bbox"]
        row["segmentation"] = [[x, y, x + width, y, x + width, y + height, x, y + height]]
    inputs.ground_truth.write_text(json.dumps(dataset))
    inputs.detections.write_text(json.dumps(found))
    result = evaluate_files(inputs, PARAMS, tmp_path / "out")
    others = json.loads((tmp_path / "out" / OTHER_METRICS_FILE).read_text())
    assert others["candidate"]["segm"]["AP"] == result.candidate_others["segm"]["AP"]
    assert result.candidate_others["segm"]["AP"] == pytest.approx(result.evaluation.candidate.coco.AP, abs=0.05)


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
