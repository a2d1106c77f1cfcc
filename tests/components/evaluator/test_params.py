import json

import pytest

from detloom.components.evaluator.params import PROPERTY_TYPES, EvaluatorParams
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import BaselineGate, Gates, LatencyGate, MetricChange, MetricFloor, Override
from detloom.schemas.slices_config import ImageSlices, ObjectSlices, SizeBin

PARAMS = EvaluatorParams(
    split="val",
    settings=Evaluator(
        batch_size=3,
        num_pictures=0,
        image_slices=(ImageSlices(feature="image/camera"), ImageSlices(by="num_boxes", edges=(1, 10))),
        object_slices=(ObjectSlices(by="border_distance", edges=(0.05,)),),
        sizes=(SizeBin(name="tiny", max_side_px=16),),
    ),
    gates=Gates(
        floors=(MetricFloor(metric="AP50", min=0.5), MetricFloor(metric="ARl/cat", min=0.1, slice="a=b")),
        changes=(MetricChange(metric="AP75", min_change=-0.1),),
        baseline=BaselineGate(min_ap_change=-0.01, inside_noise="refuse"),
        latency=LatencyGate(max_p95_ms=40),
        override=Override(reason="Because it must be so.", by="Ada", until="2026-12-31"),
    ),
    code_fingerprint="abc",
)


@pytest.mark.parametrize("params", [PARAMS, EvaluatorParams()])
def test_parameters_survive_the_round_trip_through_properties(params):
    assert EvaluatorParams.from_properties({**params.to_properties(), "other": 1}) == params


def test_properties_are_flat_and_of_the_declared_types():
    assert {name: type(value) for name, value in PARAMS.to_properties().items()} == PROPERTY_TYPES


@pytest.mark.parametrize("name", ["gates", "settings"])
def test_what_has_parts_is_one_canonical_json_text(name):
    text = PARAMS.to_properties()[name]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
