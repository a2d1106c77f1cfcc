import evaluations
import numpy as np
import pytest
from evaluations import texts_of

from detloom.components.evaluator.measurements import Split, measure
from detloom.components.evaluator.report import score_thresholds as thresholds
from detloom.schemas.run_file.evaluator import EvaluatorSettings

CAT, DOG, NOWHERE = (1, 0, 0, 40, 40), (3, 50, 50, 90, 90), (1, 90, 90, 95, 95)


@pytest.fixture
def measured(make_image, label_map):
    """Measure detections (class, box, score) of an image with a cat and a dog."""

    def call(*found, crowds=()):
        truth, detections = make_image(1, truth=[CAT, DOG], found=found, crowds=crowds)
        split = Split(ground_truth=[truth], features=[{}], label_map=label_map)
        return measure(split, [detections], EvaluatorSettings())

    return call


def test_a_slider_starts_at_the_best_f1(measured):
    steps = thresholds.ScoreSteps.of_model(measured((*CAT, 0.873), (*NOWHERE, 0.5)))
    assert len(steps.thresholds) == 102
    assert (steps.start_score, steps.labels()[steps.start]) == (0.873, "0.873")
    labels = [steps.labels()[index] for index in (0, steps.start - 1, steps.start + 1, -1)]
    assert labels == ["0.00", "0.87", "0.88", "1.00"]


def test_without_true_positives_a_slider_starts_in_the_middle(measured):
    assert thresholds.ScoreSteps.of_model(measured((*NOWHERE, 0.9))).start_score == 0.5
    assert thresholds.ScoreSteps.of_model(measured()).start_score == 0.5


def test_scores_outside_of_0_to_1_widen_the_range(measured):
    steps = thresholds.ScoreSteps.of_model(measured((*CAT, 80.0), (*NOWHERE, -2.0)))
    assert (steps.thresholds[0], steps.thresholds[-1]) == (-2.0, 80.0)


def test_a_score_reaches_equal_thresholds(measured):
    steps = thresholds.ScoreSteps.of_model(measured((*CAT, 0.9)))
    assert steps.steps_of([0.0, 0.0099, 0.01, 0.29, 1.0]).tolist() == [1, 1, 2, 30, 101]


def test_rates_at_each_threshold(measured, label_map):
    model = measured((*CAT, 0.9), (*NOWHERE, 0.6), (*DOG, 0.3))
    counts = thresholds.count_steps(model.matches, thresholds.ScoreSteps.of_model(model), [0, 1])

    def rates(row, score):
        found = counts.at(row, round(score * 100))
        return found.precision, found.recall, found.F1

    # All classes: two objects. F1 = 2 true / (detections + objects).
    assert rates(0, 0.3) == (2 / 3, 1.0, 4 / 5)
    assert rates(0, 0.31) == (1 / 2, 1 / 2, 2 / 4)
    assert rates(0, 0.7) == (1.0, 1 / 2, 2 / 3)
    assert rates(0, 0.95) == (None, 0.0, 0.0)
    assert rates(1, 0.6) == (1 / 2, 1.0, 2 / 3)
    assert rates(2, 0.3) == (1.0, 1.0, 1.0)


def test_detections_on_a_crowd_do_not_count(measured):
    model = measured((*CAT, 0.9), (*DOG, 0.8), crowds=[1])
    counts = thresholds.count_steps(model.matches, thresholds.ScoreSteps.of_model(model), [1])
    assert counts.num_truth.tolist() == [1, 0]
    assert counts.at(0, 0) == thresholds.Rates(1.0, 1.0, 1.0)
    assert counts.at(1, 0) == thresholds.Rates(None, None, None)


def test_counts_are_written_without_zeros():
    counts = thresholds.StepCounts(
        num_truth=np.array([3, 2]),
        num_true=np.array([[0, 2, 1], [0, 2, 0]]),
        num_false=np.array([[12, 0, 0], [0, 0, 0]]),
    )
    assert counts.format() == "3|,2,1|12,,;2|,2,|,,"


def test_the_table_compares_both_models_at_their_own_scores():
    view = thresholds.threshold_view(evaluations.make_evaluation())
    # Candidate: no errors at 0.7. Baseline: at 0.9 one cat of three objects.
    assert [model["labels"][model["start"]] for model in view["models"]] == ["0.700", "0.900"]
    titles = [column["title"] for column in view["columns"]]
    assert titles[-4:] == [*(f"Baseline: {rate}" for rate in ("precision", "recall", "F1")), "Change of F1"]
    of_candidate, of_baseline = ["1.000", "1.000", "1.000"], ["1.000", "0.333", "0.500"]
    assert texts_of(view["rows"][0]) == ["All classes", "3", *of_candidate, *of_baseline, "+0.500"]
    assert texts_of(view["rows"][2])[5:] == ["–", "0.000", "0.000", "+1.000"]


def test_a_single_class_has_one_row():
    view = thresholds.threshold_view(evaluations.make_evaluation(names=("cat",), has_baseline=False))
    assert [row[0]["text"] for row in view["rows"]] == ["All classes"]
    assert len(view["columns"]) == 5


def test_the_table_is_limited_to_classes_with_the_most_boxes_and_the_total_is_not(monkeypatch):
    monkeypatch.setattr(thresholds, "MAX_CLASSES", 1)
    view = thresholds.threshold_view(evaluations.make_evaluation())
    assert [(row[0]["text"], row[1]["text"]) for row in view["rows"]] == [("All classes", "3"), ("<b>dog</b>", "2")]
    assert view["num_more"] == 1


def test_the_counts_of_many_classes_have_a_bounded_size():
    rows = np.full((thresholds.MAX_CLASSES + 1, 102), 9_999_999)
    counts = thresholds.StepCounts(num_truth=rows[:, 0], num_true=rows, num_false=rows)
    assert 2 * len(counts.format()) < 700_000
