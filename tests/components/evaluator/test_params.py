import json

import pytest

from detloom.components.evaluator.params import PROPERTY_TYPES, EvaluatorParams
from detloom.schemas.errors import InputError
from detloom.schemas.run_file import Gates, MetricFloor

PARAMS = EvaluatorParams(
    split="val",
    batch_size=3,
    gates=Gates(floors=(MetricFloor(metric="AP50", min=0.5), MetricFloor(metric="ARl", min=0.1)), min_ap_change=-0.01),
    num_pictures=0,
    code_fingerprint="abc",
)


@pytest.mark.parametrize("params", [PARAMS, EvaluatorParams()])
def test_parameters_survive_the_round_trip_through_properties(params):
    assert EvaluatorParams.from_properties({**params.to_properties(), "other": 1}) == params


def test_properties_are_flat_and_of_the_declared_types():
    assert {name: type(value) for name, value in PARAMS.to_properties().items()} == PROPERTY_TYPES


def test_gates_are_one_canonical_json_text():
    text = PARAMS.to_properties()["gates"]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"num_pictures": -1}, "num_pictures: got -1"),
    ],
)
def test_values_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        EvaluatorParams(**changes)
