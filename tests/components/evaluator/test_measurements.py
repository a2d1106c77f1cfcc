import json
import math

import pytest

from detloom.components.evaluator.analysis.error_types import ErrorType
from detloom.components.evaluator.baseline_comparison import compare
from detloom.components.evaluator.measurements import Split, measure
from detloom.components.evaluator.report.output_files import confidence_metrics, confusion_matrix
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices, ObjectSlices, SizeBin
from detloom.schemas.run_file.gates import BaselineGate
from detloom.trainer_module.evaluation.coco_metrics import compute_coco_metrics

OPTIONS = EvaluatorSettings(
    image_slices=(ImageSlices(feature="camera"),),
    object_slices=(ObjectSlices(by="side_px", edges=(20,)),),
    sizes=(SizeBin(name="tiny", max_side_px=16),),
)


@pytest.fixture
def split_of(label_map):
    def make(truth):
        features = [{"camera": ("north" if number % 2 else "south",)} for number in range(len(truth))]
        return Split(ground_truth=truth, features=features, label_map=label_map)

    return make


@pytest.fixture
def measured(make_split, split_of):
    truth, found = make_split(0, num_images=30)
    return measure(split_of(truth), found, OPTIONS)


def test_a_metric_is_found_by_its_name(measured, make_split, label_map):
    metrics = compute_coco_metrics(*make_split(0, num_images=30), label_map)
    assert measured.find_value("AP50") == (metrics.AP50, "")
    assert measured.find_value("AP75/dog") == (metrics.per_class[1].AP75, "")
    value, _ = measured.find_value("AP", "camera=north")
    assert value == next(each.metrics.AP for each in measured.slices if each.name == "camera=north")


@pytest.mark.parametrize(
    ("metric", "slice_name", "why"),
    [
        ("APl", "", "no ground truth of this size"),
        ("APl/cat", "", "no ground truth of this class and size"),
        ("AP/cow", "", "no class 'cow'"),
        ("mask_AP", "", "the model or the data have no masks"),
        ("keypoint_AP", "", "the model or the data have no keypoints"),
        ("mask_AP", "camera=north", "slices are measured on boxes only"),
        ("AP", "camera=west", "this split has no slice 'camera=west', only: camera=north, camera=south"),
    ],
)
def test_an_unmeasured_metric_has_a_reason(make_image, split_of, metric, slice_name, why):
    pairs = [make_image(number, truth=[(1, 0, 0, 20, 20)]) for number in (1, 2)]
    truth, found = zip(*pairs, strict=True)
    assert measure(split_of(truth), found, OPTIONS).find_value(metric, slice_name) == (None, why)


def test_a_crowd_is_a_group_for_open_images(make_image, split_of):
    truth, found = make_image(
        1, truth=[(1, 0, 0, 20, 20), (1, 40, 40, 99, 99)], found=[(1, 0, 0, 20, 20, 0.9)], crowds=[1]
    )
    voc = measure(split_of([truth]), [found], OPTIONS).voc
    assert voc["open_images_v2"].mAP == 1
    assert voc["open_images_challenge"].AP_by_class_id[1] == 0.5  # the group counts, but is not detected


def test_class_agnostic_metrics_ignore_a_wrong_class(make_image, split_of):
    truth, found = make_image(1, truth=[(1, 0, 0, 20, 20)], found=[(3, 0, 0, 20, 20, 0.9)])
    measured = measure(split_of([truth]), [found], OPTIONS)
    assert [each.value_of("AP") for each in (measured.coco, measured.class_agnostic)] == pytest.approx([0, 1])
    assert measured.min_scores == (math.inf,) * 3  # no true positives: no detection is used


def test_measurements_are_plain_json(measured):
    values = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    assert values["coco"]["AP"] == measured.coco.AP
    assert set(values["errors"]["cost_by_type"]) == {kind.value for kind in ErrorType}
    assert "matches" not in values
    assert "per_class" not in values["slices"][0]["metrics"]
    assert [each["name"] for each in values["slices"]] == ["camera=north", "camera=south"]
    assert values["coco"]["per_size"][0]["name"] == "tiny"


def test_an_empty_split(split_of):
    measured = measure(split_of([]), [], EvaluatorSettings())
    json.dumps(measured.to_dict(), allow_nan=False)
    assert measured.find_value("AP") == (None, "no ground truth")
    assert confidence_metrics(measured) == []


def test_a_model_compared_with_itself(measured, label_map):
    comparison = compare(measured, measured, label_map, BaselineGate(num_resamples=100))
    assert comparison.ap_change.holds(0)
    assert comparison.changes == ()
    alone = compare(measured, None, label_map, BaselineGate(num_resamples=100))
    assert (alone.ap_change, alone.candidate.AP) == (None, comparison.candidate.AP)


def test_ui_points_and_matrix_are_limited_and_sorted(measured):
    points = confidence_metrics(measured)
    assert len(points) <= 50
    assert points[0]["confidenceThreshold"] > points[-1]["confidenceThreshold"]
    assert all(0 <= point[name] <= 1 for point in points for name in point)
    matrix = confusion_matrix(measured)
    assert [each["displayName"] for each in matrix["annotationSpecs"]] == ["cat", "dog", "owl", "background"]
    assert len(matrix["rows"]) == 4
