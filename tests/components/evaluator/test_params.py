import json

import pytest

from detloom.components.evaluator.params import EvaluatorParams
from detloom.schemas.run_file.evaluator_and_gates import (
    BaselineGate,
    Evaluator,
    Gates,
    ImageSlices,
    LatencyGate,
    MetricChange,
    MetricFloor,
    ObjectSlices,
    Override,
    SizeBin,
)

PARAMS = EvaluatorParams(
    split="val",
    settings=Evaluator(
        batch_size=3,
        num_images=0,
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
    assert {name: type(value) for name, value in PARAMS.to_properties().items()} == EvaluatorParams.property_types()


@pytest.mark.parametrize("name", ["gates", "settings"])
def test_nested_settings_are_canonical_json(name):
    text = PARAMS.to_properties()[name]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
