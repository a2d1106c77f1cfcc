"""`evaluate` before and after inference, which most tests replace; test_component.py runs all of it."""

from dataclasses import replace

import apache_beam as beam
import numpy as np
import pytest

from detloom.components.evaluator import evaluate_exported as module
from detloom.components.evaluator import model_forms
from detloom.components.evaluator.evaluate_exported import EvaluationInputs, evaluate
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.image_record import ImageRecord
from detloom.components.evaluator.inference import ModelFile
from detloom.components.evaluator.record_table import RecordTable
from detloom.components.evaluator.report.output_files import LOCK_FILE
from detloom.components.storage.output_lock import hold_output
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, format_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.inference.onnx_file_runtime import RawOutputsError

QUICK = Gates(baseline=BaselineGate(num_resamples=100), latency=LatencyGate(num_images=0))
RED_GREEN = LabelMap.from_names(["red", "green"])


@pytest.fixture
def run(tmp_path, write_split, five_examples, good_model_uri, monkeypatch):
    """Run `evaluate` with the given records as the result of inference; None runs inference."""
    write_split(tmp_path / "examples", five_examples)

    def call(records=(), model_dir=good_model_uri / "Format-Serving", baseline_dir=None, gates=QUICK, **inputs):
        if records is not None:
            monkeypatch.setattr(module, "run_inference", lambda *args: RecordTable.of(records))
        out = inputs.pop("out", tmp_path / "out")
        inputs = EvaluationInputs(
            candidate_dir=str(model_dir),
            baseline_dir=str(baseline_dir) if baseline_dir else None,
            examples_uris=[str(tmp_path / "examples")],
            shard_patterns=[str(tmp_path / "examples/Split-test/*")],
            **inputs,
        )
        params = EvaluatorParams(gates=gates, settings=EvaluatorSettings(num_images=0, batch_size=2))
        return evaluate(inputs, params, lambda: beam.Pipeline(runner="DirectRunner"), str(out))

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
    return module._read_baseline(RED_GREEN, inputs)[1]


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


def test_a_candidate_that_lacks_a_signature_is_not_blessed(run, copy_model, tmp_path):
    decision = run(
        [make_record(candidate=1)], copy_model(tmp_path / "half", without=(names.SIGNATURE_EXAMPLES,))
    ).decision
    assert "'serving_examples'" in decision.reason
    assert not decision.blessed


def test_a_model_that_could_not_be_converted_is_not_blessed(run, tmp_path):
    (tmp_path / "problem.txt").write_text("The conversion crashed.")
    decision = run([make_record(candidate=1)], tflite_dir=str(tmp_path)).decision
    assert decision.sentence.startswith("Not blessed: The conversion crashed;")


def test_an_onnx_file_with_raw_outputs_is_not_evaluated(tmp_path, monkeypatch):
    def load_model(file):
        raise RawOutputsError("raw")

    monkeypatch.setattr(model_forms, "load_model", load_model)
    (tmp_path / "model.onnx").touch()
    assert model_forms.find_other_form(str(tmp_path), "tensorflow") == ({}, None)


def test_an_onnx_file_that_fails_for_one_image_is_not_blessed_or_timed(run, good_model_uri, monkeypatch):
    other = {"onnx": ModelFile("not loaded")}
    monkeypatch.setattr(module, "find_other_form", lambda *_: (other, None))
    record = replace(make_record(candidate=1, onnx=1), failures={"onnx": "no memory"})
    decision = run([record], gates=replace(QUICK, latency=LatencyGate(num_images=1))).decision
    expected = "Not blessed: The outputs of model.onnx cannot be used: in record 'a' it failed (no memory)"
    assert decision.sentence.startswith(expected)
    assert decision.forms == ("saved_model",)


@pytest.mark.reliability("torn file", "evaluate")
def test_an_incomplete_candidate_is_refused_with_its_path(run, copy_model, tmp_path):
    (copy_model(tmp_path / "half") / "assets" / "label_map.pbtxt").unlink()
    with pytest.raises(InputError, match=r"half/assets/label_map\.pbtxt"):
        run(model_dir=tmp_path / "half")


def test_a_gate_on_an_unknown_class_is_refused_before_inference(run):
    with pytest.raises(InputError, match=r"gates: got the metric 'AP/gren', .*'green'"):
        run(gates=Gates(floors=(MetricFloor(metric="AP/gren", min=0.5),)))


@pytest.mark.parametrize(
    ("items", "found", "change", "scope"),
    [
        ({1: "red"}, 1, "+0.000", "1 of 2"),  # a class was added
        ({1: "red", 2: "green", 3: "blue"}, 1, "+0.000", "2 of 2"),  # a class was lost
        ({1: "blue", 7: "red"}, 7, "+0.000", "1 of 2"),  # renumbered
        ({1: "green", 2: "red"}, 2, "+0.000", "2 of 2"),
        ({1: "green", 2: "red"}, 1, "+1.000", "2 of 2"),
        ({1: "blue", 7: "red"}, 1, "+1.000", "1 of 2"),  # the baseline finds what the candidate does not know
    ],
)
def test_models_are_compared_on_the_classes_that_both_have(items, found, change, scope, run, copy_model, tmp_path):
    baseline = copy_model(tmp_path / "baseline", label_map=LabelMap(tuple(items.items())))
    evaluation = run([make_record(candidate=1, baseline=found)], baseline_dir=baseline)
    gate = next(gate for gate in evaluation.decision.gates if gate.name.startswith("AP against the baseline"))
    assert f"differs by {change} from the baseline's" in gate.sentence
    assert f"on the {scope} classes that both have" in gate.sentence
    comparison = evaluation.comparison
    assert [row.name for row in comparison.candidate.per_class] == ["red", "green"]
    of_red = next(row for row in comparison.difference.per_class if row.name == "red")
    assert of_red.AP.value == pytest.approx(float(change))
    assert len(comparison.compared.per_class) == int(scope[0])
    assert ("Classes of both" in (tmp_path / "out/report.html").read_text()) == (scope[0] == "1")


@pytest.mark.reliability("torn file", "evaluate")
def test_a_baseline_that_cannot_be_compared_has_a_reason(copy_model, tmp_path):
    half = copy_model(tmp_path / "half", without=(names.SIGNATURE_EXAMPLES, names.SIGNATURE_IMAGES))
    other = copy_model(tmp_path / "other", label_map=LabelMap.from_names(["rot"]))
    damaged = copy_model(tmp_path / "damaged")
    (damaged / "variables" / "variables.index").write_bytes(b"")
    assert find_baseline_problem(half) is None  # only the candidate needs the others
    assert "no class in common (id 1: rot before, red now" in find_baseline_problem(other)
    assert "damaged" in find_baseline_problem(damaged)
    assert "gone" in find_baseline_problem(tmp_path / "gone")


@pytest.mark.reliability("torn file", "evaluate")
def test_damaged_shard_is_named_and_ends_the_evaluation_without_a_page(run, tmp_path):
    shard = max((tmp_path / "examples/Split-test").iterdir())
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(InputError, match=f"{shard.name}: ") as caught:
        run(records=None)
    assert len(str(caught.value)) < 300
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.reliability("read-only", "evaluate")
def test_read_only_output_is_refused_and_the_earlier_report_kept(run, disk):
    (disk.folder / "report.html").write_text("earlier")
    disk.make_read_only()
    with pytest.raises(InputError, match="Read-only file system"):
        run(out=disk.folder)
    assert (disk.folder / "report.html").read_text() == "earlier"


@pytest.mark.reliability("lost lease", "evaluate")
def test_evaluation_that_lost_its_lock_writes_no_report(run, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def lose(*_):
        (out / LOCK_FILE).unlink()
        with hold_output(str(out), LOCK_FILE, "evaluation"):
            return []

    monkeypatch.setattr(module, "_draw_images", lose)
    with pytest.raises(OSError, match=r"\.evaluate\.lock"):
        run([make_record(candidate=1)])
    assert list(out.iterdir()) == []


@pytest.mark.reliability("concurrent runs", "evaluate")
def test_second_evaluation_into_the_same_folder_is_refused_and_the_first_continues(run, tmp_path, monkeypatch):
    """Without a lock, the second would delete the records of the first, which would then read those of the second."""

    def run_second(*_):
        with pytest.raises(FolderBusyError, match=r"/out: another evaluation .*process "):
            run()
        return RecordTable.of([make_record(candidate=1)])

    monkeypatch.setattr(module, "run_inference", run_second)
    assert pytest.approx(1.0) == run(records=None).candidate.coco.AP
