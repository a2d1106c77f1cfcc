import itertools
import json
import math
import os
from pathlib import Path

import pytest
import tensorflow as tf
from training_parts import evaluation_of

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import EarlyStopping
from detloom.trainer_module.run_state import evaluations
from detloom.trainer_module.run_state.evaluations import BestCheckpoints, EvaluationHistory
from detloom.trainer_module.weights.own_checkpoint import find_best_weights


def make(path, values, metric="AP"):
    history = EvaluationHistory(path)
    for i, value in enumerate(values):
        history.add(10 * (i + 1), {metric: value})
    return history


def test_history_is_read_again_and_forgets_later_steps(tmp_path):
    path = tmp_path / "run" / "h.json"
    make(path, [0.1, 0.2, 0.3])
    again = EvaluationHistory(path)
    assert (again.steps, 10 in again, 15 in again) == ([10, 20, 30], True, False)
    again.forget_after(20)
    assert EvaluationHistory(path).steps == [10, 20]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([], 0),
        ([0.1], 0),
        ([0.1, 0.2], 0),
        ([0.2, 0.1, 0.2], 2),  # an equal value is not an improvement
        ([0.1, 0.2, 0.24, 0.2], 2),  # 0.24 is less than min_delta above 0.2
        ([-1.0, -1.0, -1.0], 0),  # not measured
        ([math.nan, math.nan, 0.1], 0),
        ([0.1, math.nan, math.nan], 2),
        ([0.1, 0.2, 0.24, 0.26], 0),  # compared with the last improvement, not with the previous value
    ],
)
def test_evaluations_without_improvement_are_counted(tmp_path, values, count):
    rule = EarlyStopping(metric="AP", min_delta=0.05)
    assert make(tmp_path / "h.json", values).evaluations_without_improvement(rule) == count


def test_lower_loss_is_an_improvement(tmp_path):
    history = make(tmp_path / "h.json", [3.0, 2.0, 2.5, 2.5], metric="loss")
    assert history.evaluations_without_improvement(EarlyStopping(metric="loss")) == 2


@pytest.mark.parametrize("text", ['{"step": 3}', '[{"step": 3, "numbers": {"AP": "high"}}]', "[" * 100_000])
def test_invalid_history_file_is_refused(tmp_path, text):
    (tmp_path / "h.json").write_text(text)
    with pytest.raises(InputError, match=r"h\.json: "):
        EvaluationHistory(tmp_path / "h.json")


def writer_of(step):
    """Return a function that writes weights with the value of their step."""

    def write(path):
        tf.train.Checkpoint(weight=tf.Variable(float(step))).write(str(path))

    return write


def consider(archive, step, ap, loss=1.0):
    return archive.consider(step, evaluation_of(ap, loss), writer_of(step))


def step_in(path):
    return tf.train.load_variable(str(path), "weight/.ATTRIBUTES/VARIABLE_VALUE")


def stems(folder):
    return sorted({file.name.split(".")[0] for file in folder.glob("ckpt-*")})


def test_best_weights_are_kept_with_numbers_and_others_deleted(tmp_path):
    archive = BestCheckpoints(tmp_path, "AP", keep=2)
    assert archive.best is None
    kept = [consider(archive, step, ap) for step, ap in ((10, 0.5), (20, 0.3), (30, 0.4), (40, 0.2))]
    assert kept == [True, True, True, False]
    assert [(entry.step, entry.value) for entry in archive.entries] == [(10, 0.5), (30, 0.4)]
    assert stems(tmp_path) == ["ckpt-10", "ckpt-30"]
    assert archive.best.numbers["AP50"] == 0.5
    assert step_in(archive.best.path) == 10
    assert BestCheckpoints(tmp_path, "AP", keep=2).entries == archive.entries


@pytest.mark.parametrize(
    ("metric", "evaluations", "steps"),
    [
        ("AP", [(10, 0.5, 1.0), (20, 0.5, 1.0)], [20]),  # the later of equal ones
        ("loss", [(10, 0.5, 2.0), (20, 0.5, 1.0), (30, 0.5, 3.0)], [20]),
        ("loss", [(10, 0.5, math.nan), (20, 0.5, 5.0), (30, 0.5, math.nan)], [20, 30]),  # worse than any number
    ],
)
def test_best_evaluations_are_kept_in_order(tmp_path, metric, evaluations, steps):
    archive = BestCheckpoints(tmp_path, metric, keep=len(steps))
    for row in evaluations:
        consider(archive, *row)
    assert [entry.step for entry in archive.entries] == steps
    assert BestCheckpoints(tmp_path, metric, keep=len(steps)).entries[0] == archive.best
    assert stems(tmp_path) == [f"ckpt-{step}" for step in steps]


def test_repeated_step_has_one_entry(tmp_path):
    archive = BestCheckpoints(tmp_path, "AP", keep=2)
    consider(archive, 10, 0.5)
    writes = []
    assert archive.consider(10, evaluation_of(0.5), writes.append)
    assert writes == []  # the same weights
    assert consider(archive, 10, 0.4)
    assert [(entry.step, entry.value) for entry in archive.entries] == [(10, 0.4)]


def test_best_weights_of_later_steps_are_forgotten(tmp_path):
    archive = BestCheckpoints(tmp_path, "AP", keep=3)
    for step, ap in ((10, 0.1), (20, 0.2), (30, 0.3)):
        consider(archive, step, ap)
    archive.forget_after(20)
    assert (archive.best.step, stems(tmp_path)) == (20, ["ckpt-10", "ckpt-20"])
    archive.forget_after(0)
    assert (archive.best, stems(tmp_path)) == (None, [])


class Killed(BaseException):
    pass


# The changes of the folder, in the order in which one entry replaces another: two files of weights are written,
# `best.json` is renamed into place, two files are deleted.
MOMENTS = ("write", "half-written", "written", "json", "replace", "unlink-1", "unlink-2")


def kill_at(moment, monkeypatch):
    """Patch the change that is to fail; return the function that writes the weights of step 20."""
    write = writer_of(20)
    counts = itertools.count(1)

    def die(*_, **__):
        raise Killed

    def write_and_die(path):
        if moment != "write":
            write(path)
        if moment == "half-written":
            os.unlink(f"{path}.index")
        raise Killed

    if moment == "json":
        monkeypatch.setattr(evaluations, "write_text_file", die)
    elif moment == "replace":
        monkeypatch.setattr(os, "replace", die)
    elif moment.startswith("unlink"):
        unlink = Path.unlink

        def unlink_or_die(path, **settings):
            if path.name.startswith("ckpt-") and next(counts) == int(moment[-1]):
                raise Killed
            unlink(path, **settings)

        monkeypatch.setattr(Path, "unlink", unlink_or_die)
    return write_and_die if moment in MOMENTS[:3] else write


@pytest.mark.reliability("kill", "train")
@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_at_any_moment_leaves_the_old_or_the_new_best_weights_intact(tmp_path, monkeypatch, moment):
    best_dir = tmp_path / "best"
    consider(BestCheckpoints(best_dir, "AP", keep=1), 10, 0.5)
    archive = BestCheckpoints(best_dir, "AP", keep=1)
    with monkeypatch.context() as patch:
        write = kill_at(moment, patch)
        with pytest.raises(Killed):
            archive.consider(20, evaluation_of(0.6), write)

    resumed = BestCheckpoints(best_dir, "AP", keep=1)
    expected = 20 if moment.startswith("unlink") else 10
    assert resumed.best.step == expected
    assert step_in(resumed.best.path) == expected
    assert find_best_weights(str(tmp_path)) == str(best_dir / f"ckpt-{expected}")
    assert consider(resumed, 30, 0.7)
    assert sorted(os.listdir(best_dir)) == ["best.json", "ckpt-30.data-00000-of-00001", "ckpt-30.index"]


def test_leftovers_of_an_interrupted_write_are_deleted(tmp_path):
    (tmp_path / "ckpt-5_temp").mkdir()
    (tmp_path / "ckpt-5_temp" / "part-00000-of-00001.data").write_bytes(b"")
    (tmp_path / "ckpt-notes.txt").write_text("the user's")
    consider(BestCheckpoints(tmp_path, "AP", keep=1), 10, 0.5)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("ckpt-10")) == [
        "best.json",
        "ckpt-notes.txt",
    ]


@pytest.mark.reliability("torn file", "train")
@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"metric": "AP"}',
        '{"metric": "AP", "entries": [{"step": 1}]}',
        '{"metric": "AP", "entries": [{"step": 1, "value": "high", "path": "ckpt-1", "numbers": {}}]}',
    ],
)
def test_invalid_list_is_refused_and_no_weights_are_deleted(tmp_path, text):
    writer_of(1)(tmp_path / "ckpt-1")
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(InputError, match=r"best\.json: "):
        BestCheckpoints(tmp_path, "AP", keep=1)
    assert stems(tmp_path) == ["ckpt-1"]


@pytest.mark.reliability("hostile input", "train")
def test_list_cannot_name_weights_elsewhere(tmp_path):
    entry = '{"step": 1, "value": 0.5, "path": "../../stolen", "numbers": {}}'
    (tmp_path / "best.json").write_text(f'{{"metric": "AP", "entries": [{entry}]}}')
    assert BestCheckpoints(tmp_path, "AP", keep=1).best.path == tmp_path / "ckpt-1"


def test_list_by_another_metric_is_refused(tmp_path):
    consider(BestCheckpoints(tmp_path, "AP", keep=1), 10, 0.5)
    with pytest.raises(InputError, match=r"best\.json: .*AP, got loss as eval\.best_metric"):
        BestCheckpoints(tmp_path, "loss", keep=1)


def test_best_existing_weights_of_a_run_are_found(tmp_path):
    archive = BestCheckpoints(tmp_path / "best", "AP", keep=2)
    consider(archive, 10, 0.5)
    consider(archive, 20, 0.6)
    assert find_best_weights(str(tmp_path)) == str(tmp_path / "best" / "ckpt-20")
    (tmp_path / "best" / "ckpt-20.index").unlink()
    assert find_best_weights(str(tmp_path)) == str(tmp_path / "best" / "ckpt-10")
    assert json.loads((tmp_path / "best" / "best.json").read_text())["metric"] == "AP"
