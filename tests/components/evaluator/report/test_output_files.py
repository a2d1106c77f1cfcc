import io
import json
from dataclasses import replace

import evaluations
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2

from detloom.components.evaluator.blessing import BlessingDecision
from detloom.components.evaluator.report import output_files as report
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics

FILES = [
    report.METRICS_FILE,
    report.DECISION_FILE,
    report.ANALYSIS_FILE,
    report.GROUND_TRUTH_FILE,
    report.DETECTIONS_FILE,
    report.DETECTIONS_TABLE_FILE,
    report.TENSORBOARD_FOLDER,
    report.PAGE_FILE,
]


@pytest.fixture(scope="module")
def evaluation():
    return evaluations.make_evaluation(file_names=["a.jpg", "ü<b>.jpg", "c.jpg"])


@pytest.fixture(scope="module")
def folder(evaluation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    report.write_report(str(folder), evaluation, [evaluations.make_image()])
    return folder


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_all_files_are_written_and_the_page_last(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert newest.name == report.PAGE_FILE
    assert newest.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_second_evaluation_replaces_the_tensorboard_events(evaluation, tmp_path):
    for _ in range(2):
        report.write_report(str(tmp_path), evaluation, [])
    (path,) = (tmp_path / report.TENSORBOARD_FOLDER).iterdir()
    events = [event_pb2.Event.FromString(row) for row in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    values = {value.tag: value.tensor for event in events for value in event.summary.value}
    assert tf.make_ndarray(values["AP"]) == pytest.approx(evaluation.candidate.coco.AP)
    assert tf.make_ndarray(values["decision"]).item().startswith(b"Blessed: ")


def test_metrics_and_decision_survive_a_round_trip(folder, evaluation):
    metrics = read(folder, report.METRICS_FILE)
    assert CocoMetrics.from_dict(metrics["candidate"]) == evaluation.candidate.coco
    assert CocoMetrics.from_dict(metrics["baseline"]) == evaluation.baseline.coco
    assert BlessingDecision.from_dict(read(folder, report.DECISION_FILE)) == evaluation.decision


def test_the_analysis_uses_image_ids(folder, evaluation):
    analysis = read(folder, report.ANALYSIS_FILE)
    assert analysis["candidate"]["coco"] == read(folder, report.METRICS_FILE)["candidate"]
    assert analysis["baseline"]["errors"]["AP50"] == evaluation.baseline.errors.AP50
    comparison = analysis["comparison"]
    assert comparison["difference"]["AP"]["value"] == evaluation.comparison.ap_change.value
    # Second image: F1 is 1 for the candidate and 0 for the baseline. First image: 1 and 2 / (2 + 1), because the
    # baseline's false positive is below its operating point.
    gains = [(each["image_id"], each["gain"]) for each in comparison["changes"]]
    assert gains == [(2, 1.0), (1, pytest.approx(1 / 3))]


def test_without_baseline_features_and_detections_their_values_are_empty(tmp_path):
    split = replace(evaluations.make_split(), features=[{}, {}, {}])
    nothing = [evaluations.make_found(image_id) for image_id in (1, 2, 3)]
    evaluation = evaluations.make_evaluation(
        has_baseline=False, split=split, models=(nothing, nothing), options=EvaluatorSettings()
    )
    report.write_report(str(tmp_path), evaluation, [])
    assert read(tmp_path, report.METRICS_FILE)["baseline"] is None
    analysis = read(tmp_path, report.ANALYSIS_FILE)
    assert analysis["baseline"] is None
    assert analysis["comparison"]["difference"] is None
    assert analysis["comparison"]["changes"] == []
    assert not any("features" in image for image in read(tmp_path, report.GROUND_TRUTH_FILE)["images"])
    table = pq.read_table(io.BytesIO((tmp_path / report.DETECTIONS_TABLE_FILE).read_bytes()))
    assert (table.num_rows, table.column_names[:2]) == (0, ["image_id", "file_name"])
    assert read(tmp_path, report.DETECTIONS_FILE) == []


def test_the_ground_truth_contains_names_and_features(folder):
    images = read(folder, report.GROUND_TRUTH_FILE)["images"]
    assert images[1] == {
        "id": 2,
        "height": 200,
        "width": 400,
        "file_name": "ü<b>.jpg",
        "features": {"image/camera": ["north"]},
    }


def test_detections_of_the_candidate_are_written_in_both_formats(folder):
    results = read(folder, report.DETECTIONS_FILE)
    # (0.05, 0.1) to (0.45, 0.9) of 400 x 200 pixels.
    box = [20.0, 20.0, 160.0, 160.0]
    assert results[2] == {"image_id": 2, "category_id": 2, "bbox": pytest.approx(box), "score": 0.7}
    rows = pq.read_table(io.BytesIO((folder / report.DETECTIONS_TABLE_FILE).read_bytes())).to_pylist()
    assert len(rows) == len(results) == 4
    assert rows[2] == {
        "image_id": 2,
        "file_name": "ü<b>.jpg",
        "category_id": 2,
        "category": "<b>dog</b>",
        **{side: pytest.approx(value) for side, value in zip(("x", "y", "width", "height"), box, strict=True)},
        "score": 0.7,
    }


def test_keypoints_of_detections_are_a_column_of_the_table(evaluation):
    box = {"image_id": 1, "category_id": 1, "bbox": [0.0, 0.0, 4.0, 4.0], "score": 0.5}
    with_points = {**box, "keypoints": [1.0, 2.0, 2.0]}
    points = np.zeros((1, 1, 2))
    detections = [replace(each, keypoints_yx_rel=points) for each in evaluation.detections if len(each.scores) == 1]
    file = io.BytesIO()
    report._write_table(file, [[with_points], [box]], replace(evaluation, detections=detections))
    assert pq.read_table(io.BytesIO(file.getvalue()))["keypoints"].to_pylist() == [[1.0, 2.0, 2.0], None]


def test_files_do_not_depend_on_the_number_of_images_at_a_time(folder, evaluation, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_IMAGES_AT_ONCE", 2)
    report.write_report(str(tmp_path), evaluation, [])
    for name in (report.GROUND_TRUTH_FILE, report.DETECTIONS_FILE):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
        text = (tmp_path / name).read_text()
        assert text == json.dumps(json.loads(text), ensure_ascii=False) + "\n"
    tables = [pq.read_table(path / report.DETECTIONS_TABLE_FILE) for path in (folder, tmp_path)]
    assert tables[0].equals(tables[1])
