import json
import shutil

import pytest
from tfx.components.evaluator.executor import Executor as TfxEvaluatorExecutor
from tfx.components.util import model_utils
from tfx.types import artifact_utils
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation

from detloom.components.evaluator.executor import Executor
from detloom.components.evaluator.params import EvaluatorParams
from detloom.components.evaluator.report import DECISION_FILE, DETECTIONS_FILE, METRICS_FILE, PAGE_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.run_file import Gates, MetricFloor


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

    def call(model_uri=good_model_uri, baseline_uri=None, **params):
        inputs = {"examples": [examples], "model": [make_artifact(Model, model_uri, 7)]}
        if baseline_uri:
            inputs["baseline_model"] = [make_artifact(Model, baseline_uri, 5)]
        evaluation = make_artifact(ModelEvaluation, tmp_path / "evaluation", 8)
        blessing = make_artifact(ModelBlessing, tmp_path / "blessing", 9)
        properties = EvaluatorParams(**{"batch_size": 2, **params}).to_properties()
        outputs = {"evaluation": [evaluation], "blessing": [blessing]}
        Executor().Do(inputs, outputs, {**properties, "current_component_id": "DetectionEvaluator"})
        return tmp_path / "evaluation", blessing

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


def test_numbers_are_those_of_a_model_that_finds_everything(do):
    folder, _ = do()
    metrics = json.loads((folder / METRICS_FILE).read_text())["candidate"]
    assert (metrics["num_images"], metrics["num_boxes"]) == (5, 6)
    assert metrics["AP"] == pytest.approx(1.0)
    assert [row["num_boxes"] for row in metrics["per_class"]] == [3, 3]
    assert len(json.loads((folder / DETECTIONS_FILE).read_text())) == 6


def test_the_page_shows_as_many_pictures_as_asked(do):
    folder, _ = do(num_pictures=3)
    assert (folder / PAGE_FILE).read_text().count("<figure>") == 3


def test_a_baseline_with_other_classes_is_left_out_and_said(do, write_tiny_detector, tmp_path):
    write_tiny_detector(tmp_path / "old" / "Format-Serving", label_map=LabelMap.from_names(["red"]))
    folder, blessing = do(baseline_uri=tmp_path / "old", gates=Gates(floors=(MetricFloor(metric="AP", min=0.99),)))
    assert model_utils.is_model_blessed(blessing)
    decision = json.loads((folder / DECISION_FILE).read_text())
    assert decision["baseline_problem"] == "it has other classes (red; the candidate: red, green)"
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
    with pytest.raises(InputError, match=r"got class id 6, allowed by the label map: \[1, 2\]"):
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
