import json
import sys

import decisions
import numpy as np
import pytest
from decisions import Outcome, Pair, choose_steps, describe, find_steps, is_as_claimed, make_pairs, print_table

from detloom.components.evaluator.evaluation_result import assess, measure_model
from detloom.components.evaluator.measurements import Split
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.evaluator_and_gates import Evaluator, Gates
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth

TEN = list(range(155, 1551, 155))


def make_outcome(**changes):
    values = {"AP": 0.6, "baseline_AP": 0.5, "change": 0.1, "low": 0.05, "high": 0.15}
    return Outcome(**{**values, "difference": "better", "blessed": True, "reason": "AP is higher.", **changes})


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (0, *TEN):
        (tmp_path / f"checkpoints/ckpt-{step}.index").touch()
        (tmp_path / f"checkpoints/ckpt-{step}.data-00000-of-00001").touch()
    (tmp_path / "checkpoints/ckpt-best.index").touch()
    return tmp_path


def box_of(image_id):
    """Return another box for each image, because a detector that ignores the image must not find them all."""
    row, column = divmod(image_id - 1, 8)
    return np.array([[0.2 * row, 0.1 * column, 0.2 * row + 0.1, 0.1 * column + 0.1]])


@pytest.fixture
def split():
    """Return scores of forty images with one object each, of which a model finds the first ones."""
    truth = [ImageGroundTruth(i, (100, 100), box_of(i), np.ones(1, int), np.zeros(1, bool)) for i in range(1, 41)]
    return Split(ground_truth=truth, features=[{}] * 40, label_map=LabelMap.from_names(("cell",)))


def measure(split, num_found):
    found = [ImageDetections(i, box_of(i) + (i > num_found) * 0.08, np.ones(1), np.ones(1, int)) for i in range(1, 41)]
    return measure_model(split, found, Evaluator())


def judge(split, candidate, baseline):
    names = [str(image.image_id) for image in split.ground_truth]
    return describe(assess(split, names, candidate, baseline, Gates()))


def test_the_steps_of_a_run_are_those_of_its_checkpoints(run_dir):
    assert find_steps(run_dir) == TEN


def test_a_folder_without_checkpoints_has_no_steps(tmp_path):
    assert find_steps(tmp_path) == []


def test_by_default_a_quarter_is_compared_with_three_fifths_and_with_the_whole():
    # of 1550: 387.5 is between 310 and 465 and gives the earlier one; 930; 1550
    assert choose_steps(TEN, None) == (310, 930, 1550)


def test_requested_steps_are_used():
    assert choose_steps(TEN, [155, 310, 465]) == (155, 310, 465)


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        (TEN, [155, 310]),
        (TEN, [310, 155, 465]),
        (TEN, [155, 155, 310]),
        (TEN, [155, 310, 400]),
        ([100], None),
        ([], None),
    ],
)
def test_other_than_three_ascending_existing_steps_are_refused(there, asked):
    with pytest.raises(ValueError, match=r"steps: got .*(155|100|none)"):
        choose_steps(there, asked)


def test_three_pairs_against_one_baseline():
    pairs = make_pairs(310, 930, 1550)
    assert [(pair.name, pair.candidate_step, pair.baseline_step) for pair in pairs] == [
        ("longer", 1550, 930),
        ("shorter", 310, 930),
        ("same", 930, 930),
    ]


def test_better_worse_and_equal_pairs_are_as_claimed(split):
    longer, shorter, same = make_pairs(1, 2, 3)
    good, bad = measure(split, 36), measure(split, 20)
    outcomes = judge(split, good, bad), judge(split, bad, good), judge(split, good, good)
    assert [(each.blessed, each.difference) for each in outcomes] == [
        (True, "better"),
        (False, "worse"),
        (True, "none"),
    ]
    assert all(map(is_as_claimed, (longer, shorter, same), outcomes))
    assert not any(map(is_as_claimed, (shorter, longer, same), outcomes[:2] + outcomes[:1]))
    assert outcomes[0].change == pytest.approx(outcomes[0].AP - outcomes[0].baseline_AP)
    assert outcomes[0].low < outcomes[0].change < outcomes[0].high


def test_a_missing_baseline_is_an_error(split):
    good = measure(split, 36)
    evaluation = assess(split, ["a"] * 40, good, None, Gates(), baseline_problem="it has other classes")
    with pytest.raises(RuntimeError, match="not compared: it has other classes"):
        describe(evaluation)


def test_the_table_marks_unexpected_outcomes(capsys):
    longer, shorter, _ = make_pairs(310, 930, 1550)
    print_table([(longer, make_outcome()), (shorter, make_outcome(low=None, high=None, difference=None))])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "longer 1550 / 930 0.600 0.500 +0.100 +0.050 to +0.150 better blessed"
    assert lines[2] == "shorter 310 / 930 0.600 0.500 +0.100 - to - - blessed NOT AS CLAIMED"
    assert lines[3] == "longer: AP is higher."


def test_outcomes_are_written_and_an_unexpected_one_fails(run_dir, tmp_path, monkeypatch):
    output = tmp_path / "output"
    output.mkdir()

    def decide_pair(pair: Pair, models, examples, split, folder):
        assert (models, split, folder) == ({}, "test", output / pair.name)
        return make_outcome(blessed=pair.name != "shorter", difference="better")

    monkeypatch.setattr(decisions, "export_steps", lambda *_: {})
    monkeypatch.setattr(decisions, "decide_pair", decide_pair)
    arguments = [f"--run={run_dir}", f"--examples={tmp_path}", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["decisions.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        decisions.main()
    rows = json.loads((output / "decisions.json").read_text())["outcomes"]
    assert ended.value.code == 1
    assert [(row["pair"]["name"], row["as_claimed"]) for row in rows] == [
        ("longer", True),
        ("shorter", True),
        ("same", False),
    ]
