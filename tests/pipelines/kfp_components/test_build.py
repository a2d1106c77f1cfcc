"""The components as kfp compiles them."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from kfp import compiler, dsl
from kfp.dsl.types.type_utils import InconsistentTypeException
from kfp.pipeline_spec import pipeline_spec_pb2

from detloom.pipelines.kfp_components import KfpComponents, components_of, steps
from detloom.schemas.errors import InputError

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example.org/ml/detloom@sha256:0123"
SOME_TYPES = {
    "ingest": {"split_by_ratio": "STRUCT", "classes": "LIST", "num_workers": "NUMBER_INTEGER"},
    "validate": {"examples": "system.Dataset", "config": "STRING", "page": "system.HTML"},
    "train": {"overrides": "STRUCT", "model": "system.Model", "metrics": "system.Metrics"},
    "evaluate": {"blessed": "BOOLEAN", "curves": "system.ClassificationMetrics"},
    "push": {"model": "system.Model", "address": "STRING"},
}
REQUIRED = {
    "ingest": {"data"},
    "validate": {"examples"},
    "train": {"examples", "config"},
    "evaluate": {"model", "examples"},
    "push": {"model", "evaluation", "push_to"},
}


def compile_spec(component, folder):
    """Compile a component or a pipeline; return the parsed specification."""
    compiler.Compiler().compile(component, str(folder / "compiled.yaml"))
    content = yaml.safe_load((folder / "compiled.yaml").read_text())
    json_format.ParseDict(content["deploymentSpec"], pipeline_spec_pb2.PipelineDeploymentConfig())
    return json_format.ParseDict(content, pipeline_spec_pb2.PipelineSpec())


def types_of(definitions):
    types = {name: each.artifact_type.schema_title for name, each in definitions.artifacts.items()}
    enum = pipeline_spec_pb2.ParameterType.ParameterTypeEnum
    return types | {name: enum.Name(each.parameter_type) for name, each in definitions.parameters.items()}


@pytest.mark.parametrize("name", KfpComponents._fields)
def test_a_component_compiles_with_typed_and_described_inputs_and_outputs(name, tmp_path):
    spec = compile_spec(getattr(components_of(IMAGE), name), tmp_path)
    component = spec.components[f"comp-{name}"]
    inputs, outputs = component.input_definitions, component.output_definitions
    types = types_of(inputs) | types_of(outputs)
    assert SOME_TYPES[name].items() <= types.items()
    assert set(types) == set(inspect.signature(getattr(steps, name)).parameters)
    every = [*inputs.artifacts.items(), *inputs.parameters.items()]
    assert {key for key, each in every if not each.is_optional} == REQUIRED[name]
    described = [*every, *outputs.artifacts.items(), *outputs.parameters.items()]
    assert [key for key, each in described if not each.description] == []


def test_the_container_runs_the_step_of_its_name_in_the_image(tmp_path):
    spec = compile_spec(components_of(IMAGE).train, tmp_path)
    container = json_format.MessageToDict(spec.deployment_spec)["executors"]["exec-train"]["container"]
    assert container["image"] == IMAGE
    assert container["command"][-1] == "detloom.pipelines.kfp_components.entrypoint"
    assert container["args"] == ["train", "{{$}}"]


def test_a_missing_or_wrong_argument_is_refused_when_the_pipeline_is_built():
    built = components_of(IMAGE)
    with pytest.raises(InputError, match=r"^image"):
        components_of(" ")

    @dsl.pipeline
    def one(data: str):
        examples = built.ingest(data=data).outputs["examples"]
        with pytest.raises(TypeError, match="config"):
            built.train(examples=examples)
        with pytest.raises(InconsistentTypeException, match=r"'examples'.*'system\.Dataset"):
            built.train(examples=data, config="efficientdet_lite0")


def test_a_pipeline_may_depend_on_the_decision(tmp_path):
    built = components_of(IMAGE)

    @dsl.pipeline
    def decide(data: str):
        examples = built.ingest(data=data).outputs["examples"]
        model = built.train(examples=examples, config="efficientdet_lite0").outputs["model"]
        evaluated = built.evaluate(model=model, examples=examples)
        with dsl.If(evaluated.outputs["blessed"] == True):  # noqa: E712 - kfp compares when the pipeline runs
            built.push(model=model, evaluation=evaluated.outputs["evaluation"], push_to="/serving")

    spec = compile_spec(decide, tmp_path)
    condition = spec.root.dag.tasks["condition-1"].trigger_policy.condition
    assert condition == "inputs.parameter_values['pipelinechannel--evaluate-blessed'] == true"
    assert {*spec.components["comp-condition-1"].dag.tasks} == {"push"}


def test_a_machine_that_builds_pipelines_needs_neither_tensorflow_nor_tfx():
    code = (
        "import sys; from detloom.pipelines.kfp_components import components_of; components_of('image').train\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert {"detloom", "kfp"} <= loaded
    assert not loaded & {"tensorflow", "keras", "tfx", "apache_beam", "ml_metadata"}
