import functools
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from command_line import detloom_command

import detloom
from detloom.pipelines.command_line.checkpoint_options import load_from_options
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.network import FixedShapeResizer
from detloom.schemas.presets.presets import find_preset
from detloom.schemas.reading.typed_dict import to_canonical_json
from detloom.trainer_module.detectors.families import build_detector
from detloom.trainer_module.export.load_trained import load_trained
from detloom.trainer_module.inference.tflite_runtime import TfliteRuntime
from detloom.trainer_module.weights.own_checkpoint import write_weights

run = functools.partial(detloom_command, "export")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Write a model folder with only the weights, as a Trainer does."""
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    extractor = replace(config.model.feature_extractor, depth_multiplier=0.1, min_depth=8)
    resizer = FixedShapeResizer(height=128, width=128)
    model = replace(config.model, num_classes=2, image_resizer=resizer, feature_extractor=extractor)
    folder = tmp_path_factory.mktemp("model")
    detector = build_detector(model, LabelMap.from_names(["a", "b"]))
    write_weights(detector, replace(config, model=model), folder)
    return folder, detector


@pytest.mark.slow  # two TensorFlow Lite conversions
def test_weights_are_exported_to_saved_model_and_tflite(trained, make_example, write_records, tmp_path):
    folder, _ = trained
    examples = [make_example([(0.1, 0.1, 0.5, 0.5)], [1], name=f"img_{i}") for i in range(2)]
    write_records(tmp_path / "examples/Split-train/data_tfrecord-00000-of-00001", examples)
    where = tmp_path / "examples/Split-train"
    result = run(folder, "--out", tmp_path / "out", "--tflite", "float16", "--tflite", "int8", "--examples", where)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    assert result.output.splitlines()[-1] == f"Next: detloom serve {out}"
    assert (out / names.SERVING_FOLDER / names.SAVED_MODEL_FILE).is_file()
    assert sorted(path.name for path in (out / names.TFLITE_FOLDER).iterdir()) == ["float16.tflite", "int8.tflite"]
    TfliteRuntime(str(out / names.TFLITE_FOLDER / "float16.tflite"))
    again, config = load_trained(out)
    for ours, theirs in zip(again.network.variables, trained[1].network.variables, strict=True):
        assert tf.reduce_all(ours.value == theirs.value)
    assert to_canonical_json(config) == (folder / "Format-Checkpoint/config.json").read_text()


def options_of(folder, classes=("a", "b")):
    """Return the options that name the weights as a checkpoint of any origin."""
    weights = folder / "Format-Checkpoint"
    label_map = folder / f"{len(classes)}.pbtxt"
    write_label_map(label_map, LabelMap.from_names(classes))
    return "--config", weights / "config.json", "--checkpoint", weights / "ckpt", "--label-map", label_map


@pytest.mark.slow
def test_a_checkpoint_is_exported_with_its_configuration(trained, tmp_path):
    folder, detector = trained
    result = run(*options_of(folder), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    again, _ = load_trained(tmp_path / "out")
    for ours, theirs in zip(again.network.variables, detector.network.variables, strict=True):
        assert tf.reduce_all(ours.value == theirs.value)


def test_a_checkpoint_has_to_hold_the_whole_detector(trained, tmp_path):
    folder, detector = trained
    _, config, _, checkpoint, _, label_map = options_of(folder)
    again, _ = load_from_options(str(checkpoint), str(config), label_map)
    for ours, theirs in zip(again.network.variables, detector.network.variables, strict=True):
        assert tf.reduce_all(ours.value == theirs.value)
    *_, more_classes = options_of(folder, ("a", "b", "c"))
    with pytest.raises(InputError, match="3 classes and this detector 4"):
        load_from_options(str(checkpoint), str(config), more_classes)
    with pytest.raises(InputError, match="--label-map"):
        load_from_options(str(checkpoint), str(config), None)
    with pytest.raises(InputError, match="--config"):
        load_from_options(str(checkpoint), None, None)


@pytest.fixture
def loaded(monkeypatch):
    """Load a configuration without a network."""
    config = find_preset("ssd_mobilenet_v2_fpnlite_320x320").config
    monkeypatch.setattr("detloom.trainer_module.export.load_trained.load_trained", lambda folder: (None, config))


def test_a_failed_export_leaves_no_files(loaded, tmp_path, monkeypatch):
    (tmp_path / "out.partial").mkdir()

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("detloom.trainer_module.export.saved_model.export_saved_model", fail)
    assert isinstance(run(tmp_path, "--out", tmp_path / "out").exception, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]


KILLED = """
import os, signal, sys
from detloom.pipelines.cli import cli

os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cli(["export", *sys.argv[1:]])
"""


@pytest.mark.slow
@pytest.mark.reliability("kill", "export")
def test_an_export_that_was_killed_before_its_rename_leaves_no_output_and_a_rerun_succeeds(trained, tmp_path):
    command = [sys.executable, "-c", KILLED, trained[0], "--out", tmp_path / "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1])}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    assert list(tmp_path.glob(f".*/{names.SERVING_FOLDER}/{names.SAVED_MODEL_FILE}"))
    assert run(trained[0], "--out", tmp_path / "out").exit_code == 0
    load_trained(tmp_path / "out")


@pytest.mark.reliability("concurrent runs", "export")
def test_an_export_does_not_replace_the_output_of_another_one(loaded, tmp_path, monkeypatch):
    def finish_another(detector, config, folder, settings):
        folder.mkdir()
        (tmp_path / "out" / "theirs").mkdir(parents=True)

    monkeypatch.setattr("detloom.trainer_module.export.saved_model.export_saved_model", finish_another)
    assert isinstance(run(tmp_path, "--out", tmp_path / "out").exception, InputError)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["out", "out/theirs"]
