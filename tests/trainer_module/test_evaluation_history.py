import math

import pytest

from detloom.schemas.config import EarlyStopping
from detloom.schemas.errors import InputError
from detloom.trainer_module.evaluation_history import EvaluationHistory


def make(path, values, metric="AP"):
    history = EvaluationHistory(path)
    for i, value in enumerate(values):
        history.add(10 * (i + 1), {metric: value})
    return history


def test_a_history_is_read_again(tmp_path):
    make(tmp_path / "run" / "h.json", [0.1, 0.2])
    again = EvaluationHistory(tmp_path / "run" / "h.json")
    assert (again.steps, 10 in again, 15 in again) == ([10, 20], True, False)


def test_steps_after_the_one_that_a_run_goes_on_from_are_left_out(tmp_path):
    make(tmp_path / "h.json", [0.1, 0.2, 0.3]).forget_after(20)
    assert EvaluationHistory(tmp_path / "h.json").steps == [10, 20]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([], 0),
        ([0.1], 0),
        ([0.1, 0.2], 0),
        ([0.2, 0.1, 0.2], 2),  # an equal one is no improvement
        ([0.1, 0.2, 0.24, 0.2], 2),  # 0.24 is less than min_delta above 0.2
        ([-1.0, -1.0, -1.0], 0),  # nothing to measure
        ([math.nan, math.nan, 0.1], 0),
        ([0.1, math.nan, math.nan], 2),
        ([0.1, 0.2, 0.24, 0.26], 0),  # measured from the last improvement, not from the one before
    ],
)
def test_evaluations_without_improvement_are_counted(tmp_path, values, count):
    rule = EarlyStopping(metric="AP", min_delta=0.05)
    assert make(tmp_path / "h.json", values).evaluations_without_improvement(rule) == count


def test_a_loss_improves_by_falling(tmp_path):
    history = make(tmp_path / "h.json", [3.0, 2.0, 2.5, 2.5], metric="loss")
    assert history.evaluations_without_improvement(EarlyStopping(metric="loss")) == 2


@pytest.mark.parametrize("text", ['{"step": 3}', '[{"step": 3, "numbers": {"AP": "high"}}]', "[" * 100_000])
def test_a_file_that_is_no_history_is_refused(tmp_path, text):
    (tmp_path / "h.json").write_text(text)
    with pytest.raises(InputError, match=r"h\.json: no history of evaluations"):
        EvaluationHistory(tmp_path / "h.json")
