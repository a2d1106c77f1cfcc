import json
import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from detloom.trainer_module.evaluation.coco_metrics import ClassMetrics, CocoMetrics
from detloom.trainer_module.evaluation.split_evaluator import Evaluation
from detloom.trainer_module.run_state import train_log_and_tensorboard
from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE, TENSORBOARD_DIR, TrainingLog


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch):
    monkeypatch.setattr(train_log_and_tensorboard.time, "time", lambda: 1_700_000_000.25)


def lines(out_dir):
    return [json.loads(line) for line in (out_dir / LOG_FILE).read_text(encoding="utf-8").splitlines()]


def steps_logged(out_dir):
    return [line["step"] for line in lines(out_dir)]


def shown(out_dir):
    """Return what TensorBoard shows, by tag: (step, value)."""
    accumulator = EventAccumulator(str(out_dir / TENSORBOARD_DIR))
    accumulator.Reload()
    found = {}
    for tag in accumulator.Tags()["tensors"]:
        events = accumulator.Tensors(tag)
        found[tag] = [(event.step, tf.make_ndarray(event.tensor_proto).tolist()) for event in events]
    return found


def log_steps(out_dir, steps, *, first_step=0):
    with TrainingLog(out_dir, first_step=first_step) as log:
        for step in steps:
            log.steps(step, {"loss": float(step)})


@pytest.fixture
def evaluation():
    coco = {"AP": 0.5, "AP50": 0.75, "AP75": 0.5, "APs": -1.0, "APm": 0.5, "APl": 0.5}
    coco |= {"AR1": 0.25, "AR10": 0.5, "AR100": 0.5, "ARs": -1.0, "ARm": 0.5, "ARl": 0.5}
    rows = (
        ClassMetrics(class_id=1, name="cat", num_boxes=3, **coco),
        ClassMetrics(class_id=2, name="käfer", num_boxes=0, **dict.fromkeys(coco, -1.0)),
    )
    metrics = CocoMetrics(**coco, per_class=rows, num_images=2, num_boxes=3)
    return Evaluation(metrics=metrics, losses={"loss": 1.5, "localization_loss": 1.5}, num_images=2, seconds=0.5)


def test_steps_are_written_immediately_as_a_json_line_and_scalars(tmp_path):
    """JSON has null for numbers that are not finite."""
    log = TrainingLog(tmp_path, first_step=0)
    log.steps(20, {"loss": 0.5, "gradient_norm": math.nan, "rate": -math.inf})
    row = {"kind": "train", "step": 20, "loss": 0.5, "gradient_norm": None, "rate": None, "time": 1_700_000_000.25}
    assert lines(tmp_path) == [row]
    assert set(shown(tmp_path)) == {"train/loss", "train/gradient_norm", "train/rate"}
    assert shown(tmp_path)["train/loss"] == [(20, 0.5)]
    log.close()


def test_evaluation_is_logged_with_losses_and_per_class(tmp_path, evaluation):
    with TrainingLog(tmp_path, first_step=0) as log:
        log.evaluation(4, evaluation)
    (line,) = lines(tmp_path)
    assert (line["kind"], line["AP50"], line["APs"], line["AP/cat"]) == ("eval", 0.75, -1.0, 0.5)
    assert (line["AP/käfer"], line["localization_loss"], line["num_images"]) == (-1.0, 1.5, 2)
    tags = set(shown(tmp_path))
    assert {"eval/AP50", "eval/AP/cat", "eval/loss"} <= tags
    assert not {"eval/APs", "eval/ARs", "eval/AP/käfer"} & tags  # not measured


def test_event_is_written_as_a_line_and_a_text(tmp_path):
    with TrainingLog(tmp_path, first_step=0) as log:
        log.event(40, "rollback", from_step=50, step=50, keys=["a", "b"])
    (line,) = lines(tmp_path)
    del line["time"]
    expected = {"kind": "event", "event": "rollback", "from_step": 50, "step": 40, "keys": ["a", "b"]}
    assert line == expected  # a fact named `step` does not replace the step
    ((step, (text,)),) = shown(tmp_path)["events/rollback"]
    assert (step, b"step 40: rollback (from_step 50" in text) == (40, True)


@pytest.mark.reliability("kill", "train")
def test_resumed_run_logs_no_step_twice(tmp_path):
    log_steps(tmp_path, [2, 4, 6, 8])  # killed here; the newest checkpoint is step 4
    log_steps(tmp_path, [6, 8, 10], first_step=4)
    assert steps_logged(tmp_path) == [2, 4, 6, 8, 10]
    assert [step for step, _ in shown(tmp_path)["train/loss"]] == [2, 4, 6, 8, 10]


def test_rollback_removes_entries_of_later_steps(tmp_path):
    with TrainingLog(tmp_path, first_step=0) as log:
        for step in (2, 4, 6):
            log.steps(step, {"loss": float(step)})
        log.forget_after(2)
        log.event(2, "rollback", from_step=6)
        log.steps(4, {"loss": 40.0})
    assert [(line["step"], line["kind"]) for line in lines(tmp_path)] == [(2, "train"), (2, "event"), (4, "train")]
    assert shown(tmp_path)["train/loss"] == [(2, 2.0), (4, 40.0)]


@pytest.mark.reliability("torn file", "train")
@pytest.mark.parametrize("damage", ['{"kind": "train", "st', '{"kind": "train", "step": 3}', "\0\0\0\0", "[1]\n"])
def test_invalid_lines_are_removed(tmp_path, damage):
    log_steps(tmp_path, [2])
    with (tmp_path / LOG_FILE).open("a") as file:
        file.write(damage)
    log_steps(tmp_path, [4], first_step=3)
    assert steps_logged(tmp_path) == [2, 4]


def test_log_without_later_steps_is_not_rewritten(tmp_path):
    log_steps(tmp_path, [2, 4])
    before = (tmp_path / LOG_FILE).stat()
    log_steps(tmp_path, [], first_step=4)
    after = (tmp_path / LOG_FILE).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".partial"] == []


def test_images_of_the_newest_step_are_kept_as_png(tmp_path):
    with TrainingLog(tmp_path, first_step=0) as log:
        for step, grey in ((4, 50), (8, 60)):
            log.images(step, "detections", np.full((2, 6, 8, 3), grey, np.uint8))
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["detections-0.png", "detections-1.png"]
    assert np.asarray(Image.open(tmp_path / "images/detections-1.png"))[0, 0].tolist() == [60, 60, 60]
    assert [(step, len(parts)) for step, parts in shown(tmp_path)["detections"]] == [(4, 4), (8, 4)]  # sides + two


def test_histograms_of_weights_are_named_by_path(tmp_path):
    with TrainingLog(tmp_path, first_step=0) as log:
        log.histograms(4, {"head/kernel": tf.Variable([0.0, 1.0])})
    ((step, bins),) = shown(tmp_path)["weights/head/kernel"]
    assert (step, sum(count for _, _, count in bins)) == (4, 2.0)
