import json
import shutil
from pathlib import Path

import evaluations
import pytest
import tiny_onnx
from artifacts import make_artifact
from tfx.components.evaluator.executor import Executor as TfxEvaluatorExecutor
from tfx.components.util import model_utils
from tfx.proto.orchestration import pipeline_pb2
from tfx.types import Channel, artifact_utils
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun

from detloom.components.artifact_types import CurvesForUi, DatasetReport, MetricsForUi, PageForUi, TextForUi
from detloom.components.evaluator import component
from detloom.components.evaluator.component import DetectionEvaluator, DetectionEvaluatorExecutor
from detloom.components.evaluator.evaluation_result import EvaluatorParams
from detloom.components.evaluator.report.output_files import DETECTIONS_FILE, METRICS_FILE, PAGE_FILE
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricFloor

UI_TYPES = {"page": PageForUi, "summary": TextForUi, "metrics": MetricsForUi, "curves": CurvesForUi}
FLOOR = (MetricFloor(metric="AP", min=0.99),)
QUICK = {"baseline": BaselineGate(num_resamples=100), "latency": LatencyGate(num_images=1)}


@pytest.fixture(scope="module")
def examples(tmp_path_factory, write_split, five_examples):
    uri = tmp_path_factory.mktemp("examples")
    write_split(uri, five_examples)
    artifact = make_artifact(Examples, uri, 1, span=3, input_fingerprint="num_files:4")
    artifact.split_names = artifact_utils.encode_split_names(["train", "test"])
    return artifact


class Done:
    """The outputs of one call of `Do`."""

    def __init__(self, folder, blessing, ui):
        self.folder, self.blessing, self.ui = folder, blessing, ui
        self.message = blessing.get_string_custom_property("blessing_message")
        self.is_blessed = model_utils.is_model_blessed(blessing)

    def read(self, name):
        return json.loads((self.folder / name).read_text())


def do(
    folder,
    examples,
    model_uri,
    baseline_uri=None,
    *,
    num_images=0,
    more_inputs=None,
    gates=None,
    split="test",
    context=None,
    runtime="tensorflow",
):
    """Run `Do` with outputs in `folder`."""
    inputs = {"examples": [examples], "model": [make_artifact(Model, model_uri, 7)], **(more_inputs or {})}
    if baseline_uri:
        inputs["baseline_model"] = [make_artifact(Model, baseline_uri, 5)]
    outputs = {
        "evaluation": [make_artifact(ModelEvaluation, f"{folder}/evaluation", 8)],
        "blessing": [make_artifact(ModelBlessing, f"{folder}/blessing", 9)],
        **{name: [make_artifact(kind, f"{folder}/{name}", 10)] for name, kind in UI_TYPES.items()},
    }
    settings = EvaluatorSettings(batch_size=2, num_images=num_images, runtime=runtime)
    params = EvaluatorParams(split=split, settings=settings, gates=gates or Gates(**QUICK))
    DetectionEvaluatorExecutor(context).Do(
        inputs, outputs, {**params.to_properties(), "current_component_id": "DetectionEvaluator"}
    )
    return Done(Path(f"{folder}/evaluation"), outputs["blessing"][0], {name: outputs[name][0] for name in UI_TYPES})


@pytest.fixture(scope="module")
def blessed(tmp_path_factory, examples, good_model_uri, shifted_model_uri):
    """A candidate without errors against a worse baseline, with all optional inputs and files of a killed run."""
    folder = tmp_path_factory.mktemp("blessed")
    check = {"title": "Inverted boxes", "sentence": "no box is inverted", "status": "passed"}
    (folder / "report").mkdir()
    (folder / "report" / "report.json").write_text(json.dumps({"checks": [check]}))
    (folder / "run").mkdir()
    rows = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2)]
    (folder / "run" / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kin')
    (folder / "evaluation" / ".records").mkdir(parents=True)
    (folder / "evaluation" / ".records" / "records-00000-of-00009").write_bytes(b"not to be unpickled")
    more = {
        "dataset_report": [make_artifact(DatasetReport, folder / "report", 20)],
        "model_run": [make_artifact(ModelRun, folder / "run", 21)],
    }
    gates = Gates(floors=FLOOR, **QUICK)
    return do(folder, examples, good_model_uri, shifted_model_uri, num_images=3, more_inputs=more, gates=gates)


@pytest.fixture
def replace_evaluate(monkeypatch):
    """Replace `evaluate` by a function that returns the given evaluation; return the list of its inputs."""

    def replace(evaluation):
        calls = []

        def evaluate(inputs, params, make_pipeline, out_dir):
            calls.append(inputs)
            (Path(out_dir) / PAGE_FILE).write_text("page")
            return evaluation

        monkeypatch.setattr(component, "evaluate", evaluate)
        return calls

    return replace


def test_a_better_model_is_blessed_in_tfx_format(blessed, good_model_uri, shifted_model_uri):
    blessing = blessed.blessing
    assert blessed.is_blessed
    assert blessing.get_string_custom_property("current_model") == str(good_model_uri)
    assert blessing.get_int_custom_property("current_model_id") == 7
    assert blessing.get_string_custom_property("baseline_model") == str(shifted_model_uri)
    assert blessing.get_int_custom_property("baseline_model_id") == 5
    assert blessing.get_string_custom_property("component_id") == "DetectionEvaluator"
    assert [path.name for path in (blessed.folder.parent / "blessing").iterdir()] == ["BLESSED"]


def test_a_refused_model_has_a_blessing_with_the_reason(tmp_path, examples, good_model_uri, replace_evaluate):
    evaluation = evaluations.make_evaluation(gates=Gates(floors=(MetricFloor(metric="APs", min=0.1),)))
    replace_evaluate(evaluation)
    done = do(tmp_path, examples, good_model_uri, tmp_path / "old")
    assert done.blessing.get_int_custom_property("blessed") == 0
    assert done.message == evaluation.decision.sentence
    assert done.blessing.get_string_custom_property("baseline_model") == str(tmp_path / "old")
    assert [path.name for path in (tmp_path / "blessing").iterdir()] == ["NOT_BLESSED"]


@pytest.mark.reliability("kill", "evaluate")
def test_metrics_of_a_perfect_model_without_the_files_of_a_killed_run(blessed):
    metrics = blessed.read(METRICS_FILE)["candidate"]
    assert (metrics["num_images"], metrics["num_boxes"]) == (5, 6)
    assert metrics["AP"] == pytest.approx(1.0)
    assert [row["num_boxes"] for row in metrics["per_class"]] == [3, 3]
    assert len(blessed.read(DETECTIONS_FILE)) == 6
    assert not (blessed.folder / ".records").exists()


def test_user_interface_artifacts_are_written(blessed):
    folder, metrics, curves = blessed.folder, blessed.ui["metrics"], blessed.ui["curves"]
    assert (folder.parent / "page" / PAGE_FILE).read_text() == (folder / PAGE_FILE).read_text()
    assert (folder.parent / "summary" / "summary.md").read_text().startswith("# Blessed")
    assert metrics.get_float_custom_property("AP") == pytest.approx(1.0)
    assert metrics.get_float_custom_property("AP/green") == pytest.approx(1.0)
    assert metrics.get_float_custom_property("AP change") > 0.1
    assert metrics.get_float_custom_property("median latency ms") > 0
    points = curves.get_json_value_custom_property("confidenceMetrics")
    assert points[-1] == {
        "confidenceThreshold": pytest.approx(0.8),
        "recall": 1,
        "precision": 1,
        "falsePositiveRate": 0,
    }
    matrix = curves.get_json_value_custom_property("confusionMatrix")
    assert [each["row"] for each in matrix["rows"]] == [[3, 0, 0], [0, 3, 0], [0, 0, 0]]


def test_the_page_shows_lineage_data_checks_and_training_curves(blessed, good_model_uri):
    page = (blessed.folder / PAGE_FILE).read_text()
    for fact in ("artifact 7", "artifact 5", "artifact 1, span 3, files num_files:4", str(good_model_uri)):
        assert fact in page
    assert "no box is inverted" in page
    assert "train loss" in page
    assert page.count("data:image/jpeg") == 3  # no errors and no changes: only the first images of the split


@pytest.mark.slow  # converts a model
@pytest.mark.reliability("torn file", "evaluate")
def test_tflite_variants_are_evaluated_and_damaged_ones_skipped(tmp_path, examples, good_model_uri, tiny_detector):
    shutil.copytree(good_model_uri, tmp_path / "model")
    tiny_detector.write_tiny_tflite(tmp_path / "model" / "Format-TFLite" / "int8.tflite", shift=0.1)
    (tmp_path / "model" / "Format-TFLite" / "damaged.tflite").write_bytes(b"TFL3")
    done = do(tmp_path, examples, tmp_path / "model", gates=Gates(max_int8_ap_drop=0.01, **QUICK))
    assert "AP lost by int8" in done.message
    assert not done.is_blessed
    variants = done.read(METRICS_FILE)["variants"]
    assert list(variants) == ["int8"]
    assert 0.1 < variants["int8"]["AP"] < 0.9
    assert "int8" in (done.folder / PAGE_FILE).read_text()


@pytest.fixture(scope="module")
def boxed(tmp_path_factory, write_split, make_one_box, good_model_uri):
    """Examples with one object, and a model whose SavedModel and `model.onnx` find it."""
    folder = tmp_path_factory.mktemp("boxed")
    write_split(folder / "examples", [make_one_box(name) for name in "ab"], num_shards=1)
    examples = make_artifact(Examples, folder / "examples", 1)
    examples.split_names = artifact_utils.encode_split_names(["test"])
    shutil.copytree(good_model_uri, folder / "model")
    tiny_onnx.write_tiny_onnx(folder / "model" / "Format-Serving")
    return examples, folder / "model"


@pytest.fixture
def changed_onnx(boxed, tmp_path):
    """Copy this model with another box in `model.onnx`."""

    def change(box):
        shutil.copytree(boxed[1], tmp_path / "model")
        tiny_onnx.write_tiny_onnx(tmp_path / "model" / "Format-Serving", box=box)
        return tmp_path / "model"

    return change


FLOORED = Gates(floors=FLOOR, **QUICK)
HALF_BOX = tuple(side / 2 for side in tiny_onnx.BOX)


def test_the_onnx_file_is_evaluated_with_its_latency(boxed, tmp_path):
    done = do(tmp_path, *boxed, gates=FLOORED)
    assert done.is_blessed
    assert "difference in AP between the SavedModel and model.onnx 0.0000 is at most 0.001" in done.message
    assert json.loads(done.blessing.get_string_custom_property("blessed_forms")) == ["saved_model", "onnx"]
    assert done.read(METRICS_FILE)["variants"]["onnx"]["AP"] == pytest.approx(1.0)
    other = done.read("analysis.json")["other_form"]
    assert (other["name"], other["aps"]["AP"]) == ("onnx", pytest.approx(1.0))
    assert other["latency"]["median_ms"] > 0
    assert (done.folder / PAGE_FILE).read_text().count("model.onnx</td>") == 2  # AP, and latency


def test_a_model_whose_onnx_file_halves_boxes_is_not_blessed(boxed, changed_onnx, tmp_path):
    done = do(tmp_path, boxed[0], changed_onnx(HALF_BOX), gates=FLOORED)
    assert not done.is_blessed
    assert "ifference in AP between the SavedModel and model.onnx 1.0000 is above 0.001" in done.message


def test_boxes_of_the_onnx_file_must_be_inside_of_the_image(boxed, changed_onnx, tmp_path):
    done = do(tmp_path, boxed[0], changed_onnx((0.1, 0.2, 0.3, 1.5)), gates=FLOORED)
    assert not done.is_blessed
    assert done.message.startswith("Not blessed: The detections of model.onnx in image 1 have box corners")


def test_the_runtime_of_the_settings_judges_candidate_and_baseline(boxed, changed_onnx, good_model_uri, tmp_path):
    examples, same = boxed
    candidate = changed_onnx(HALF_BOX)
    done = do(tmp_path / "new", examples, candidate, same, runtime="onnxruntime")
    metrics = done.read(METRICS_FILE)
    assert [metrics[name]["AP"] for name in ("candidate", "baseline")] == pytest.approx([0, 1])
    assert metrics["variants"]["saved_model"]["AP"] == pytest.approx(1)
    assert done.read("decision.json")["forms"] == ["onnx"]  # an override must not serve the other one


def test_a_baseline_without_onnx_file_is_run_by_tensorflow(boxed, good_model_uri, tmp_path, caplog):
    done = do(tmp_path, *boxed, good_model_uri, runtime="onnxruntime")
    assert "TensorFlow runs the baseline" in caplog.text
    assert done.read(METRICS_FILE)["baseline"]["AP"] == pytest.approx(1)
    assert "candidate: onnxruntime, baseline: tensorflow" in (done.folder / PAGE_FILE).read_text()


def test_a_candidate_without_the_file_of_the_runtime_is_refused(boxed, good_model_uri, tmp_path):
    with pytest.raises(InputError, match=r"has no model\.onnx, which onnxruntime needs"):
        do(tmp_path, boxed[0], good_model_uri, runtime="onnxruntime")


@pytest.mark.reliability("torn file", "evaluate")
def test_a_damaged_onnx_file_is_not_blessed_with_the_reason(boxed, changed_onnx, tmp_path):
    model = changed_onnx(tiny_onnx.BOX)
    path = model / "Format-Serving" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-20])
    done = do(tmp_path, boxed[0], model, gates=FLOORED)
    assert not done.is_blessed
    assert done.message.startswith("Not blessed: The file model.onnx cannot be loaded (")
    assert json.loads(done.blessing.get_string_custom_property("blessed_forms")) == ["saved_model"]


@pytest.mark.slow  # an evaluation from end to end
def test_remote_addresses_are_read_and_written(file_address, examples, good_model_uri, shifted_model_uri, tmp_path):
    """As on Dataflow or Flink."""
    there = make_artifact(Examples, file_address(examples.uri), 1)
    there.split_names = examples.split_names
    model, baseline = map(file_address, (good_model_uri, shifted_model_uri))
    done = do(file_address(tmp_path), there, model, baseline, num_images=2)
    assert done.blessing.get_int_custom_property("blessed") in (0, 1)
    written = {path.name for path in (tmp_path / "evaluation").iterdir()}
    assert {"report.html", "metrics.json", "decision.json"} <= written
    assert ".records" not in written
    assert len(list((tmp_path / "blessing").iterdir())) == 1


def test_a_model_that_is_its_own_baseline_is_not_compared(tmp_path, examples, good_model_uri, replace_evaluate):
    calls = replace_evaluate(evaluations.make_evaluation(has_baseline=False))
    context = DetectionEvaluatorExecutor.Context(pipeline_info=pipeline_pb2.PipelineInfo(id="cells"))
    done = do(tmp_path, examples, good_model_uri, good_model_uri, context=context)
    assert calls[0].pipeline == "cells"
    assert [(inputs.baseline_dir, inputs.is_blessed_already) for inputs in calls] == [(None, True)]
    assert not done.blessing.has_custom_property("baseline_model_id")


@pytest.mark.parametrize("named", ["serving", "serving/20"])
def test_an_importer_may_name_pushed_versions_as_the_baseline(
    tmp_path, examples, good_model_uri, shifted_model_uri, replace_evaluate, named
):
    for version in ("9", "20"):
        shutil.copytree(shifted_model_uri / "Format-Serving", tmp_path / "serving" / version)
    calls = replace_evaluate(evaluations.make_evaluation(has_baseline=False))
    do(tmp_path, examples, good_model_uri, tmp_path / named)
    assert calls[0].baseline_dir == str(tmp_path / "serving" / "20")


def test_an_unknown_split_is_refused_with_the_known_splits(tmp_path, examples, good_model_uri):
    with pytest.raises(InputError, match="'tset', allowed: train, test"):
        do(tmp_path, examples, good_model_uri, split="tset")


# --- the component ----------------------------------------------------------------------------------------------------


def make_component(**inputs):
    return DetectionEvaluator(examples=Channel(type=Examples), model=Channel(type=Model), split="val", **inputs)


def test_the_constructor_declares_types_and_properties():
    component = make_component()
    assert component.outputs["evaluation"].type is ModelEvaluation
    assert component.outputs["blessing"].type is ModelBlessing
    assert "baseline_model" not in component.inputs
    assert "baseline_model" in make_component(baseline_model=Channel(type=Model)).inputs
    params = EvaluatorParams(split="val", code_fingerprint=component.exec_properties["code_fingerprint"])
    assert component.exec_properties == params.to_properties()
    assert EvaluatorParams.from_properties(component.exec_properties) == params


def test_the_content_of_the_label_map_is_a_property(tmp_path):
    write_label_map(tmp_path / "map.pbtxt", LabelMap.from_names(["cat"]))
    properties = make_component(label_map=tmp_path / "map.pbtxt").exec_properties
    assert EvaluatorParams.from_properties(properties).label_map == (tmp_path / "map.pbtxt").read_text()


def test_the_executor_has_a_stable_path_and_is_a_subclass_of_tfxs():
    assert issubclass(DetectionEvaluatorExecutor, TfxEvaluatorExecutor)  # for Vertex AI
    # Compiled pipelines store this path.
    path = f"{DetectionEvaluatorExecutor.__module__}.{DetectionEvaluatorExecutor.__name__}"
    assert path == "detloom.components.evaluator.component.DetectionEvaluatorExecutor"
    assert DetectionEvaluator.EXECUTOR_SPEC.class_path == path
