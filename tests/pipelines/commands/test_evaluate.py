import functools
import importlib
import json
from pathlib import Path

import pytest
from command_line import detloom_command

from detloom.schemas.contracts.metric_names import METRIC_NAMES
from detloom.schemas.model.config import InputReader
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.evaluation.coco_metrics import CocoMetrics
from detloom.trainer_module.evaluation.split_evaluator import Evaluation
from detloom.trainer_module.training import follow_checkpoints as watch
from detloom.trainer_module.training.follow_checkpoints import CheckpointEvaluation, WatchOptions, WatchResult

evaluate = functools.partial(detloom_command, "evaluate")


@pytest.fixture
def calls(monkeypatch):
    """Replace `evaluate_checkpoints` by a fake that returns one evaluation; return its calls."""
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


def test_each_checkpoint_prints_one_line(tmp_path, calls, split):
    result = evaluate("--checkpoints", tmp_path / "run" / "checkpoints", "--examples", split)
    assert result.exit_code == 0
    line = "step 100, test: AP 0.500, AP50 0.500, loss 1.250 on 3 "
    assert line in result.output
    assert "Step 100 was the last." in result.output
    ((run_dir, sets, out_dir, options),) = calls
    assert (run_dir, out_dir) == (tmp_path / "run", tmp_path / "run" / "evaluation")
    assert (sets[0].name, options) == ("test", WatchOptions())
    assert result.output.splitlines()[-1] == f"Next: detloom export {tmp_path / 'run'} --out exported"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"model": "new"}, "detloom push new --to serving --reason TEXT"),
        ({"model": "new", "baseline": Path("models/3")}, "detloom push new --to models --reason TEXT"),
        (
            {"model": "/tmp/x", "checkpoint": "ckpt-0", "config": "a b.config"},
            "detloom export --checkpoint ckpt-0 --config 'a b.config' --out exported",
        ),
    ],
)
def test_the_next_command_of_a_blessed_model_pushes_or_exports_it(options, line):
    evaluate_cli = importlib.import_module("detloom.pipelines.commands.evaluate")
    none = dict.fromkeys(("baseline", "checkpoint", "config", "label_map"))
    assert evaluate_cli._format_push(none | options) == f"Next: {line}"


def test_options_reach_the_watch(tmp_path, calls, split):
    options = ["--watch", "--newest-only", "--timeout", 60, "--sample-1-of-n", 10, "--out", tmp_path / "out"]
    evaluate("--checkpoints", tmp_path, "--examples", f"a={split}", "--examples", f"b={split}", *options)
    ((_, sets, out_dir, given),) = calls
    assert ([each.name for each in sets], out_dir) == (["a", "b"], tmp_path / "out")
    assert given == WatchOptions(follow=True, newest_only=True, timeout_seconds=60, one_of=10)


def test_json_has_every_number(tmp_path, calls, split):
    result = evaluate("--checkpoints", tmp_path, "--examples", split, "--json")
    (row,) = json.loads(result.stdout)
    assert (row["step"], row["set"], row["metrics"]["APs"], row["losses"]) == (100, "test", 0.5, {"loss": 1.25})


def test_the_default_examples_come_from_the_configuration(tmp_path, calls, split):
    import dataclasses

    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    (tmp_path / "config.json").write_text(to_canonical_json(config))
    assert "eval_input.input_path" in str(evaluate("--checkpoints", tmp_path).exception)
    reader = InputReader(input_path=(f"{split}/data*",))
    (tmp_path / "config.json").write_text(to_canonical_json(dataclasses.replace(config, eval_input=reader)))
    assert evaluate("--checkpoints", tmp_path).exit_code == 0
    assert calls[0][1][0].files == (str(split / "data_tfrecord-00000-of-00001"),)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "got none of them, allowed: exactly one of --model, --checkpoint, --detections, --checkpoints"),
        (["--model", "a", "--checkpoints", "b"], "got --model and --checkpoints, allowed: exactly one of"),
        (["--model", "a"], "--model needs --examples"),
        (["--detections", "a"], "--detections needs --ground-truth"),
        (["--model", "a", "--examples", "b", "--watch"], "got --watch, which does not go with --model"),
        (["--model", "a", "--examples", "b", "--images", "c"], "got --images, which does not go with --model"),
        (["--checkpoints", "a", "--baseline", "b"], "got --baseline, which does not go with --checkpoints"),
        (["--model", "a", "--examples", "b", "--timeout", 0], "got --timeout, which does not go with --model"),
        (["--detections", "a", "--ground-truth", "b", "--sample-1-of-n", 2], "got --sample-1-of-n, which does not go"),
    ],
)
def test_incompatible_options_are_refused(arguments, message):
    assert message in str(evaluate(*arguments).exception)


@pytest.fixture
def coco_files(tmp_path):
    """Write COCO files of one image whose cat is detected."""
    image = {"id": 1, "height": 100, "width": 100, "file_name": "a.png"}
    box = {"image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20]}
    truth = {"images": [image], "categories": [{"id": 1, "name": "cat"}], "annotations": [{"id": 1, **box}]}
    (tmp_path / "labels.json").write_text(json.dumps(truth))
    (tmp_path / "found.json").write_text(json.dumps([{**box, "score": 0.9}]))
    return ["--detections", tmp_path / "found.json", "--ground-truth", tmp_path / "labels.json"]


def test_files_are_evaluated_and_the_report_path_is_printed(coco_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = evaluate(*coco_files)
    assert result.exit_code == 0, result.output
    assert "AP50   1.000" in result.output
    assert "Not blessed: AP50 differs by +0.000" in result.output  # a single image is no evidence
    assert (tmp_path / "evaluation" / "report.html").is_file()


def test_gates_come_from_the_run_file(coco_files, tmp_path):
    (tmp_path / "run.yaml").write_text(
        "name: cats\ndata: {path: data, splits: {train: a, eval: b, test: c}}\n"
        "gates: {floors: [{metric: AP50/cat, min: 1.0}], baseline: {when_missing: refuse}}\n"
    )
    result = evaluate(*coco_files, "--run-file", tmp_path / "run.yaml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Not blessed: There is no earlier blessed model to compare with, and gates.baseline" in result.output


def test_json_has_every_number_of_a_file_evaluation(coco_files, tmp_path):
    result = evaluate(*coco_files, "--out", tmp_path / "out", "--json")
    values = json.loads(result.stdout)
    assert values["candidate"]["coco"]["AP"] == pytest.approx(1)
    assert [gate["verdict"] for gate in values["decision"]["gates"]] == ["passed", "skipped", "failed"]


def test_a_report_inside_the_model_folder_is_refused(tmp_path, split):
    model = tmp_path / "3"
    model.mkdir()
    (model / "saved_model.pb").touch()
    result = evaluate("--model", model, "--examples", split, "--out", model / "evaluation")
    assert "--out" in str(result.exception)


def test_a_checkpoint_is_evaluated_as_it_would_be_exported(tmp_path, monkeypatch):
    from detloom.trainer_module.export import saved_model

    evaluate_cli = importlib.import_module("detloom.pipelines.commands.evaluate")
    seen = []
    monkeypatch.setattr(evaluate_cli, "load_from_options", lambda *options: options[::2])
    monkeypatch.setattr(saved_model, "export_saved_model", lambda detector, config, folder: folder.mkdir())
    monkeypatch.setattr(
        evaluate_cli,
        "_evaluate_model",
        lambda options: seen.append((options["examples"], [each.name for each in options["model"].iterdir()])),
    )
    result = evaluate("--checkpoint", "ckpt-0", "--config", "pipeline.config", "--examples", tmp_path)
    assert result.exit_code == 0, result.output
    assert seen == [((str(tmp_path),), ["Format-Serving"])]
