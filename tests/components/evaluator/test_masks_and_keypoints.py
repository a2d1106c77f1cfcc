"""A model with masks and keypoints from the records to the report, the gates and the files."""

import json

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
import pytest

from detloom.components.evaluator.evaluate_coco_files import FileInputs, evaluate_files
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.image_record import ImageRecord, decode_record, encode_record
from detloom.components.evaluator.inference import parse_record
from detloom.components.evaluator.mask_and_keypoint_truth import WantedShapes
from detloom.components.evaluator.measurements import Split, measure_keypoints
from detloom.schemas.contracts.label_map import LabelMap, format_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor
from detloom.trainer_module.boxes.masks import as_counts, encode_masks
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

BOX, POINTS = (0.25, 0.25, 0.75, 0.75), [(0.25, 0.25, 2), (0.75, 0.75, 1)]
MASK = np.zeros((64, 64), np.uint8)
MASK[16:48, 16:48] = 1
RED_GREEN = LabelMap.from_names(["red", "green"])
SHAPES = WantedShapes(masks=True, keypoint_class_id=1, num_keypoints=2)
GATES = Gates(
    baseline=BaselineGate(num_resamples=100),
    latency=LatencyGate(num_images=0),
    floors=(
        MetricFloor(metric="mask_AP", min=0.9),
        MetricFloor(metric="mask_AP/green", min=0.9),
        MetricFloor(metric="keypoint_AP50", min=0.9),
    ),
)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, tiny_detector, write_records, make_example):
    """Result and folder for a red object, a green one, and a crowd without a mask beside a red object."""
    folder = tmp_path_factory.mktemp("shapes")
    model_dir = tiny_detector.write_tiny_detector(folder / "Format-Serving", has_shapes=True)
    records = [
        make_example([BOX], [1], name="a", masks=[MASK], keypoints=[POINTS]),
        make_example([BOX], [2], name="b", masks=[MASK], keypoints=[[]]),
        make_example([BOX, (0, 0, 0.1, 0.1)], [1, 2], name="c", crowds=[0, 1], masks=[MASK, None], keypoints=[[], []]),
    ]
    write_records(folder / "examples" / "Split-test" / "data", records)
    (folder / "examples" / "label_map.pbtxt").write_text(format_label_map(RED_GREEN))
    inputs = EvaluationInputs(
        candidate_dir=str(model_dir),
        baseline_dir=str(model_dir),
        examples_uris=[str(folder / "examples")],
        shard_patterns=[str(folder / "examples" / "Split-test" / "*")],
    )
    params = EvaluatorParams(gates=GATES, settings=EvaluatorSettings(num_images=2, batch_size=2))
    return evaluate(inputs, params, beam.Pipeline, str(folder / "out")), folder / "out"


def test_masks_and_keypoints_are_measured_gated_and_reported(evaluated):
    """All objects are found exactly. A red object without labelled keypoints and the detection on it are ignored."""
    result, out = evaluated
    assert result.decision.blessed, result.decision.reason
    found = result.candidate
    assert [each.AP for each in (found.coco, found.masks, found.keypoints)] == pytest.approx([1, 1, 1])
    assert found.find_value("mask_AP/red") == (found.masks.per_class[0].AP, "")
    assert found.find_value("keypoint_APl") == (None, "no ground truth of this size with labelled keypoints")
    assert result.baseline.masks == found.masks
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["masks"]["candidate"]["AP"] == metrics["masks"]["baseline"]["AP"] == found.masks.AP
    assert metrics["keypoints"]["candidate"] == found.keypoints.to_dict()
    page = (out / "report.html").read_text()
    assert "<h3>Masks</h3>" in page
    assert "<h3>Keypoints</h3>" in page
    row = json.loads((out / "detections.json").read_text())[0]
    assert row["keypoints"] == [16, 16, 1, 48, 48, 1]
    assert row["segmentation"] == {"size": [64, 64], "counts": encode_masks([MASK])[0].decode()}
    table = pq.read_table(out / "detections.parquet")
    assert {"segmentation", "keypoints"} <= set(table.column_names)


def test_the_files_of_an_evaluation_give_the_same_numbers_again(evaluated, tmp_path):
    result, out = evaluated
    inputs = FileInputs(detections=out / "detections.json", ground_truth=out / "ground_truth.json")
    params = EvaluatorParams(gates=GATES, settings=EvaluatorSettings(num_images=0))
    again = evaluate_files(inputs, params, tmp_path / "again")
    assert again.candidate.masks.AP == result.candidate.masks.AP
    assert again.candidate.keypoints == result.candidate.keypoints


def test_keypoints_of_another_number_are_not_measured():
    """A baseline may have other keypoints than the candidate."""
    truth = ImageGroundTruth(
        1, (64, 64), np.array([BOX]), np.ones(1, int), np.zeros(1, bool), keypoints_yx_rel=np.full((1, 2, 2), 0.5)
    )
    keypoints = Keypoints("red", ("upper left", "lower right"), (0.05, 0.1))
    split = Split(ground_truth=[truth], features=[{}], label_map=RED_GREEN, keypoints=keypoints)

    def found(num_points):
        points = np.full((1, num_points, 2), 0.5)
        return ImageDetections(1, np.array([BOX]), np.ones(1), np.ones(1, int), keypoints_yx_rel=points)

    assert pytest.approx(1) == measure_keypoints(split, [found(2)]).AP
    assert measure_keypoints(split, [found(3)]) is None


def test_records_keep_masks_of_different_lengths():
    counts = as_counts([encode_masks([MASK])[0], encode_masks([np.zeros((64, 64))])[0]])
    truth = {"boxes_yxyx_rel": np.zeros((2, 4)), "class_ids": np.ones(2, int), "is_crowd": np.zeros(2, bool)}
    record = ImageRecord(source_id="a", image_hw=(64, 64), truth={**truth, "mask_counts": counts})
    read = decode_record(encode_record(record))
    assert read.truth["mask_counts"].tolist() == counts.tolist()
    assert read.truth["is_crowd"].tolist() == [False, False]


@pytest.mark.parametrize("counts", [b"not runs", b"P"])
def test_records_with_damaged_masks_are_refused(counts):
    record = ImageRecord(source_id="a", image_hw=(64, 64), truth={"mask_counts": as_counts([counts])})
    with pytest.raises(InputError, match="intermediate file of the evaluation"):
        decode_record(encode_record(record))


def test_ground_truth_has_masks_and_the_keypoints_of_the_class(make_example):
    record = parse_record(
        make_example([BOX, BOX], [2, 1], masks=[MASK, MASK], keypoints=[[(0, 0, 2)], POINTS]), shapes=SHAPES
    )
    assert record.truth["mask_counts"].tolist() == encode_masks([MASK, MASK]).tolist()
    np.testing.assert_array_equal(
        record.truth["keypoints_yx_rel"], [[[np.nan, np.nan]] * 2, [[0.25, 0.25], [0.75, 0.75]]]
    )
    assert "mask_counts" not in parse_record(make_example([BOX]), shapes=SHAPES).truth


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"keypoints": [POINTS * 2]}, "has an object with 4 keypoints, allowed: 0 or 2"),
        ({"masks": [MASK[:9]]}, "has a mask that cannot be read"),
        ({"masks": [MASK, MASK]}, "has 1 boxes, but 2 masks"),
    ],
)
def test_ground_truth_that_cannot_be_read_is_a_problem_of_the_record(changes, problem, make_example):
    assert parse_record(make_example([BOX], **changes), shapes=SHAPES).problem.startswith(problem)
