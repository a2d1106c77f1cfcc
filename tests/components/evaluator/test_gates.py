import datetime
import json
from dataclasses import dataclass, field, replace

import pytest

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.components.evaluator.blessing import BlessingDecision, decide
from detloom.components.evaluator.gates import GateEvidence, Latency, ModelCosts, OtherForm
from detloom.schemas.run_file.gates import BaselineGate, Gates, LatencyGate, MetricChange, MetricFloor, Override

TODAY = datetime.date(2026, 11, 22)
FLOOR = Gates(floors=(MetricFloor(metric="AP50", min=0.5),))
BASELINE_GATE = "AP against the baseline, change at least"


@dataclass(frozen=True)
class Numbers:
    """A model whose metrics are 0.5 unless given; None means that a metric cannot be measured."""

    values: dict = field(default_factory=dict)

    def find_value(self, metric, slice_name=""):
        value = self.values.get((metric, slice_name) if slice_name else metric, 0.5)
        return value, "" if value is not None else "no ground truth of this size"


def make_decision(candidate=None, baseline=None, gates=FLOOR, today=TODAY, **evidence):
    """Decide for a candidate and an optional baseline, given as dictionaries of metrics."""
    before = None if baseline is None else Numbers(baseline)
    evidence = {"gain_over_constant": Interval(value=0.4, low=0.3, high=0.5), **evidence}
    return decide(GateEvidence(candidate=Numbers(candidate or {}), baseline=before, **evidence), gates, today)


def gate_of(decision, name):
    return next(gate for gate in decision.gates if gate.name == name)


FIRST = "there is no earlier blessed model to compare with."


@pytest.mark.parametrize(
    ("metric", "slice_name", "least", "value", "sentence"),
    [
        ("AP50", "", 0.5, 0.5, f"Blessed: AP50 0.500 is at least 0.500; {FIRST}"),
        ("AP50", "", 0.5, 0.4321, "Not blessed: AP50 0.432 is below 0.500."),
        ("AP", "", 1.0, 1 - 2**-52, f"Blessed: AP 1.000 is at least 1.000; {FIRST}"),  # rounding does not fail
        ("AP50/cat", "day=1", 0.6, 0.59, "Not blessed: AP50/cat of day=1 0.590 is below 0.600."),
        ("APs", "", 0.1, None, "Not blessed: APs could not be measured (no ground truth of this size), required: "),
    ],
)
def test_a_floor_decides(metric, slice_name, least, value, sentence):
    key = (metric, slice_name) if slice_name else metric
    floor = MetricFloor(metric=metric, min=least, slice=slice_name)
    decision = make_decision({key: value}, gates=Gates(floors=(floor,)))
    assert decision.sentence.startswith(sentence)
    assert decision.blessed == sentence.startswith("Blessed")


def test_the_reason_for_a_refusal_names_only_failed_gates():
    decision = make_decision({}, {}, Gates(floors=(*FLOOR.floors, MetricFloor(metric="AP", min=0.9))))
    assert decision.reason == "AP 0.500 is below 0.900."
    assert [gate.verdict for gate in decision.gates] == ["passed", "passed", "failed", "passed"]


@pytest.mark.parametrize(
    ("candidate", "baseline", "min_change", "blessed"),
    [
        (0.6, 0.5, 0.0, True),
        (0.5, 0.5, 0.0, True),
        (0.49, 0.5, 0.0, False),
        (0.49, 0.5, -0.02, True),
        (0.51, 0.5, 0.02, False),
        (0.3, 0.1, 0.2, True),  # 0.3 - 0.1 is 0.19999999999999998 in floating point
    ],
)
def test_the_change_against_the_baseline_decides(candidate, baseline, min_change, blessed):
    gates = Gates(baseline=BaselineGate(min_ap_change=min_change))
    assert make_decision({"AP": candidate}, {"AP": baseline}, gates).blessed == blessed


@pytest.mark.parametrize(
    ("low", "high", "difference"),
    [(0.01, 0.03, "better"), (-0.03, -0.01, "worse"), (-0.01, 0.03, "none"), (0.0, 0.0, "none")],
)
def test_the_interval_decides_whether_a_difference_is_significant(low, high, difference):
    change = Interval(value=(low + high) / 2, low=low, high=high)
    decision = make_decision({"AP": 0.5 + change.value}, {"AP": 0.5}, ap_change=change)
    assert decision.difference == difference
    assert ("not significant" in gate_of(decision, BASELINE_GATE).sentence) == (difference == "none")


@pytest.mark.parametrize(
    ("inside_noise", "change", "low", "high", "blessed"),
    [
        ("by_value", 0.01, -0.03, 0.03, True),
        ("by_value", -0.01, -0.03, 0.03, False),
        ("bless", -0.01, -0.03, 0.03, True),
        ("bless", 0.01, -0.03, 0.03, True),
        ("refuse", 0.01, -0.03, 0.03, False),
        # An interval that touches the threshold or has zero width decides nothing.
        ("refuse", 0.05, 0.0, 0.1, False),
        ("refuse", 0.05, -0.1, 0.0, False),
        ("refuse", 0.05, 0.05, 0.05, False),
        # Outside of the noise, the value decides.
        ("refuse", 0.05, 0.001, 0.1, True),
        ("bless", 0.1, 0.05, 0.15, True),
        ("bless", -0.1, -0.15, -0.05, False),
        ("refuse", -0.1, -0.15, -0.05, False),
    ],
)
def test_the_setting_decides_what_is_inside_noise(inside_noise, change, low, high, blessed):
    gates = Gates(baseline=BaselineGate(inside_noise=inside_noise))
    interval = Interval(value=change, low=low, high=high)
    decision = make_decision({"AP": 0.5 + change}, {"AP": 0.5}, gates, ap_change=interval)
    assert decision.blessed == blessed
    is_inside = low <= 0 <= high or low == high
    assert (inside_noise in decision.reason) == (is_inside and inside_noise != "by_value")


def test_the_interval_is_in_the_reason():
    interval = Interval(value=0.02, low=-0.004, high=0.044)
    assert make_decision({"AP": 0.52}, {"AP": 0.5}, Gates(), ap_change=interval).reason == (
        "AP 0.520 differs by +0.020 from the baseline's 0.500 (95% interval -0.004 to +0.044), which is not "
        "significant, required: at least +0.000."
    )


@pytest.mark.parametrize("baseline", [None, {"AP": None}])
def test_a_split_without_ground_truth_is_no_evidence(baseline):
    decision = make_decision({"AP": None}, baseline, Gates())
    assert "no ground truth of this size" in decision.reason
    assert not decision.blessed


PROBLEM = "it has different classes (cat)"


@pytest.mark.parametrize(
    ("policy", "gates", "blessed"),
    [
        ("by_floors", FLOOR, True),
        ("by_floors", Gates(), False),
        ("bless", Gates(), True),
        ("refuse", FLOOR, False),
    ],
)
def test_a_baseline_that_cannot_be_compared(policy, gates, blessed):
    gates = replace(gates, baseline=BaselineGate(when_incompatible=policy))
    decision = make_decision(gates=gates, baseline_problem=PROBLEM)
    assert decision.blessed == blessed
    assert PROBLEM in decision.reason
    assert ("gates.floors" in decision.reason) == (policy == "by_floors" and not blessed)
    assert decision.baseline_problem == PROBLEM


@pytest.mark.parametrize("policy", ["bless", "refuse"])
def test_a_first_model_is_decided_by_when_missing(policy):
    decision = make_decision(gates=replace(FLOOR, baseline=BaselineGate(when_missing=policy)))
    assert decision.blessed == (policy == "bless")
    assert "no earlier blessed model" in decision.reason


def test_the_latest_blessed_model_needs_no_baseline_but_must_pass_its_floors():
    gates = replace(FLOOR, baseline=BaselineGate(when_missing="refuse"))
    sentence = make_decision(gates=gates, is_blessed_already=True).sentence
    assert sentence.startswith("Blessed: AP50 0.500 is at least 0.500; ")
    assert "the latest blessed model itself" in sentence
    assert make_decision({"AP50": 0.4}, gates=gates, is_blessed_already=True).sentence == (
        "Not blessed: AP50 0.400 is below 0.500."
    )


CONSTANT_GATE = "AP50 against a detector that ignores the image, lower end of the interval above"


@pytest.mark.parametrize(
    ("value", "low", "high", "blessed"),
    [
        (0.4, 0.3, 0.5, True),
        (0.01, -0.01, 0.03, False),
        (0.0, 0.0, 0.0, False),
        (0.4, 0.4, 0.4, False),  # one image shows nothing
        (None, None, None, False),
    ],
)
@pytest.mark.parametrize("baseline", [None, {}])
@pytest.mark.parametrize("gates", [Gates(), Gates(floors=(MetricFloor(metric="AP", min=0.0),))])
def test_without_a_floor_above_zero_a_model_must_be_better_than_a_detector_that_ignores_the_image(
    value, low, high, blessed, baseline, gates
):
    gain = Interval(value=value, low=low, high=high)
    decision = make_decision({}, baseline, gates, gain_over_constant=gain)
    assert decision.blessed == blessed
    assert gate_of(decision, CONSTANT_GATE).verdict == ("passed" if blessed else "failed")
    assert ("gates.floors" in decision.reason) == (not blessed)


def test_an_incompatible_baseline_is_no_evidence_either():
    gates = Gates(baseline=BaselineGate(when_incompatible="bless"))
    assert not make_decision(gates=gates, baseline_problem=PROBLEM, gain_over_constant=None).blessed


def test_the_built_in_floor_is_waived_only_with_a_reason():
    gates = Gates(no_floor_reason="The first model only starts the comparison.")
    decision = make_decision({"AP": 0.0}, gates=gates)
    assert decision.blessed
    assert gate_of(decision, CONSTANT_GATE).verdict == "waived"
    assert "The first model only starts the comparison" in decision.reason


@pytest.mark.parametrize("evidence", [{"gates": FLOOR}, {"is_blessed_already": True}])
def test_floors_replace_the_built_in_floor(evidence):
    decision = make_decision(**{"gates": Gates(), **evidence})
    assert decision.blessed
    assert CONSTANT_GATE not in [gate.name for gate in decision.gates]


def test_a_drop_in_a_class_of_a_slice_fails_its_gate():
    gates = Gates(changes=(MetricChange(metric="AP/cat", min_change=-0.02, slice="time=night"),))
    key = ("AP/cat", "time=night")
    assert make_decision({key: 0.49}, {key: 0.5}, gates).blessed
    decision = make_decision({key: 0.4}, {key: 0.5}, gates)
    assert decision.reason == (
        "AP/cat of time=night 0.400 differs by -0.100 from the baseline's 0.500, required: at least -0.020."
    )
    assert not make_decision({key: None}, {key: 0.5}, gates).blessed
    without = gate_of(make_decision(gates=gates), "AP/cat of time=night against the baseline, change at least")
    assert without.verdict == "skipped"


SLOW, FAST = (
    ModelCosts(latency=Latency(median_ms=median, p95_ms=2 * median, num_images=50)) for median in (30.0, 20.0)
)


@pytest.mark.parametrize(
    ("limits", "blessed", "reason"),
    [
        ({"max_median_ms": 30}, True, "Median latency in ms 30.000 is at most 30"),
        ({"max_median_ms": 29}, False, "Median latency in ms 30.000 is above 29."),
        ({"max_p95_ms": 50}, False, "95th percentile of the latency in ms 60.000 is above 50."),
        ({"max_ratio": 1.4}, False, "Median latency against the baseline 1.500 is above 1.4."),
        ({"max_ratio": 1.5}, True, "Median latency against the baseline 1.500 is at most 1.5"),
    ],
)
def test_latency_gates(limits, blessed, reason):
    gates = Gates(latency=LatencyGate(**limits))
    decision = make_decision({}, {}, gates, costs=SLOW, baseline_costs=FAST)
    assert decision.blessed == blessed
    assert reason.lower() in decision.reason.lower()


def test_costs_that_were_not_measured_fail_their_gate_and_a_ratio_needs_a_baseline():
    reason = make_decision(gates=Gates(latency=LatencyGate(max_median_ms=5))).reason
    assert reason == "The latency was not measured, required: at most 5."
    decision = make_decision(gates=Gates(latency=LatencyGate(max_ratio=1.1)), costs=SLOW)
    assert gate_of(decision, "median latency against the baseline").verdict == "skipped"


def test_the_model_size_gate():
    small, large = (make_decision(gates=Gates(max_model_mib=2), costs=ModelCosts(model_bytes=n << 20)) for n in (2, 3))
    assert small.blessed
    assert large.reason == "Model size in MiB 3.000 is above 2."


def test_the_int8_drop_gate():
    gates = Gates(max_int8_ap_drop=0.01)
    assert make_decision(gates=gates, int8_ap=0.495).blessed
    assert make_decision(gates=gates, int8_ap=0.48).reason == "AP lost by int8 0.020 is above 0.01."
    assert "no int8 TFLite variant" in make_decision(gates=gates).reason
    assert "AP lost by int8 (no ground truth" in make_decision({"AP": None}, gates=gates, int8_ap=0.4).reason


def test_both_forms_must_agree_in_boxes_and_in_shapes():
    name = "ifference in AP between the SavedModel and model.onnx"

    def reason(**aps):  # the candidate has 0.5 in all metrics
        return make_decision(other_form=OtherForm(name="onnx", aps=aps)).reason

    assert f"d{name} 0.0005 is at most 0.001" in reason(AP=0.5005, mask_AP=0.5, keypoint_AP=0.4995)
    assert reason(AP=0.5, mask_AP=0.5, keypoint_AP=0.52) == f"D{name} 0.0200 is above 0.001."
    assert reason(AP=0.5, mask_AP=0.5) == f"The d{name} was not measured, required: at most 0.001."


OVERRIDE = Override(reason="The old model fails on the new cameras.", by="Ada", until="2026-11-22")


def test_an_override_blesses_and_the_reason_names_it_and_the_failed_gates():
    decision = make_decision({"AP50": 0.4}, gates=replace(FLOOR, override=OVERRIDE))
    assert decision.blessed
    assert decision.override == OVERRIDE
    assert decision.reason == (
        "Override by Ada until 2026-11-22 (The old model fails on the new cameras), although AP50 0.400 is below 0.500."
    )
    assert [gate.verdict for gate in decision.gates] == ["passed", "failed", "skipped"]


def test_an_unneeded_override_is_not_used():
    assert make_decision(gates=replace(FLOOR, override=OVERRIDE)).override is None


@pytest.mark.reliability("clock jump", "evaluate")
def test_an_override_expires():
    decision = make_decision(
        {"AP50": 0.4}, gates=replace(FLOOR, override=OVERRIDE), today=TODAY + datetime.timedelta(days=1)
    )
    assert not decision.blessed
    assert decision.reason == "AP50 0.400 is below 0.500; the override by Ada expired on 2026-11-22."


def test_an_override_does_not_bless_a_model_that_violates_its_contract():
    problem = "the model's detections in image 3 have scores from 0.1 to 1.7, allowed: 0 to 1"
    decision = make_decision(gates=replace(FLOOR, override=OVERRIDE), contract_problem=problem)
    assert not decision.blessed
    assert decision.reason.startswith(f"{problem[0].upper()}{problem[1:]}; ")


@pytest.mark.parametrize("gates", [FLOOR, replace(FLOOR, override=OVERRIDE)])
def test_a_decision_survives_json(gates):
    decision = make_decision({"AP50": 0.4}, {}, gates, ap_change=Interval(value=0.0, low=-0.1, high=0.1))
    assert BlessingDecision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision
