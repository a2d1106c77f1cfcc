import json
import re

import numpy as np
import pytest

from detloom.components.evaluator.decision import decide
from detloom.components.evaluator.report import (
    DECISION_FILE,
    DETECTIONS_FILE,
    GROUND_TRUTH_FILE,
    METRICS_FILE,
    PAGE_FILE,
    Evaluation,
    draw_picture,
    format_page,
    write_report,
)
from detloom.schemas.label_map import LabelMap
from detloom.schemas.run_file import Gates, MetricFloor
from detloom.trainer_module.coco_metrics import ImageDetections, ImageGroundTruth, compute_coco_metrics

LABEL_MAP = LabelMap.from_names(["cat", "<b>dog</b>"])
TRUTH = ImageGroundTruth(1, (100, 200), np.array([[0.1, 0.1, 0.9, 0.9]]), np.array([1]), np.array([False]))
FOUND = ImageDetections(1, np.array([[0.1, 0.1, 0.9, 0.9]] * 2), np.array([0.9, 0.3]), np.array([1, 2]))


def make_evaluation(baseline=True):
    metrics = compute_coco_metrics([TRUTH], [FOUND], LABEL_MAP)
    before = compute_coco_metrics([TRUTH], [], LABEL_MAP) if baseline else None
    return Evaluation(
        label_map=LABEL_MAP,
        ground_truth=[TRUTH],
        detections=[FOUND],
        file_names={1: "a.jpg"},
        candidate=metrics,
        baseline=before,
        decision=decide(metrics, before, Gates(floors=(MetricFloor(metric="AP50", min=0.5),))),
        lines=[("Split", "test: 1 images, 1 boxes")],
    )


@pytest.fixture
def picture():
    return draw_picture(np.zeros((100, 200, 3), np.uint8), "a.jpg", TRUTH, FOUND, LABEL_MAP)


def test_the_page_starts_with_the_decision_and_its_reason(picture):
    evaluation = make_evaluation()
    page = format_page(evaluation, [picture])
    assert page.index("<h1>Blessed</h1>") < page.index("AP50 1.000 is at least 0.500") < page.index("<table>")


def test_the_page_is_self_contained(picture):
    page = format_page(make_evaluation(), [picture])
    addresses = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)|url\(([^)]*)\)|@import""", page)
    assert all(address.startswith("data:image/jpeg;base64,") for address, _ in addresses)
    assert len(addresses) == 2
    assert "<script" not in page


def test_class_names_are_escaped():
    page = format_page(make_evaluation(), [])
    assert "<b>dog" not in page
    assert "&lt;b&gt;dog" in page


def test_a_metric_without_ground_truth_is_a_dash_and_explained():
    page = format_page(make_evaluation(), [])
    assert "no ground truth of this size" in page
    assert "-1.000" not in page


def test_a_baseline_adds_its_columns():
    assert '<th class="n">Baseline</th>' in format_page(make_evaluation(), [])
    assert '<th class="n">Baseline</th>' not in format_page(make_evaluation(baseline=False), [])


def test_faint_detections_are_not_drawn(picture):
    assert (picture.num_truth, picture.num_found) == (1, 1)


def test_large_pictures_become_small_ones():
    large = np.random.default_rng(0).integers(0, 255, (3000, 4000, 3), np.uint8)
    picture = draw_picture(large, "a.jpg", TRUTH, FOUND, LABEL_MAP)
    assert len(picture.truth_uri) < 250_000  # noise, the worst case: a photograph takes a tenth


def test_the_five_files_are_written(tmp_path, picture):
    evaluation = make_evaluation()
    write_report(str(tmp_path), evaluation, [picture])
    read = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert sorted(read) == sorted([METRICS_FILE, DECISION_FILE, GROUND_TRUTH_FILE, DETECTIONS_FILE, PAGE_FILE])
    assert json.loads(read[METRICS_FILE])["baseline"]["AP"] == 0.0
    assert json.loads(read[DECISION_FILE])["reason"] == evaluation.decision.reason
    assert json.loads(read[DETECTIONS_FILE])[0] == {
        "image_id": 1,
        "category_id": 1,
        "bbox": pytest.approx([20, 10, 160, 80]),
        "score": 0.9,
    }
    assert json.loads(read[GROUND_TRUTH_FILE])["images"] == [
        {"id": 1, "height": 100, "width": 200, "file_name": "a.jpg"}
    ]
