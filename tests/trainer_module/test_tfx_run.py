import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import (
    LABEL_MAP_FILE,
    LabelMap,
    format_label_map,
    read_label_map,
    write_label_map,
)
from detloom.schemas.errors import InputError
from detloom.schemas.model.strategy import Strategy
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module import run_fn, tfx_run
from detloom.trainer_module.export.tflite_quantization import RangesError
from detloom.trainer_module.run_state.run_folder import CONFIG_FILE
from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
from detloom.trainer_module.tfx_run import config_of, label_map_of, strategy_of

LABEL_MAP = LabelMap.from_names(["red", "green"])
RATE = "train.optimizer.learning_rate.learning_rate_base"


@pytest.fixture
def fn_args(tmp_path, tiny_config, make_example, write_records):
    """The part of TFX's `FnArgs` that is read."""
    examples = tmp_path / "examples"
    for split in ("train", "eval"):
        write_records(examples / f"Split-{split}" / "data", [make_example([(0.1, 0.1, 0.6, 0.6)], [1], name=split)])
    write_label_map(examples / LABEL_MAP_FILE, LABEL_MAP)
    model_run_dir = tmp_path / "Trainer" / "model_run" / "12"
    model_run_dir.mkdir(parents=True)
    return SimpleNamespace(
        custom_config={"trainer_config": to_canonical_json(tiny_config)},
        train_files=[str(examples / "Split-train" / "*")],
        eval_files=[str(examples / "Split-eval" / "*")],
        model_run_dir=str(model_run_dir),
        serving_model_dir=str(tmp_path / "Trainer" / "model" / "12" / "Format-Serving"),
        hyperparameters=None,
        base_model=None,
    )


def keras_tuner_config(**values):
    """Return a configuration as the Tuner component writes it: the space and the best values."""
    space = [{"class_name": "Float", "config": {"name": name, "min_value": 0.0, "max_value": 1.0}} for name in values]
    return {"space": space, "values": values}


def test_the_label_map_of_the_settings_serves_examples_without_one(fn_args):
    fn_args.custom_config["label_map"] = format_label_map(LABEL_MAP)
    assert label_map_of(fn_args) == LABEL_MAP
    (Path(fn_args.train_files[0]).parent.parent / LABEL_MAP_FILE).unlink()
    assert label_map_of(fn_args) == LABEL_MAP
    del fn_args.custom_config["label_map"]
    with pytest.raises(InputError, match=LABEL_MAP_FILE):
        label_map_of(fn_args)


def test_hyperparameters_of_a_tuner_override_the_configuration(fn_args, caplog):
    fn_args.hyperparameters = keras_tuner_config(**{RATE: 0.005, "train.seed": 3, "tuner/epochs": 2})
    with caplog.at_level("INFO", "detloom"):
        train = config_of(fn_args).train
    assert (train.optimizer.learning_rate.learning_rate_base, train.seed) == (0.005, 3)
    assert f"Hyperparameters: {RATE} 0.005, train.seed 3." in caplog.text
    fn_args.hyperparameters = json.dumps(fn_args.hyperparameters)
    assert config_of(fn_args).train == train


def test_unknown_hyperparameter_is_named(fn_args):
    fn_args.hyperparameters = keras_tuner_config(units=64)
    with pytest.raises(InputError, match=r"^hyperparameter units"):
        config_of(fn_args)


def test_training_starts_from_the_base_model(fn_args, changed, tiny_config, caplog):
    config = changed(
        tiny_config, {"train.fine_tune_checkpoint": "zoo/ckpt-0", "train.fine_tune_checkpoint_type": "classification"}
    )
    fn_args.custom_config["trainer_config"] = to_canonical_json(config)
    fn_args.base_model = "/models/7/Format-Serving"
    with caplog.at_level("INFO", "detloom"):
        train = config_of(fn_args).train
    assert (train.fine_tune_checkpoint, train.fine_tune_checkpoint_type) == ("/models/7/Format-Serving", "auto")
    assert "/models/7/Format-Serving" in caplog.text
    assert "zoo/ckpt-0" in caplog.text


def test_warm_start_without_a_blessed_model_is_logged(fn_args, tiny_config, caplog):
    with caplog.at_level("INFO", "detloom"):
        assert config_of(fn_args) == tiny_config
    assert caplog.text == ""
    fn_args.custom_config["warm_start"] = "production"
    with caplog.at_level("INFO", "detloom"):
        assert config_of(fn_args) == tiny_config
    assert "random weights" in caplog.text


def test_environment_overrides_the_strategy_of_the_settings(fn_args, monkeypatch):
    assert strategy_of(fn_args) == Strategy()
    fn_args.custom_config["strategy"] = to_canonical_json(Strategy(kind="mirrored", devices=("GPU:1",)))
    assert strategy_of(fn_args) == Strategy(kind="mirrored", devices=("GPU:1",))
    monkeypatch.setenv("DETLOOM_STRATEGY", "one_device")
    assert strategy_of(fn_args) == Strategy(kind="one_device")


@pytest.fixture
def stubbed(monkeypatch):
    """Replace training and export by functions that write one file; `fail` makes the next training fail halfway."""
    calls = SimpleNamespace(fail=False, resumed_from=[], exports=0)

    def train(config, label_map, train_files, eval_files, out_dir, strategy):
        state = out_dir / "state"
        calls.resumed_from.append(state.read_text() if state.is_file() else "nothing")
        state.write_text("half")
        if calls.fail:
            raise RuntimeError("no space left")
        state.write_text("done")
        return SimpleNamespace(detector=None, config=config)

    def export(detector, config, serving_dir, settings):
        serving_dir.mkdir(parents=True)
        calls.exports += 1

    monkeypatch.setattr(tfx_run, "train", train)
    monkeypatch.setattr(tfx_run, "write_weights", lambda *_: None)
    monkeypatch.setattr(tfx_run, "export_saved_model", export)
    return calls


def next_execution(fn_args):
    folders = {
        "model_run_dir": fn_args.model_run_dir.replace("/12", "/13"),
        "serving_model_dir": fn_args.serving_model_dir.replace("/12/", "/13/"),
    }
    return SimpleNamespace(**{**vars(fn_args), **folders})


def test_execution_resumes_a_failed_one(fn_args, stubbed, tmp_path):
    stubbed.fail = True
    with pytest.raises(RuntimeError):
        run_fn(fn_args)
    stubbed.fail = False
    run_fn(next_execution(fn_args))
    assert stubbed.resumed_from == ["nothing", "half"]
    assert stubbed.exports == 1
    finished = tmp_path / "Trainer" / "model_run" / "13"
    assert (finished / "state").read_text() == "done"
    assert [path.name for path in finished.iterdir()] == ["state"]


def test_a_failed_conversion_is_left_to_the_evaluator(fn_args, stubbed, monkeypatch):
    def convert(*_):
        raise RangesError("The conversion crashed.")

    monkeypatch.setattr(tfx_run, "export_tflite", convert)
    run_fn(fn_args)
    assert stubbed.exports == 1
    folder = Path(fn_args.serving_model_dir).parent / "Format-TFLite"
    assert [path.read_text() for path in folder.iterdir()] == ["The conversion crashed."]


def test_other_settings_start_a_new_run(fn_args, stubbed, changed, tiny_config):
    stubbed.fail = True
    for seed in (0, 1):
        fn_args.custom_config["trainer_config"] = to_canonical_json(changed(tiny_config, {"train.seed": seed}))
        with pytest.raises(RuntimeError):
            run_fn(fn_args)
    assert stubbed.resumed_from == ["nothing", "nothing"]


def test_worker_waits_for_the_export_of_the_chief(fn_args, stubbed, monkeypatch, tmp_path):
    monkeypatch.setattr(tfx_run, "is_chief", lambda strategy: False)
    monkeypatch.setattr(tfx_run, "_MAX_WAIT_SECONDS", 0.0)
    unfinished = tmp_path / "Trainer" / "model_run" / "unfinished"
    monkeypatch.setattr(tfx_run, "train", lambda *arguments: arguments[4].mkdir(parents=True, exist_ok=True))
    with pytest.raises(TimeoutError, match="Format-Serving"):  # nothing is exported
        run_fn(fn_args)
    serving = tmp_path / "Trainer" / "model" / "12" / "Format-Serving"
    serving.mkdir(parents=True)
    with pytest.raises(TimeoutError, match="Format-Serving"):  # the chief is still writing
        run_fn(fn_args)
    monkeypatch.setattr(tfx_run, "train", lambda *_: None)
    shutil.rmtree(unfinished)
    run_fn(fn_args)
    assert stubbed.exports == 0


def test_a_waiting_worker_sees_the_end_on_a_mount_that_caches_what_exists(monkeypatch, tmp_path):
    (tmp_path / "Format-Serving").mkdir()
    monkeypatch.setattr(tfx_run, "_MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    tfx_run._wait_for_chief(tmp_path / "Format-Serving", tmp_path / "unfinished" / "0123456789abcdef")


@pytest.mark.slow
def test_a_run_is_trained_and_exported(fn_args, tmp_path, tiny_config, changed):
    scaling = {"train.scale_learning_rate": True, "train.learning_rate_batch_size": 4}
    fn_args.custom_config["trainer_config"] = to_canonical_json(changed(tiny_config, scaling))
    run_fn(fn_args)
    run_dir, serving_dir = Path(fn_args.model_run_dir), Path(fn_args.serving_model_dir)
    assert (serving_dir / "assets" / names.ASSET_CONFIG).read_text() == (run_dir / CONFIG_FILE).read_text()
    assert read_label_map(serving_dir / "assets" / names.ASSET_LABEL_MAP) == LABEL_MAP
    assert (serving_dir.parent / "Format-Checkpoint" / "ckpt.index").is_file()
    assert json.loads((run_dir / SUMMARY_FILE).read_text())["num_steps"] == 6
