import json

import pytest

from detloom.components.evaluator.report.read_training_and_data import read_data_health, read_training_curves

CHECKS = [
    {"title": "Inverted boxes", "sentence": "none", "status": "passed"},
    {"title": "Near duplicates", "sentence": "2 of 9", "status": "warned"},
    {"title": "Drift", "sentence": "not checked", "status": "skipped"},
]


def test_only_checks_that_ran_are_read(tmp_path):
    assert (read_data_health(str(tmp_path)), read_training_curves(str(tmp_path))) == ([], {})  # no files
    (tmp_path / "report.json").write_text(json.dumps({"checks": CHECKS}))
    expected = [("Inverted boxes", "none", "passed"), ("Near duplicates", "2 of 9", "warned")]
    assert read_data_health(str(tmp_path)) == expected


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"checks": [{}]}', '{"checks": 3}', "\x00"])
def test_an_invalid_report_is_ignored(text, tmp_path):
    (tmp_path / "report.json").write_text(text)
    assert read_data_health(str(tmp_path)) == []


def write_log(folder, rows, end=""):
    (folder / "train_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def test_training_and_evaluation_curves_are_read(tmp_path):
    rows = [
        {"kind": "train", "step": 10, "loss": 2.0, "learning_rate": 0.1, "time": 1.0},
        {"kind": "eval", "step": 10, "AP": -1, "AP50": 0.25, "loss": 3.0},
        {"kind": "event", "step": 10, "event": "rollback"},
        {"kind": "train", "step": 20, "loss": None, "learning_rate": 0.2},
    ]
    write_log(tmp_path, rows, end='{"kind": "train", "st')
    assert read_training_curves(str(tmp_path)) == {
        "train loss": [(10.0, 2.0)],
        "learning rate": [(10.0, 0.1), (20.0, 0.2)],
        "eval AP50": [(10.0, 0.25)],
        "eval loss": [(10.0, 3.0)],
    }


def test_long_curves_are_thinned_out_and_keep_their_end(tmp_path):
    write_log(tmp_path, [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, 1001)])
    points = read_training_curves(str(tmp_path))["train loss"]
    assert len(points) == 200
    assert points[-1] == (1000.0, 1.0)
