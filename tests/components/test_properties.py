"""The conversion of parameters to execution properties, and access to custom properties."""

from dataclasses import dataclass

import pytest
from tfx.dsl.components.base.base_executor import BaseExecutor
from tfx.proto.orchestration import pipeline_pb2
from tfx.types.standard_artifacts import Examples

from detloom.components.properties import ComponentParams, int_property, pipeline_name, string_property
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.gates import Gates, MetricFloor


@dataclass(frozen=True, kw_only=True)
class Params(ComponentParams):
    name: str
    count: int = 3
    splits: tuple[str, ...] = ("train", "eval")
    gates: Gates = Gates()
    fallback: Gates | None = None


FULL = Params(
    name="a", gates=Gates(floors=(MetricFloor(metric="AP", min=0.5),)), fallback=Gates(), code_fingerprint="f"
)


@pytest.mark.parametrize("params", [FULL, Params(name="")])
def test_parameters_survive_the_round_trip(params):
    properties = params.to_properties()
    assert {name: type(value) for name, value in properties.items()} == Params.property_types()
    assert Params.from_properties({**properties, "added_by_tfx": 1}) == params


def test_properties_are_flat():
    properties = Params(name="a", code_fingerprint="f").to_properties()
    assert (properties["name"], properties["count"], properties["splits"]) == ("a", 3, '["train", "eval"]')
    assert (properties["fallback"], properties["code_fingerprint"]) == ("", "f")


def test_a_missing_property_has_its_default_and_none_is_empty_text():
    assert Params.from_properties({"name": None, "fallback": None}) == Params(name="")
    with pytest.raises(KeyError, match="name"):
        Params.from_properties({})


def test_a_list_of_sections_is_accepted():
    floors = [MetricFloor(metric="AP", min=0.5)]
    params = Params(name="a", gates=Gates(floors=floors))
    assert Params.from_properties(params.to_properties()).gates.floors == tuple(floors)


def test_an_invalid_setting_is_refused_with_its_name():
    with pytest.raises(InputError, match="floors"):
        Params.from_properties({"name": "a", "gates": '{"floors": 3}'})


@pytest.mark.parametrize("floors", [("AP",), ({"metric": "AP", "floor": 0.5},)])
def test_a_value_of_another_type_is_refused_when_the_pipeline_is_made(floors):
    with pytest.raises(InputError, match=r"gates: floors\[0\]"):
        Params(name="a", gates=Gates(floors=floors)).to_properties()


def test_a_custom_property_that_is_missing_is_none():
    examples = Examples()
    examples.set_int_custom_property("span", 0)
    examples.set_string_custom_property("input_fingerprint", "")
    assert (int_property(examples, "span"), string_property(examples, "input_fingerprint")) == (0, "")
    assert (int_property(examples, "version"), string_property(examples, "payload")) == (None, None)


def test_the_name_of_the_pipeline_is_empty_if_the_context_has_none():
    context = BaseExecutor.Context(pipeline_info=pipeline_pb2.PipelineInfo(id="cells"))
    assert pipeline_name(context) == "cells"
    assert pipeline_name(BaseExecutor.Context()) == pipeline_name(None) == ""
