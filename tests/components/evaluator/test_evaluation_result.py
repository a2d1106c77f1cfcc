import datetime
import subprocess
import sys
from dataclasses import replace

import pytest

from detloom.components.evaluator.evaluation_result import assess, measure_model
from detloom.components.evaluator.gates import Latency, ModelCosts
from detloom.components.evaluator.measurements import Split
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricChange, Override

SETTINGS = EvaluatorSettings(image_slices=(ImageSlices(feature="camera"),))


@pytest.fixture(scope="module")
def models(make_good_split, label_map):
    """A split with a better and a worse model."""
    truth, better, worse = make_good_split(0, 100)
    features = [{"camera": ("north" if number % 2 else "south",)} for number in range(len(truth))]
    split = Split(ground_truth=truth, features=features, label_map=label_map)
    return split, measure_model(split, better, SETTINGS), measure_model(split, worse, SETTINGS)


def evaluate(split, candidate, baseline, gates=None, **arguments):
    names = [str(image.image_id) for image in split.ground_truth]
    gates = gates or Gates()
    gates = replace(gates, baseline=replace(gates.baseline, num_resamples=100))
    return assess(split, names, candidate, baseline, gates, **arguments)


def test_better_worse_and_identical_models_are_distinguished(models):
    split, better, worse = models
    decisions = [evaluate(split, *pair).decision for pair in ((better, worse), (worse, better), (better, better))]
    assert [(each.difference, each.blessed) for each in decisions] == [
        ("better", True),
        ("worse", False),
        ("none", True),
    ]
    assert "95% interval +0.000 to +0.000" in decisions[2].reason


def test_a_drop_in_a_slice_fails_its_gate(models):
    split, better, worse = models
    gates = Gates(
        baseline=BaselineGate(min_ap_change=-1.0),
        changes=(MetricChange(metric="AP", min_change=-0.01, slice="camera=north"),),
    )
    decision = evaluate(split, worse, better, gates).decision
    assert not decision.blessed
    assert decision.reason.startswith("AP of camera=north ")


def test_costs_reach_the_gates(models):
    split, better, _ = models
    slow = replace(better, costs=ModelCosts(latency=Latency(median_ms=9, p95_ms=9, num_images=5), model_bytes=2**21))
    gates = Gates(latency=LatencyGate(max_median_ms=5), max_model_mib=1)
    decision = evaluate(split, slow, None, gates).decision
    assert decision.reason == "Median latency in ms 9.000 is above 5; model size in MiB 2.000 is above 1."


def test_an_override_is_valid_until_its_last_day(models):
    split, better, worse = models
    gates = Gates(override=Override(reason="New cameras need it.", by="Ada", until="2026-01-31"))
    assert evaluate(split, worse, better, gates, today=datetime.date(2026, 1, 31)).decision.blessed
    assert not evaluate(split, worse, better, gates).decision.blessed  # today is later


@pytest.mark.slow  # starts an interpreter
def test_an_evaluation_of_detections_and_its_page_need_neither_tensorflow_nor_beam():
    code = "import sys, detloom.components.evaluator.evaluation_result as _\n"
    code += "import detloom.components.evaluator.report.render_page as _\n"
    code += "print({'tensorflow', 'apache_beam'} & {*sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
