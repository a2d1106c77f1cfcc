import re
from dataclasses import replace

import evaluations
import pytest
from evaluations import texts_of

from detloom.components.evaluator.analysis.bootstrap import Interval
from detloom.components.evaluator.analysis.confidence_calibration import Calibration, ScoreBin
from detloom.components.evaluator.analysis.confusion import Confusion
from detloom.components.evaluator.analysis.error_types import ErrorType
from detloom.components.evaluator.gates import Gate, ModelCosts
from detloom.components.evaluator.measurements import ClassCurve, ErrorCosts
from detloom.components.evaluator.report import (
    baseline_intervals,
    confusion_matrix,
    curves_and_calibration,
    error_costs,
    metric_tables,
    training_data_and_costs,
    verdict_and_gates,
)


def make_gate(name="AP, at least", value=0.5, threshold=0.4, verdict="passed"):
    return Gate(name=name, value=value, threshold=threshold, verdict=verdict, sentence="it holds")


def make_curve(class_id, precision50=(1.0, 0.5, 0.0, 0.0)):
    return ClassCurve(
        class_id=class_id, name=f"c{class_id}", precision50=precision50, precision75=(), best_f1=None, wanted=None
    )


def make_confusion(num_classes, pairs=()):
    counts = [[0] * (num_classes + 1) for _ in range(num_classes + 1)]
    for true, found, count in pairs:
        counts[true][found] = count
    names = tuple(f"c{k}" for k in range(num_classes))
    return Confusion(class_names=names, counts=tuple(map(tuple, counts)), min_scores=(0.5,) * num_classes)


def make_errors(cost=0.1):
    return ErrorCosts(
        AP50=0.5,
        cost_by_type={kind: cost if kind is ErrorType.MISSED else 0.0 for kind in ErrorType},
        count_by_type={kind: 3 if kind is ErrorType.MISSED else 0 for kind in ErrorType},
        false_positive_cost=0.0,
        false_negative_cost=-0.00001,
    )


def test_key_numbers_contain_interval_significance_and_the_weakest_class(evaluation):
    unsure = replace(evaluation, decision=replace(evaluation.decision, difference="none"))
    by_name = {name: (text, more) for name, text, more in verdict_and_gates.key_numbers(unsure)}
    names = ["AP", "AP50", "AP of the weakest class", "AP against the baseline", "Median latency", "Model size"]
    assert list(by_name) == names
    assert by_name["AP against the baseline"][1].endswith(", not significant")
    assert " to " in by_name["AP"][1]
    weakest = min(evaluation.candidate.coco.per_class, key=lambda row: row.AP)
    assert by_name["AP of the weakest class"] == (f"{weakest.AP:.3f}", f"{weakest.name}, {weakest.num_boxes} objects")
    assert by_name["Median latency"][0] == "41.3 ms"
    assert by_name["Model size"][0] == "3.0 MiB"


def test_values_that_were_not_measured_are_left_out():
    evaluation = evaluations.make_evaluation(has_baseline=False, candidate_costs=ModelCosts())
    names = [name for name, _, _ in verdict_and_gates.key_numbers(evaluation)]
    assert names == ["AP", "AP50", "AP of the weakest class"]
    assert training_data_and_costs.cost_rows(evaluation) == []
    assert baseline_intervals.interval_view(evaluation.comparison, {}) is None


@pytest.mark.parametrize(
    ("gate", "texts"),
    [
        (make_gate(), ("0.400", "0.500")),
        (replace(make_gate(value=0.0, threshold=-0.02), is_change=True), ("-0.020", "+0.000")),
        (make_gate("median latency in ms, at most", 41.26, 120.0), ("120.0", "41.3")),
        (make_gate(value=0.49999, threshold=0.5), ("0.500000", "0.499990")),  # equal to three digits
        (make_gate(value=None, threshold=None), ("–", "–")),
    ],
)
def test_gate_values_have_enough_digits_to_differ(gate, texts):
    (row,) = verdict_and_gates.gate_rows([gate])
    assert (row["required"], row["measured"]) == texts
    assert row["sentence"] == "It holds."


def test_a_size_without_objects_has_a_reason(evaluation):
    (row,) = metric_tables.size_rows(evaluation.candidate.coco, evaluation.baseline.coco)
    assert (row["name"], row["candidate"], row["baseline"], row["change"]) == ("wee", None, None, None)
    assert row["meaning"] == "0 to 16 px, 0 boxes: no ground truth of this size"


def test_voc_rows_have_both_models(evaluation):
    rows = {row["name"]: row for row in metric_tables.voc_rows(evaluation.candidate, evaluation.baseline)}
    # The candidate makes no errors; the baseline has AP 1 for the cat and 0 for the dogs.
    assert (rows["PASCAL VOC 2010"]["candidate"], rows["PASCAL VOC 2010"]["baseline"]) == (1.0, 0.5)
    assert len(rows) == 5


def test_an_unknown_verdict_of_the_data_is_shown_unchanged():
    rows = training_data_and_costs.health_rows([("Drift", "0.2", "failed"), ("New", "1", "odd one")])
    assert [(row["verdict"], row["verdict_text"]) for row in rows] == [("failed", "✗ failed"), ("off", "odd one")]


def test_chart_and_table_of_intervals_have_a_row_per_class(evaluation):
    view = baseline_intervals.interval_view(evaluation.comparison, {1: 1, 2: 2})
    assert re.findall(r'text-anchor="end"[^>]*>([^<]*)<', view["svg"]) == [
        "All classes",
        "cat",
        "&lt;b&gt;dog&lt;/b&gt;",
    ]
    assert view["svg"].count("<circle") == 3
    assert [row[0]["text"] for row in view["rows"]] == ["All classes", "cat", "<b>dog</b>"]
    assert texts_of(view["rows"][2])[5] == "+1.000"


def test_the_interval_chart_is_limited_to_classes_with_the_most_boxes(evaluation, monkeypatch):
    monkeypatch.setattr(baseline_intervals, "_MAX_INTERVALS", 1)
    view = baseline_intervals.interval_view(evaluation.comparison, {1: 1, 2: 2})
    assert re.findall(r'text-anchor="end"[^>]*>([^<]*)<', view["svg"]) == ["All classes", "&lt;b&gt;dog&lt;/b&gt;"]
    assert (view["num_drawn"], view["num_classes"], len(view["rows"]), view["num_more"]) == (1, 2, 3, 0)


@pytest.mark.parametrize(
    ("interval", "color"),
    [
        (Interval(value=0.1, low=0.05, high=0.2), "--good"),
        (Interval(value=-0.1, low=-0.2, high=-0.05), "--bad"),
        (Interval(value=0.1, low=-0.05, high=0.2), "--soft"),
        (Interval(value=0.1, low=None, high=None), "--soft"),
        (Interval(value=0.1, low=0.1, high=0.1), "--soft"),  # zero width: a single image
    ],
)
def test_the_colour_shows_significance(interval, color):
    assert f'r="4" fill="var({color})"' in baseline_intervals.format_intervals([("All classes", interval)])


def test_an_unmeasured_interval_has_no_mark():
    nothing = Interval(value=None, low=None, high=None)
    assert "<circle" not in baseline_intervals.format_intervals([("All classes", nothing)])


def test_curves_are_drawn_for_classes_with_the_most_boxes_six_per_chart():
    view = curves_and_calibration.curve_charts([make_curve(k) for k in range(1, 21)], {k: k for k in range(1, 21)})
    assert (view["num_shown"], view["num_classes"]) == (12, 20)
    assert [chart["names"] for chart in view["charts"]] == [
        ["c20", "c19", "c18", "c17", "c16", "c15"],
        ["c14", "c13", "c12", "c11", "c10", "c9"],
    ]
    assert view["charts"][1]["title"].endswith("classes 7 to 12")


def test_a_class_without_objects_has_no_curve():
    view = curves_and_calibration.curve_charts([make_curve(1, ()), make_curve(2)], {1: 0, 2: 5})
    assert [chart["names"] for chart in view["charts"]] == [["c2"]]
    assert curves_and_calibration.curve_charts([make_curve(1, ())], {})["charts"] == []


def test_a_curve_ends_at_the_first_recall_that_is_not_reached():
    assert curves_and_calibration._curve_points((1.0, 0.5, 0.0, 0.0, 0.0)) == [(0.0, 1.0), (0.25, 0.5), (0.5, 0.0)]


def test_calibration_omits_empty_bins():
    empty = ScoreBin(low=0.0, high=0.5, num_detections=0, mean_score=None, share_true=None)
    full = ScoreBin(low=0.5, high=1.0, num_detections=1200, mean_score=0.8, share_true=0.6)
    view = curves_and_calibration.calibration_view(
        Calibration(bins=(empty, full), expected_error=0.2, num_detections=1200)
    )
    assert [(row["name"], row["text"]) for row in view["bars"]["rows"]] == [("0.5 to 1.0", "0.80 / 0.60, 1,200")]
    assert (
        curves_and_calibration.calibration_view(Calibration(bins=(empty,), expected_error=None, num_detections=0))
        is None
    )


def test_every_error_type_has_a_bar_and_a_cost():
    view = error_costs.error_view(make_errors(0.1), make_errors(0.2))
    assert {row["name"] for row in view["bars"]["rows"]} == {kind.value for kind in ErrorType}
    missed = next(row for row in view["bars"]["rows"] if row["name"] == "missed")
    assert missed["text"] == "10.0 / 20.0"
    assert [bar["percent"] for bar in missed["bars"]] == [50.0, 100.0]
    assert view["rows"][-1]["costs"] == ["0.0", "0.0"]  # -0.001 points: no sign
    assert error_costs.error_view(make_errors(), None)["names"] == ["candidate"]


def test_a_small_matrix_is_shaded_by_the_share_of_its_row():
    matrix = confusion_matrix.confusion_view(make_confusion(2, [(0, 0, 3), (0, 1, 1), (2, 0, 5)]))["matrix"]
    assert matrix["columns"] == ["c0", "c1", "missed"]
    assert [row["name"] for row in matrix["rows"]] == ["c0", "c1", "background"]
    first = matrix["rows"][0]["cells"]
    assert [(cell["text"], cell["share"]) for cell in first] == [("3", "75 %"), ("1", "25 %"), ("0", "0 %")]
    assert first[0]["shade"] == pytest.approx(3 * first[1]["shade"])
    assert matrix["rows"][2]["cells"][2]["text"] == ""
    many = confusion_matrix.confusion_view(make_confusion(2, [(0, 0, 30), (0, 1, 10), (2, 0, 2), (2, 1, 1)]))["matrix"]
    of_background, of_class = many["rows"][2]["cells"][0], many["rows"][0]["cells"][0]
    assert of_background["share"] == "67 %"
    assert of_background["shade"] == pytest.approx(2 / 30 * of_class["shade"])


def test_with_many_classes_only_the_most_frequent_confusions_are_shown():
    pairs = [(k, k + 1, 10 + k) for k in range(17)] + [(0, 0, 90), (18, 3, 7), (4, 18, 8)]
    view = confusion_matrix.confusion_view(make_confusion(18, pairs))
    assert view["matrix"] is None
    assert len(view["pairs"]["rows"]) == 15
    assert texts_of(view["pairs"]["rows"][0]) == ["c16", "c17", "26", "100 %"]
    assert view["pairs"]["num_more"] == 2
    assert (view["num_missed"], view["num_background"]) == ("8", "7")


def test_training_curves_omit_single_points_and_nonfinite_values():
    nan = float("nan")
    training = {"loss": [(0, 2.0), (10, nan), (20, 1.0)], "AP": [(10, 0.5)], "flat": [(0, 0.0), (5, 0.0)]}
    view = training_data_and_costs.training_charts({**training, "below": [(3, -1.0), (4, -2.0)]})
    assert [chart["title"] for chart in view["charts"]] == ["loss", "flat", "below"]
    assert not any("nan" in chart["svg"] for chart in view["charts"])
