import json

import pytest
from click.testing import CliRunner

from detloom.pipelines.cli import cli
from detloom.schemas.config import InputReader
from detloom.schemas.metric_names import METRIC_NAMES
from detloom.schemas.presets import find_preset
from detloom.schemas.typed_dict import to_canonical_json
from detloom.trainer_module import watch
from detloom.trainer_module.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluate import Evaluation
from detloom.trainer_module.watch import CheckpointEvaluation, WatchOptions, WatchResult


@pytest.fixture
def calls(monkeypatch):
    """What `evaluate_checkpoints` was called with; it answers one evaluation."""
    seen = []

    def answer(run_dir, sets, out_dir, options, on_evaluation):
        seen.append((run_dir, sets, out_dir, options))
        numbers = {**dict.fromkeys(METRIC_NAMES, 0.5), "per_class": (), "num_images": 3, "num_boxes": 4}
        measured = Evaluation(metrics=CocoMetrics(**numbers), losses={"loss": 1.25}, num_images=3, seconds=2.0)
        each = CheckpointEvaluation(100, "test", measured)
        on_evaluation(each)
        return WatchResult((each,), "Step 100 was the last.")

    monkeypatch.setattr(watch, "evaluate_checkpoints", answer)
    return seen


@pytest.fixture
def split(tmp_path):
    folder = tmp_path / "Split-test"
    folder.mkdir()
    (folder / "data_tfrecord-00000-of-00001").touch()
    return folder


def evaluate(*arguments):
    return CliRunner().invoke(cli, ["evaluate", *map(str, arguments)])


def test_each_checkpoint_is_a_line(tmp_path, calls, split):
    result = evaluate("--checkpoints", tmp_path / "run" / "checkpoints", "--examples", split)
    assert result.exit_code == 0
    line = "step 100, test: AP 0.500, AP50 0.500, loss 1.250 on 3 pictures in 2.0 s"
    assert line in result.output
    assert "Step 100 was the last." in result.output
    ((run_dir, sets, out_dir, options),) = calls
    assert (run_dir, out_dir) == (tmp_path / "run", tmp_path / "run" / "evaluation")
    assert (sets[0].name, options) == ("test", WatchOptions())


def test_options_reach_the_watch(tmp_path, calls, split):
    options = ["--watch", "--newest-only", "--timeout", 60, "--sample-1-of-n", 10, "--out", tmp_path / "out"]
    evaluate("--checkpoints", tmp_path, "--examples", f"a={split}", "--examples", f"b={split}", *options)
    ((_, sets, out_dir, given),) = calls
    assert ([each.name for each in sets], out_dir) == (["a", "b"], tmp_path / "out")
    assert given == WatchOptions(follow=True, newest_only=True, timeout_seconds=60, one_of=10)


def test_json_has_every_number(tmp_path, calls, split):
    result = CliRunner().invoke(cli, ["evaluate", "--checkpoints", str(tmp_path), "--examples", str(split), "--json"])
    (row,) = json.loads(result.stdout)
    assert (row["step"], row["set"], row["metrics"]["APs"], row["losses"]) == (100, "test", 0.5, {"loss": 1.25})


def test_without_examples_those_of_the_configuration_are_read(tmp_path, calls, split):
    import dataclasses

    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    (tmp_path / "config.json").write_text(to_canonical_json(config))
    assert "names no eval_input.input_path; give --examples" in str(evaluate("--checkpoints", tmp_path).exception)
    reader = InputReader(input_path=(f"{split}/data*",))
    (tmp_path / "config.json").write_text(to_canonical_json(dataclasses.replace(config, eval_input=reader)))
    assert evaluate("--checkpoints", tmp_path).exit_code == 0
    assert calls[0][1][0].files == (str(split / "data_tfrecord-00000-of-00001"),)


def test_help_shows_examples():
    result = evaluate("--help")
    assert "--examples data/examples --watch" in result.output
