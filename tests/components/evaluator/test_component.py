from tfx.types import Channel
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing, ModelEvaluation

from detloom.components.evaluator.component import DetectionEvaluator
from detloom.components.evaluator.executor import Executor
from detloom.components.evaluator.params import EvaluatorParams
from detloom.schemas.contracts.label_map import LabelMap, write_label_map


def make_component(**inputs):
    return DetectionEvaluator(examples=Channel(type=Examples), model=Channel(type=Model), split="val", **inputs)


def test_outputs_have_the_types_of_tfxs_evaluator():
    outputs = make_component().outputs
    assert outputs["evaluation"].type is ModelEvaluation
    assert outputs["blessing"].type is ModelBlessing


def test_parameters_become_execution_properties():
    params = EvaluatorParams(split="val", code_fingerprint=make_component().exec_properties["code_fingerprint"])
    assert make_component().exec_properties == params.to_properties()


def test_the_content_of_the_label_map_is_a_property(tmp_path):
    write_label_map(tmp_path / "map.pbtxt", LabelMap.from_names(["cat"]))
    properties = make_component(label_map=tmp_path / "map.pbtxt").exec_properties
    assert EvaluatorParams.from_properties(properties).label_map == (tmp_path / "map.pbtxt").read_text()


def test_the_baseline_is_optional():
    assert "baseline_model" not in make_component().inputs
    assert "baseline_model" in make_component(baseline_model=Channel(type=Model)).inputs


def test_the_executor_path_is_stable():
    # Compiled pipelines store this path.
    path = f"{Executor.__module__}.{Executor.__name__}"
    assert path == "detloom.components.evaluator.executor.Executor"
    assert DetectionEvaluator.EXECUTOR_SPEC.class_path == path
