"""Checks of `evaluate` before and after inference, which is replaced here; test_executor.py runs it."""

import numpy as np
import pytest

from detloom.components.evaluator import evaluate_exported as module
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.image_record import ImageRecord
from detloom.components.evaluator.record_table import RecordTable
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, format_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor

QUICK = Gates(baseline=BaselineGate(num_resamples=100), latency=LatencyGate(num_images=1))
RED_GREEN = LabelMap.from_names(["red", "green"])


@pytest.fixture
def run(tmp_path, write_split, five_examples, good_model_uri, monkeypatch):
    """Run `evaluate` with the given records as the result of inference."""
    write_split(tmp_path / "examples", five_examples)
    (tmp_path / "out").mkdir()

    def call(records=(), model_dir=good_model_uri / "Format-Serving", baseline_dir=None, gates=QUICK):
        monkeypatch.setattr(module, "run_inference", lambda *args, **kwargs: RecordTable.of(records))
        inputs = EvaluationInputs(
            candidate_dir=str(model_dir),
            baseline_dir=str(baseline_dir) if baseline_dir else None,
            examples_uris=[str(tmp_path / "examples")],
            shard_patterns=[str(tmp_path / "examples/Split-test/*")],
        )
        params = EvaluatorParams(gates=gates, settings=EvaluatorSettings(num_images=0))
        return evaluate(inputs, params, None, str(tmp_path / "out"))

    return call


def make_record(**class_ids):
    """Make a record with one object of class 1, which each model detects as the given class."""
    box = np.array([[0.1, 0.1, 0.5, 0.5]], np.float32)
    columns = {names.BOXES: box, names.SCORES: np.ones(1, np.float32)}
    found = {name: {**columns, names.CLASSES: np.array([class_id])} for name, class_id in class_ids.items()}
    truth = {"boxes_yxyx_rel": box, "class_ids": np.array([1]), "is_crowd": np.zeros(1, bool)}
    return ImageRecord(source_id="a", image_hw=(60, 80), found=found, truth=truth)


def find_baseline_problem(baseline_dir):
    inputs = EvaluationInputs(candidate_dir="", baseline_dir=str(baseline_dir), examples_uris=(), shard_patterns=())
    return module._find_baseline_problem(RED_GREEN, inputs)


def test_a_model_whose_classes_differ_from_the_data_is_refused(run, copy_model, tmp_path):
    model_dir = copy_model(tmp_path / "other", label_map=LabelMap.from_names(["green", "red"]))
    with pytest.raises(InputError, match=r"other: .*classes .*label_map\.pbtxt"):
        run(model_dir=model_dir)


def test_a_model_whose_classes_differ_from_the_parameter_is_refused():
    inputs = EvaluationInputs(candidate_dir="model", baseline_dir=None, examples_uris=(), shard_patterns=())
    module._check_label_map(RED_GREEN, inputs, format_label_map(RED_GREEN))
    with pytest.raises(InputError, match=r"model: .*classes .*parameter label_map"):
        module._check_label_map(RED_GREEN, inputs, format_label_map(LabelMap.from_names(["green", "red"])))


def test_a_class_id_outside_the_label_map_is_refused(run):
    with pytest.raises(InputError, match=r"Format-Serving: .*record 'a' .*class id 6, .*\(1 to 2\)"):
        run([make_record(candidate=6)])


def test_a_baseline_with_unusable_outputs_is_not_compared(run, good_model_uri):
    evaluation = run([make_record(candidate=1, baseline=6)], baseline_dir=good_model_uri / "Format-Serving")
    assert "class id 6" in evaluation.decision.baseline_problem
    assert evaluation.baseline is None


def test_a_candidate_without_the_encoded_signature_is_not_blessed(run, copy_model, tmp_path):
    model_dir = copy_model(tmp_path / "half", without=(names.SIGNATURE_ENCODED,))
    decision = run([make_record(candidate=1)], model_dir).decision
    assert "'serving_encoded'" in decision.reason
    assert not decision.blessed


@pytest.mark.reliability("torn file", "evaluate")
def test_an_incomplete_candidate_is_refused_with_its_path(run, copy_model, tmp_path):
    (copy_model(tmp_path / "half") / "assets" / "label_map.pbtxt").unlink()
    with pytest.raises(InputError, match=r"half/assets/label_map\.pbtxt"):
        run(model_dir=tmp_path / "half")


def test_a_gate_on_an_unknown_class_is_refused_before_inference(run):
    with pytest.raises(InputError, match=r"gates: got the metric 'AP/gren', .*'green'"):
        run(gates=Gates(floors=(MetricFloor(metric="AP/gren", min=0.5),)))


def test_a_baseline_that_cannot_be_timed_is_compared(copy_model, tmp_path):
    model_dir = copy_model(tmp_path / "old", without=(names.SIGNATURE_ENCODED, names.SIGNATURE_IMAGES))
    assert find_baseline_problem(model_dir) is None
    assert not module._has_signature(str(model_dir), names.SIGNATURE_ENCODED)


def test_a_baseline_with_different_classes_is_not_compared(copy_model, tmp_path):
    model_dir = copy_model(tmp_path / "old", label_map=LabelMap.from_names(["red"]))
    assert "(id 2: none before, green now)" in find_baseline_problem(model_dir)


def test_a_baseline_without_files_is_not_compared(tmp_path):
    assert "gone" in find_baseline_problem(tmp_path / "gone")


@pytest.mark.reliability("torn file", "evaluate")
def test_a_baseline_with_damaged_weights_is_not_compared(copy_model, tmp_path):
    (copy_model(tmp_path / "old") / "variables" / "variables.index").write_bytes(b"")
    assert "old" in find_baseline_problem(tmp_path / "old")
