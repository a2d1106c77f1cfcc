import functools
import json
import signal
from types import SimpleNamespace

import pytest
from command_line import detloom_command

from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.trainer_module import train_and_export as training
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.inference.model_files import find_saved_model
from detloom.trainer_module.run_state.run_folder import hold_training_lock
from detloom.trainer_module.runtime.preemption import Preempted
from detloom.trainer_module.training import overfit_check as self_test

train = functools.partial(detloom_command, "train")

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"
RESULT = SimpleNamespace(
    num_steps=300,
    stopped_early=True,
    performance=SimpleNamespace(images_per_second=16.54),
    best=SimpleNamespace(AP=0.612, AP50=0.934, num_images=73),
    best_step=200,
)


@pytest.fixture
def examples(tmp_path):
    folder = tmp_path / "examples"
    for split in ("train", "eval"):
        (folder / f"Split-{split}").mkdir(parents=True)
        (folder / f"Split-{split}" / "data_tfrecord-00000-of-00001").touch()
    write_label_map(folder / "label_map.pbtxt", LabelMap.from_names(["red", "white"]))
    return folder


@pytest.fixture
def calls(monkeypatch):
    """Replace `train` and the export by fakes; return their arguments."""
    seen = []

    def train(config, label_map, train_files, eval_files, out_dir, strategy):
        seen.append((config, label_map, train_files, eval_files, out_dir))
        return RESULT

    def export(result, model_dir):
        seen.append(model_dir)
        return model_dir

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(training, "export_model", export)
    return seen


def test_a_preset_is_trained_on_a_folder_of_examples_and_exported(tmp_path, examples, calls):
    out = tmp_path / "run"
    result = train(PRESET, "--examples", examples, "--out", out, "--set", "train.num_steps=300")
    assert result.exit_code == 0, result.output
    (config, label_map, train_files, eval_files, out_dir), model_dir = calls
    assert (config.train.num_steps, label_map.names) == (300, ("red", "white"))
    assert train_files == (str(examples / "Split-train" / "data_tfrecord-00000-of-00001"),)
    assert eval_files == (str(examples / "Split-eval" / "data_tfrecord-00000-of-00001"),)
    assert (out_dir, model_dir) == (out, out / "model")
    assert "300, stopped early, 16.5 images/s" in result.output
    assert "AP 0.612, AP50 0.934 on 73 images at step 200" in result.output
    assert str(out / "best") in result.output
    next_line = f"Next: detloom evaluate --model {out / 'model'} --examples {examples / 'Split-eval'}"
    assert result.output.splitlines()[-1] == next_line


def test_a_configuration_can_name_the_data(tmp_path, examples, calls):
    label_map = examples / "label_map.pbtxt"
    files = ["--set", "train_input.input_path=[a*, b*]", "--set", "eval_input.input_path=[c*]"]
    result = train(PRESET, *files, "--label-map", label_map, "--out", tmp_path, "--no-export")
    assert result.exit_code == 0, result.output
    assert [call[2:4] for call in calls] == [(("a*", "b*"), ("c*",))]
    assert result.output.splitlines()[-1] == f"Next: detloom export {tmp_path} --out {tmp_path / 'model'}"
    assert train(PRESET, *files, "--set", f"train_input.label_map_path={label_map}", "--out", tmp_path).exit_code == 0
    assert "--label-map" in str(train(PRESET, *files, "--out", tmp_path).exception)


@pytest.mark.reliability("concurrent runs", "train")
def test_folder_in_which_another_process_trains_is_refused(tmp_path, examples, calls):
    (tmp_path / "run").mkdir()
    with hold_training_lock(tmp_path / "run" / training.LOCK_FILE):
        refused = train(PRESET, "--examples", examples, "--out", tmp_path / "run")
    assert isinstance(refused.exception, FolderBusyError)
    assert str(tmp_path / "run") in str(refused.exception)
    assert not calls
    assert train(PRESET, "--examples", examples, "--out", tmp_path / "run").exit_code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_training_run_exits_with_the_signals_code(tmp_path, examples, monkeypatch, number, code):
    def preempted(*_):
        raise Preempted(number, 120, "run/checkpoints")

    monkeypatch.setattr(training, "train", preempted)
    result = train(PRESET, "--examples", examples, "--out", tmp_path / "run")
    assert result.exit_code == code
    assert "step 120 in run/checkpoints" in result.output


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_of_the_self_test_is_its_result(examples, monkeypatch, passed, code):
    seen = []

    def run_self_test(config, label_map, files):
        seen.append((label_map.names, files))
        return SimpleNamespace(passed=passed, lines=lambda: ["Self-test ..."])

    monkeypatch.setattr(self_test, "run_self_test", run_self_test)
    assert train(PRESET, "--self-test", "--examples", examples).exit_code == code
    first, *rest = train(PRESET, "--self-test").output.splitlines()
    assert first == "Self-test ..."
    assert rest == [f"Next: detloom train {PRESET} --examples data/examples --out runs/1"] * passed
    assert seen[0] == (("red", "white"), (str(examples / "Split-train" / "data_tfrecord-00000-of-00001"),))
    assert seen[1] == (("class 1", "class 2", "class 3"), ())


def test_a_model_is_replaced_only_by_a_complete_one(tmp_path, monkeypatch):
    (tmp_path / "model" / "old").mkdir(parents=True)
    monkeypatch.setattr(training, "write_weights", lambda detector, config, folder: folder.mkdir())
    monkeypatch.setattr(training, "export_saved_model", lambda detector, config, folder: folder.mkdir())
    result = SimpleNamespace(detector=None, config=None)
    training.export_model(result, tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["Format-Serving"]

    def fail(detector, config, folder):
        raise RuntimeError

    monkeypatch.setattr(training, "export_saved_model", fail)
    with pytest.raises(RuntimeError):
        training.export_model(result, tmp_path / "model")
    assert (tmp_path / "model" / "Format-Serving").is_dir()


@pytest.mark.nightly
def test_a_training_run_exports_a_model_and_its_checkpoints_can_be_evaluated(
    tmp_path, small_run, make_example, write_records
):
    folder = tmp_path / "examples"
    for split in ("train", "eval"):
        records = [make_example([(0.25, 0.25, 0.75, 0.75)], [1 + i % 2], name=str(i)) for i in range(8)]
        write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
    write_label_map(folder / "label_map.pbtxt", LabelMap.from_names(["red", "green"]))
    out = tmp_path / "run"
    trained = train(small_run, "--examples", folder, "--out", out)
    assert trained.exit_code == 0, trained.output
    assert find_saved_model(out / "model").is_dir()
    assert (out / "model" / "Format-Checkpoint" / "ckpt.index").is_file()
    evaluated = detloom_command("evaluate", "--checkpoints", out, "--examples", folder, "--json")
    assert evaluated.exit_code == 0, evaluated.output
    (row,) = json.loads(evaluated.stdout)
    assert row["step"] == 4
    logged = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    in_training = next(each for each in logged if each["kind"] == "eval")
    assert row["metrics"]["AP"] == in_training["AP"]  # the same weights on the same examples
    assert row["losses"]["loss"] == pytest.approx(in_training["loss"], rel=1e-6)
