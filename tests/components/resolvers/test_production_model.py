import pickle

import pytest
from tfx.types.channel import Channel
from tfx.types.standard_artifacts import Model

from detloom.components.properties import NOTHING_FOUND
from detloom.components.resolvers.production_model import Executor, ProductionModel


@pytest.fixture
def run(tmp_path):
    """Run the executor; return its output."""

    def do(candidate=None):
        output = Model()
        output.uri = str(tmp_path / "output")
        inputs = {}
        if candidate is not None:
            model = Model()
            model.uri = str(candidate.parent)
            inputs = {"candidate": [model]}
        properties = {"production": str(tmp_path / "pushed"), "code_fingerprint": ""}
        Executor().Do(inputs, {"model": [output]}, properties)
        return output

    return do


def test_the_candidate_input_is_optional():
    alone = ProductionModel(production="gs://bucket/models")
    assert alone.exec_properties["production"] == "gs://bucket/models"
    assert alone.exec_properties["code_fingerprint"]
    assert not alone.inputs
    other = ProductionModel(production="/models", candidate=Channel(type=Model))
    assert set(other.inputs) == {"candidate"}
    assert other.outputs["model"].type is Model
    pickle.dumps(Executor)


def test_the_output_has_the_layout_of_a_trainers_model_and_names_the_version(run, push, tmp_path):
    push("first", 100)
    output = run()
    assert (tmp_path / "output" / "Format-Serving" / "saved_model.pb").read_text() == "first"
    assert output.get_string_custom_property("pushed_version") == "100"
    assert output.get_string_custom_property("pushed_destination") == str(tmp_path / "pushed" / "100")
    assert not output.has_custom_property(NOTHING_FOUND)


def test_without_a_version_the_output_is_marked_as_empty(run, push, tmp_path):
    output = run(candidate=push("only", 100))
    assert output.get_int_custom_property(NOTHING_FOUND) == 1
    assert not (tmp_path / "output" / "Format-Serving").exists()
