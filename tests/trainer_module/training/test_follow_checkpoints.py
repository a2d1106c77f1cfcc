import json
import threading
import time

import pytest
import tensorflow as tf
from training_parts import evaluation_of

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.run_state.run_folder import write_settings
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
from detloom.trainer_module.training import follow_checkpoints as watch
from detloom.trainer_module.training.follow_checkpoints import (
    EVAL_LOG_FILE,
    EvalSet,
    WatchOptions,
    evaluate_checkpoints,
    find_run,
)
from detloom.trainer_module.weights.own_checkpoint import weights_by_path

LABEL_MAP = LabelMap.from_names(["red", "green"])
BIAS = "head/offsets/bias"  # its value identifies the weights


@pytest.fixture(scope="module")
def detector(tiny_config):
    return build_detector(tiny_config.model, LABEL_MAP)


@pytest.fixture
def sets():
    return tuple(EvalSet(name, (f"{name}.tfrecord",)) for name in ("eval", "test"))


@pytest.fixture
def measured(monkeypatch, detector):
    """Replace the evaluation by one that returns the value of a weight; the detector is built once.

    Yields the configurations with which data sets were built.
    """

    class WeightAsMetric:
        def __init__(self, detector, dataset, files, keypoints=None, strategy=None):
            self.detector = detector

        def __call__(self):
            return evaluation_of(float(weights_by_path(self.detector.network)[BIAS][0]))

    monkeypatch.setattr(watch, "SplitEvaluator", WeightAsMetric)
    configs = []
    monkeypatch.setattr(watch, "build_detector", lambda model, label_map: detector)
    monkeypatch.setattr(watch, "build_eval_dataset", lambda config, *_, **__: configs.append(config))
    return configs


@pytest.fixture
def run(tmp_path, tiny_config):
    """The folder of a run of 6 steps that evaluates its averages."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_settings(folder, tiny_config, LABEL_MAP, data="")
    return folder


def save(run, detector, step, weight, average=None):
    """Save a checkpoint with one value in all weights and, if given, an average of one of them."""
    network = {path: tf.Variable(tf.fill(v.shape, weight)) for path, v in weights_by_path(detector.network).items()}
    averages = {} if average is None else {BIAS: tf.Variable(tf.fill(network[BIAS].shape, average))}
    checkpoint = tf.train.Checkpoint(network=network, averaged_weights=averages, optimizer={"slot": tf.Variable(0.0)})
    checkpoint.write(str(run / "checkpoints" / f"ckpt-{step}"))


def found(result):
    return [(each.step, each.set_name, each.evaluation.metrics.AP) for each in result.evaluations]


def read_log(folder):
    return [json.loads(line) for line in (folder / EVAL_LOG_FILE).read_text().splitlines()]


def test_all_checkpoints_are_evaluated_on_all_sets_with_averages(tmp_path, run, sets, measured, detector):
    for step, weight, average in ((0, 0.0, None), (2, 0.5, 0.25), (4, 0.75, None)):
        save(run, detector, step, weight, average)
    result = evaluate_checkpoints(run, sets, tmp_path / "out", WatchOptions(one_of=3))
    assert [config.eval_input.sample_1_of_n_examples for config in measured] == [3, 3]
    assert found(result) == [(2, "eval", 0.25), (2, "test", 0.25), (4, "eval", 0.75), (4, "test", 0.75)]
    rows = read_log(tmp_path / "out" / "test")
    assert [(row["step"], row["AP50"], row["loss"], row["num_images"]) for row in rows] == [
        (2, 0.25, 1.0, 4),
        (4, 0.75, 1.0, 4),
    ]
    assert list((tmp_path / "out" / "test").glob("events.out.tfevents.*"))


def test_weights_of_the_newest_are_evaluated(tmp_path, run, sets, measured, detector, tiny_config, changed):
    write_settings(run, changed(tiny_config, {"eval.use_moving_averages": False}), LABEL_MAP, data="")
    for step in (2, 4, 10):
        save(run, detector, step, float(step), average=0.25)
    result = evaluate_checkpoints(run, sets[:1], tmp_path / "out", WatchOptions(newest_only=True))
    assert found(result) == [(10, "eval", 10.0)]


@pytest.mark.parametrize("num_lost", [1, 10])
def test_only_new_checkpoints_and_truncated_lines_are_evaluated(tmp_path, run, sets, measured, detector, num_lost):
    """This includes a line that only lacks its newline: the next entry would follow on the same line."""
    save(run, detector, 2, 0.5)
    save(run, detector, 4, 0.75)
    evaluate_checkpoints(run, sets[:1], tmp_path / "out", WatchOptions())
    log = tmp_path / "out" / "eval" / EVAL_LOG_FILE
    log.write_text(log.read_text()[:-num_lost])
    again = evaluate_checkpoints(run, sets[:1], tmp_path / "out", WatchOptions())
    assert found(again) == [(4, "eval", 0.75)]
    assert [row["step"] for row in read_log(log.parent)] == [2, 4]


def test_running_trainer_is_followed_to_its_last_step(tmp_path, tiny_config, sets, measured, detector):
    """The trainer starts later, and writes its settings after creating its folder."""
    run = tmp_path / "later"

    def train():
        time.sleep(0.2)
        run.mkdir()
        time.sleep(0.1)
        write_settings(run, tiny_config, LABEL_MAP, data="")
        for step in (3, 6):
            time.sleep(0.2)
            save(run, detector, step, float(step))

    trainer = threading.Thread(target=train)
    trainer.start()
    options = WatchOptions(follow=True, poll_seconds=0.02, timeout_seconds=60)
    result = evaluate_checkpoints(run, sets[:1], tmp_path / "out", options)
    trainer.join()
    assert found(result) == [(3, "eval", 3.0), (6, "eval", 6.0)]
    assert "Step 6" in result.ended


@pytest.mark.parametrize(("is_finished", "reason"), [(True, "ended"), (False, "0 s")])
def test_following_ends_with_the_run_or_after_the_timeout(tmp_path, run, sets, measured, detector, is_finished, reason):
    save(run, detector, 2, 0.5)
    if is_finished:
        (run / SUMMARY_FILE).write_text("{}")
    options = WatchOptions(follow=True, poll_seconds=0.01, timeout_seconds=0.1)
    result = evaluate_checkpoints(run, sets[:1], tmp_path / "out", options)
    assert found(result) == [(2, "eval", 0.5)]
    assert reason in result.ended


@pytest.mark.parametrize("fault", ["deleted", "torn", "lacking"])
def test_unreadable_checkpoint_is_skipped_and_logged(
    tmp_path, run, sets, measured, detector, caplog, fault, monkeypatch
):
    save(run, detector, 2, 0.5)
    save(run, detector, 4, 0.75)
    data, index = (run / "checkpoints" / f"ckpt-2.{end}" for end in ("data-00000-of-00001", "index"))
    if fault == "torn":
        data.write_bytes(data.read_bytes()[:100])
    elif fault == "lacking":
        tf.train.Checkpoint(network={}).write(str(run / "checkpoints" / "ckpt-2"))
    else:
        load = tf.train.load_checkpoint

        def delete_and_load(path):
            if path.endswith("ckpt-2"):
                data.unlink()
                index.unlink()
            return load(path)

        monkeypatch.setattr(tf.train, "load_checkpoint", delete_and_load)
    result = evaluate_checkpoints(run, sets[:1], tmp_path / "out", WatchOptions())
    assert found(result) == [(4, "eval", 0.75)]
    reason = {"deleted": "deleted", "torn": "", "lacking": "backbone/"}[fault]
    assert any("ckpt-2" in record.message and reason in record.message for record in caplog.records)


def test_folder_without_run_or_checkpoint_is_refused(tmp_path, run, sets, measured):
    with pytest.raises(InputError, match=r"nowhere/config\.json"):
        evaluate_checkpoints(tmp_path / "nowhere", sets, tmp_path / "out", WatchOptions())
    with pytest.raises(InputError, match=r"run/checkpoints: .*--watch"):
        evaluate_checkpoints(run, sets, tmp_path / "out", WatchOptions())


def test_run_is_found_from_its_checkpoints_folder(run):
    (run / "checkpoints").mkdir()
    assert find_run(run / "checkpoints") == run
    assert find_run(run) == run
