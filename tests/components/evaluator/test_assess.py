import datetime
from dataclasses import replace

import pytest

from detloom.components.evaluator.assess import assess, measure_model
from detloom.components.evaluator.decision import Latency
from detloom.components.evaluator.evaluation import ModelCosts
from detloom.components.evaluator.measurements import Split
from detloom.schemas.evaluator_config import Evaluator
from detloom.schemas.gates_config import BaselineGate, Gates, LatencyGate, MetricChange, Override
from detloom.schemas.slices_config import ImageSlices

SETTINGS = Evaluator(image_slices=(ImageSlices(feature="camera"),))


@pytest.fixture
def models(make_good_split, label_map):
    """A split with its better and its worse model."""
    truth, better, worse = make_good_split(0, 120)
    features = [{"camera": ("north" if number % 2 else "south",)} for number in range(len(truth))]
    split = Split(ground_truth=truth, features=features, label_map=label_map)
    return split, measure_model(split, better, SETTINGS), measure_model(split, worse, SETTINGS)


def judge(split, candidate, baseline, gates=None, **arguments):
    names = [str(image.image_id) for image in split.ground_truth]
    gates = gates or Gates()
    gates = replace(gates, baseline=replace(gates.baseline, num_resamples=100))
    return assess(split, names, candidate, baseline, gates, **arguments)


def test_better_worse_and_the_same_again(models):
    split, better, worse = models
    decisions = [judge(split, *pair).decision for pair in ((better, worse), (worse, better), (better, better))]
    assert [(each.difference, each.blessed) for each in decisions] == [
        ("better", True),
        ("worse", False),
        ("none", True),
    ]
    assert "(95% interval +0.000 to +0.000), no difference beyond the noise" in decisions[2].reason


def test_without_proof_a_strict_gate_refuses_the_same_again(models):
    split, better, _ = models
    gates = Gates(baseline=BaselineGate(inside_noise="refuse", min_ap_change=0.001))
    assert not judge(split, better, better, gates).decision.blessed


def test_a_drop_in_a_slice(models):
    split, better, worse = models
    gates = Gates(
        baseline=BaselineGate(min_ap_change=-1.0),
        changes=(MetricChange(metric="AP", min_change=-0.01, slice="camera=north"),),
    )
    decision = judge(split, worse, better, gates).decision
    assert decision.reason.startswith("AP of camera=north ")


def test_costs_reach_the_gates(models):
    split, better, _ = models
    slow = replace(better, costs=ModelCosts(latency=Latency(median_ms=9, p95_ms=9, num_images=5), model_bytes=2**21))
    gates = Gates(latency=LatencyGate(max_median_ms=5), max_model_mib=1)
    decision = judge(split, slow, None, gates).decision
    assert decision.reason == "Median latency in ms 9.000 is above 5; model size in MiB 2.000 is above 1."


def test_the_day_decides_about_an_override(models):
    split, better, worse = models
    override = Override(reason="New cameras need it.", by="Ada", until="2026-01-31")
    day = datetime.date(2026, 1, 31)
    gates = Gates(override=override)
    assert judge(split, worse, better, gates, today=day).decision.blessed
    assert not judge(split, worse, better, gates).decision.blessed  # today is later
