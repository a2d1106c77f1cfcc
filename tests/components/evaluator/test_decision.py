import json

import pytest

from detloom.components.evaluator.decision import Decision, decide
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.run_file import Gates, MetricFloor
from detloom.trainer_module.coco_metrics import CocoMetrics


def make_metrics(**values):
    numbers = {**dict.fromkeys(METRIC_NAMES, 0.5), **values}
    return CocoMetrics(**numbers, per_class=(), num_images=1, num_boxes=1)


FLOOR = Gates(floors=(MetricFloor(metric="AP50", min=0.5),))


def test_a_metric_on_its_floor_is_blessed_and_the_reason_names_it():
    decision = decide(make_metrics(AP50=0.5), None, FLOOR)
    assert decision.blessed
    assert decision.reason == ("AP50 0.500 is at least 0.500; there is no earlier blessed model to compare with.")


def test_a_metric_below_its_floor_is_not_blessed():
    decision = decide(make_metrics(AP50=0.4321), None, FLOOR)
    assert not decision.blessed
    assert decision.reason == "AP50 0.432 is below 0.500."


def test_only_the_failed_gates_are_in_the_reason_for_refusing():
    gates = Gates(floors=(*FLOOR.floors, MetricFloor(metric="AP", min=0.9)))
    decision = decide(make_metrics(), make_metrics(), gates)
    assert decision.reason == "AP 0.500 is below 0.900."
    assert [gate.passed for gate in decision.gates] == [True, False, True]


def test_the_last_digit_of_a_perfect_score_does_not_fail_a_floor_of_one():
    gates = Gates(floors=(MetricFloor(metric="AP", min=1.0),))
    assert decide(make_metrics(AP=1 - 2**-52), None, gates).blessed


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
    decision = decide(make_metrics(AP=candidate), make_metrics(AP=baseline), Gates(min_ap_change=min_change))
    assert decision.blessed == blessed


def test_the_reason_names_both_models_numbers():
    decision = decide(make_metrics(AP=0.49), make_metrics(AP=0.5), FLOOR)
    assert decision.reason == ("AP 0.490 is -0.010 against the baseline's 0.500, but at least +0.000 is asked.")


def test_a_metric_that_cannot_be_measured_passes_no_gate_and_says_why():
    decision = decide(make_metrics(APs=-1.0), None, Gates(floors=(MetricFloor(metric="APs", min=0.0),)))
    assert decision.reason == ("APs could not be measured (no ground truth of this size), at least 0.000 is asked.")
    assert decision.gates[0].value is None


def test_a_split_without_ground_truth_is_not_better_than_the_baseline():
    empty = make_metrics(**dict.fromkeys(METRIC_NAMES, -1.0))
    decision = decide(empty, empty, Gates())
    assert decision.reason == "AP could not be compared with the baseline (no ground truth)."


def test_a_baseline_that_cannot_be_compared_is_said_in_either_case():
    problem = "it has other classes (cat)"
    assert decide(make_metrics(), None, FLOOR, baseline_problem=problem).reason == (
        "AP50 0.500 is at least 0.500; not compared with a baseline: it has other classes (cat)."
    )
    assert "it has other classes (cat)." in decide(make_metrics(AP50=0.1), None, FLOOR, baseline_problem=problem).reason


def test_a_baseline_that_cannot_be_compared_and_no_floor_do_not_bless():
    decision = decide(make_metrics(), None, Gates(), baseline_problem="it has other classes")
    assert decision.sentence == (
        "Not blessed: The baseline could not be compared: it has other classes; no floor is set: set gates.floors."
    )


def test_blessing_without_any_gate_is_said():
    assert decide(make_metrics(), None, Gates()).reason == (
        "There is no earlier blessed model to compare with; no floor is set (AP is 0.500)."
    )


def test_the_sentence_begins_with_the_verdict():
    assert decide(make_metrics(), None, FLOOR).sentence.startswith("Blessed: AP50 0.500 is at least")
    assert decide(make_metrics(AP50=0.4), None, FLOOR).sentence == "Not blessed: AP50 0.400 is below 0.500."


def test_a_decision_survives_json():
    decision = decide(make_metrics(), make_metrics(), FLOOR)
    assert Decision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision
