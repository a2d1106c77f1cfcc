import json
import shutil

import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2
from tfx.components.evaluator.executor import Executor as TfxEvaluatorExecutor
from tfx.components.util import model_utils
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation, ModelRun

from detloom.components.artifact_types import CurvesForUi, DatasetReport, MetricsForUi, PageForUi, TextForUi
from detloom.components.evaluator.executor import Executor
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.report import (
    DECISION_FILE,
    DETECTIONS_FILE,
    METRICS_FILE,
    PAGE_FILE,
    TENSORBOARD_FOLDER,
)
from detloom.schemas import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import BaselineGate, Gates, MetricFloor
from detloom.schemas.label_map import LabelMap

UI_TYPES = {"page": PageForUi, "summary": TextForUi, "metrics": MetricsForUi, "curves": CurvesForUi}


def make_artifact(kind, uri, artifact_id):
    artifact = kind()
    artifact.uri, artifact.id = str(uri), artifact_id
    return artifact


@pytest.fixture
def do(tmp_path, write_split, five_examples, good_model_uri):
    """Runs `Do` on temporary artifacts; returns the evaluation's folder and the blessing."""
    write_split(tmp_path / "examples", five_examples)
    examples = make_artifact(Examples, tmp_path / "examples", 1)
    examples.split_names = artifact_utils.encode_split_names(["train", "test"])

    def call(model_uri=good_model_uri, baseline_uri=None, num_pictures=2, more_inputs=None, **params):
        inputs = {"examples": [examples], "model": [make_artifact(Model, model_uri, 7)], **(more_inputs or {})}
        if baseline_uri:
            inputs["baseline_model"] = [make_artifact(Model, baseline_uri, 5)]
        evaluation = make_artifact(ModelEvaluation, tmp_path / "evaluation", 8)
        blessing = make_artifact(ModelBlessing, tmp_path / "blessing", 9)
        settings = Evaluator(batch_size=2, num_pictures=num_pictures)
        properties = EvaluatorParams(settings=settings, **params).to_properties()
        outputs = {"evaluation": [evaluation], "blessing": [blessing]}
        for name, kind in UI_TYPES.items():
            outputs[name] = [make_artifact(kind, tmp_path / name, 10)]
        call.ui = {name: outputs[name][0] for name in UI_TYPES}
        Executor().Do(inputs, outputs, {**properties, "current_component_id": "DetectionEvaluator"})
        return tmp_path / "evaluation", blessing

    call.examples = examples
    return call


def test_a_right_model_is_blessed_as_tfx_writes_it(do, good_model_uri):
    folder, blessing = do(gates=Gates(floors=(MetricFloor(metric="AP", min=0.99),)))
    assert model_utils.is_model_blessed(blessing)
    assert blessing.get_string_custom_property("current_model") == str(good_model_uri)
    assert blessing.get_int_custom_property("current_model_id") == 7
    assert blessing.get_string_custom_property("component_id") == "DetectionEvaluator"
    assert not blessing.has_custom_property("baseline_model_id")
    assert [path.name for path in (folder.parent / "blessing").iterdir()] == ["BLESSED"]


def test_a_model_below_its_floor_is_not_blessed_and_says_why(do, shifted_model_uri):
    folder, blessing = do(shifted_model_uri, gates=Gates(floors=(MetricFloor(metric="AP", min=0.99),)))
    assert blessing.get_int_custom_property("blessed") == 0
    assert "is below 0.990" in blessing.get_string_custom_property("blessing_message")
    assert [path.name for path in (folder.parent / "blessing").iterdir()] == ["NOT_BLESSED"]


def test_a_worse_model_than_the_baseline_is_refused_on_the_same_data(do, shifted_model_uri, good_model_uri):
    folder, blessing = do(shifted_model_uri, baseline_uri=good_model_uri)
    assert blessing.get_int_custom_property("blessed") == 0
    assert blessing.get_int_custom_property("baseline_model_id") == 5
    assert blessing.get_string_custom_property("baseline_model") == str(good_model_uri)
    metrics = json.loads((folder / METRICS_FILE).read_text())
    assert metrics["baseline"]["AP"] == pytest.approx(1.0)
    assert metrics["candidate"]["AP"] < 0.9


def test_a_better_model_than_the_baseline_is_blessed(do, shifted_model_uri, good_model_uri):
    _, blessing = do(good_model_uri, baseline_uri=shifted_model_uri)
    assert model_utils.is_model_blessed(blessing)


def test_a_model_that_is_its_own_baseline_stays_blessed_whatever_is_asked_of_a_change(do, good_model_uri):
    strict = BaselineGate(min_ap_change=0.1, inside_noise="refuse", when_missing="refuse")
    _, blessing = do(baseline_uri=good_model_uri, gates=Gates(baseline=strict))
    assert model_utils.is_model_blessed(blessing)
    assert "It is the latest blessed model itself" in blessing.get_string_custom_property("blessing_message")
    assert not blessing.has_custom_property("baseline_model_id")


def test_numbers_are_those_of_a_model_that_finds_everything(do):
    folder, _ = do()
    metrics = json.loads((folder / METRICS_FILE).read_text())["candidate"]
    assert (metrics["num_images"], metrics["num_boxes"]) == (5, 6)
    assert metrics["AP"] == pytest.approx(1.0)
    assert [row["num_boxes"] for row in metrics["per_class"]] == [3, 3]
    assert len(json.loads((folder / DETECTIONS_FILE).read_text())) == 6


def test_the_page_shows_as_many_pictures_as_asked(do):
    folder, _ = do(num_pictures=3)
    page = (folder / PAGE_FILE).read_text()
    assert page.count("data:image/jpeg") == 2 * 3  # nothing is wrong or missed: only the first ones
    assert "First images of the split" in page


def test_the_interfaces_get_the_page_a_text_numbers_and_curves(do, good_model_uri, shifted_model_uri):
    folder, _ = do(good_model_uri, baseline_uri=shifted_model_uri)
    assert (folder.parent / "page" / PAGE_FILE).read_text() == (folder / PAGE_FILE).read_text()
    assert (folder.parent / "summary" / "summary.md").read_text().startswith("# Blessed")
    metrics, curves = do.ui["metrics"], do.ui["curves"]
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


def test_the_page_says_where_model_and_data_come_from(do, good_model_uri, shifted_model_uri):
    examples = do.examples
    examples.set_int_custom_property("span", 3)
    examples.set_string_custom_property("input_fingerprint", "num_files:4")
    folder, _ = do(baseline_uri=shifted_model_uri)
    page = (folder / PAGE_FILE).read_text()
    for fact in ("artifact 7", "artifact 5", "artifact 1, span 3, files num_files:4", str(good_model_uri)):
        assert fact in page


def test_tensorboard_gets_the_numbers_and_the_decision(do):
    folder, _ = do()
    do()  # again into the same folder: the numbers of the first time are gone
    (path,) = (folder / TENSORBOARD_FOLDER).iterdir()
    events = [event_pb2.Event.FromString(row) for row in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    values = {value.tag: value.tensor for event in events for value in event.summary.value}
    assert tf.make_ndarray(values["AP"]) == pytest.approx(1.0)
    assert tf.make_ndarray(values["decision"]).item().startswith(b"Blessed: ")


def test_data_health_and_training_are_shown(do, tmp_path):
    check = {"title": "Inverted boxes", "sentence": "no box is inverted", "status": "passed"}
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.json").write_text(json.dumps({"checks": [check]}))
    (tmp_path / "run").mkdir()
    rows = [{"kind": "train", "step": step, "loss": 1 / step} for step in (1, 2)]
    (tmp_path / "run" / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kin')
    more = {
        "dataset_report": [make_artifact(DatasetReport, tmp_path / "report", 20)],
        "model_run": [make_artifact(ModelRun, tmp_path / "run", 21)],
    }
    folder, _ = do(more_inputs=more)
    page = (folder / PAGE_FILE).read_text()
    assert "no box is inverted" in page
    assert "train loss" in page


def test_a_model_that_breaks_its_contract_is_not_blessed(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "off" / "Format-Serving", score_factor=2.0)
    _, blessing = do(tmp_path / "off")
    assert "have scores from 1.8 to 1.8, allowed: 0 to 1" in blessing.get_string_custom_property("blessing_message")
    assert not model_utils.is_model_blessed(blessing)


def test_a_tflite_variant_is_evaluated_and_its_drop_gated(do, write_tiny_detector, write_tiny_tflite, tmp_path):
    write_tiny_detector(tmp_path / "model" / "Format-Serving")
    write_tiny_tflite(tmp_path / "model" / "Format-TFLite" / "int8.tflite", shift=0.1)
    folder, blessing = do(tmp_path / "model", gates=Gates(max_int8_ap_drop=0.01))
    assert "AP lost by int8" in blessing.get_string_custom_property("blessing_message")
    assert not model_utils.is_model_blessed(blessing)
    variants = json.loads((folder / METRICS_FILE).read_text())["variants"]
    assert 0.1 < variants["int8"]["AP"] < 0.9
    assert "The exported model and its TFLite variants" in (folder / PAGE_FILE).read_text()


def test_a_baseline_with_other_classes_is_left_out_and_said(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "old" / "Format-Serving", label_map=LabelMap.from_names(["red"]))
    folder, blessing = do(baseline_uri=tmp_path / "old", gates=Gates(floors=(MetricFloor(metric="AP", min=0.99),)))
    assert model_utils.is_model_blessed(blessing)
    decision = json.loads((folder / DECISION_FILE).read_text())
    assert decision["baseline_problem"] == "it has other classes (id 2: none, of the candidate: green)"
    assert json.loads((folder / METRICS_FILE).read_text())["baseline"] is None


def test_a_baseline_whose_files_are_gone_is_left_out_and_said(do, tmp_path):
    _, blessing = do(baseline_uri=tmp_path / "gone")
    assert "no SavedModel" in blessing.get_string_custom_property("blessing_message")


def test_a_model_with_other_classes_than_the_data_is_refused(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "other" / "Format-Serving", label_map=LabelMap.from_names(["green", "red"]))
    with pytest.raises(InputError, match=r"other/Format-Serving: the model's classes .* are not those of the data"):
        do(tmp_path / "other")


def test_a_class_id_outside_the_label_map_is_refused(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "off" / "Format-Serving", class_offset=5)
    message = (
        r"off/Format-Serving: in record 'a' it found the class id 6, which is not among the 2 class ids \(1 to 2\)"
    )
    with pytest.raises(InputError, match=message):
        do(tmp_path / "off")


def test_an_unknown_split_is_refused_with_the_known_ones(do):
    with pytest.raises(InputError, match="examples: no split 'tset', allowed: train, test"):
        do(split="tset")


def test_a_missing_candidate_is_refused_by_path(do, good_model_uri, tmp_path):
    shutil.copytree(good_model_uri, tmp_path / "half")
    (tmp_path / "half" / "Format-Serving" / "assets" / "label_map.pbtxt").unlink()
    with pytest.raises(InputError, match=r"half/Format-Serving/assets/label_map\.pbtxt"):
        do(tmp_path / "half")


def test_vertex_takes_it_for_tfx_own_evaluator():
    assert issubclass(Executor, TfxEvaluatorExecutor)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"signatures": (names.SIGNATURE_EXAMPLES,)}, None),  # it can be evaluated, though not be timed
        ({"class_offset": 5}, "in record 'a' it found the class id 6"),
        ({"score_factor": float("nan")}, "it found a box or score that is not finite"),
    ],
)
def test_no_baseline_ends_the_run(do, write_tiny_detector, tmp_path, changes, problem):
    write_tiny_detector(tmp_path / "old" / "Format-Serving", **changes)
    folder, blessing = do(baseline_uri=tmp_path / "old", gates=Gates(floors=(MetricFloor(metric="AP", min=0.5),)))
    found = json.loads((folder / DECISION_FILE).read_text())["baseline_problem"]
    assert found is None if problem is None else problem in found
    assert model_utils.is_model_blessed(blessing)


def test_a_baseline_with_damaged_weights_is_left_out(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "old" / "Format-Serving")
    (tmp_path / "old" / "Format-Serving" / "variables" / "variables.index").write_bytes(b"")
    folder, _ = do(baseline_uri=tmp_path / "old")
    assert "cannot be loaded" in json.loads((folder / DECISION_FILE).read_text())["baseline_problem"]


def test_a_candidate_that_cannot_be_called_with_encoded_images_is_not_blessed(do, write_tiny_detector, tmp_path):
    signatures = (names.SIGNATURE_EXAMPLES, names.SIGNATURE_IMAGES)
    write_tiny_detector(tmp_path / "half" / "Format-Serving", signatures=signatures)
    _, blessing = do(tmp_path / "half")
    assert "has no signature 'serving_encoded'" in blessing.get_string_custom_property("blessing_message")
    assert not model_utils.is_model_blessed(blessing)


def test_a_damaged_tflite_variant_is_left_out_and_its_gate_fails(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "model" / "Format-Serving")
    (tmp_path / "model" / "Format-TFLite").mkdir()
    (tmp_path / "model" / "Format-TFLite" / "int8.tflite").write_bytes(b"TFL3")
    _, blessing = do(tmp_path / "model", gates=Gates(max_int8_ap_drop=0.01))
    assert "no int8 TFLite variant that can be measured" in blessing.get_string_custom_property("blessing_message")


def test_a_gate_on_a_class_that_there_is_not_is_refused_before_anything_runs(do):
    with pytest.raises(InputError, match=r"got the metric 'AP/gren', allowed: classes .*Did you mean 'green'"):
        do(gates=Gates(floors=(MetricFloor(metric="AP/gren", min=0.5),)))


def test_what_a_killed_run_or_a_stranger_left_is_not_read(do, tmp_path):
    left = tmp_path / "evaluation" / ".records"
    left.mkdir(parents=True)
    (left / "records-00000-of-00009").write_bytes(b"not to be unpickled")
    folder, _ = do()
    assert json.loads((folder / METRICS_FILE).read_text())["candidate"]["num_images"] == 5
    assert not left.exists()
