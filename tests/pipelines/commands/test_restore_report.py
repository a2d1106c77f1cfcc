import functools
import json

import pytest
import tensorflow as tf
from command_line import detloom_command

from detloom.trainer_module.detectors import families

restore_report = functools.partial(detloom_command, "restore-report")

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"


@pytest.fixture(scope="module")
def detectors():
    return {}


@pytest.fixture(autouse=True)
def _build_each_detector_once(detectors, monkeypatch):
    build = families.build_detector

    def build_once(config, label_map):
        key = (config, label_map.names)
        if key not in detectors:
            detectors[key] = build(config, label_map)
        return detectors[key]

    monkeypatch.setattr(families, "build_detector", build_once)


def test_a_compatible_checkpoint_prints_a_table_and_another_is_an_error(reference_dir):
    path = reference_dir / PRESET / "checkpoint" / "ckpt-0"
    result = restore_report("--config", PRESET, "--checkpoint", path, "--num-classes", 3)
    assert result.exit_code == 0
    assert result.output.startswith("Restored: 381 of 384 variables, ")
    refused = restore_report("--config", PRESET, "--checkpoint", path, "--num-classes", 3, "--mode", "full", "--json")
    assert refused.exit_code == 1
    assert "has 91 classes and this detector 4" in json.loads(refused.output)["refusal"]


def test_checkpoint_paths_are_relative_to_the_run_file_or_the_current_folder(reference_dir, tmp_path, monkeypatch):
    (tmp_path / "zoo").symlink_to(reference_dir / PRESET / "checkpoint")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        "name: cells\ndata: {path: photos, split_by_ratio: {}}\n"
        f"detector: {PRESET}\ntrain: {{fine_tune_checkpoint: zoo/ckpt-0, batch_size: 2, num_steps: 3}}\n"
    )
    monkeypatch.chdir("/")
    result = restore_report("--config", run_file, "--num-classes", 3)
    assert result.output.startswith("Restored: 381 of 384 variables, ")
    monkeypatch.chdir(reference_dir / PRESET)
    result = restore_report("--config", run_file, "--checkpoint", "checkpoint/ckpt-0", "--num-classes", 3)
    assert result.output.startswith("Restored: 381 of 384 variables, ")


def test_a_file_that_is_not_a_checkpoint_is_reported(tmp_path):
    path = str(tmp_path / "named")
    tf.raw_ops.SaveV2(prefix=path, tensor_names=["a/b"], shape_and_slices=[""], tensors=[tf.zeros(1)])
    result = restore_report("--config", PRESET, "--checkpoint", path, "--num-classes", 3)
    assert "stores weights by name" in str(result.exception)
