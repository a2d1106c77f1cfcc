"""The comparison of loss curves: equal settings, and means over parts of a run."""

from pathlib import Path

import loss_curves
import pytest

from detloom.schemas.contracts.label_map import LabelMap, format_label_map
from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.run_file.read_run_file import read_run_file

RUN_FILES = sorted((Path(loss_curves.__file__).parent / "digits").glob("*.yaml"))


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_both_systems_get_the_same_order_and_schedule(path, tmp_path, monkeypatch):
    monkeypatch.setenv("DIGITS_DIR", str(tmp_path))
    config = loss_curves.configuration(read_run_file(path), 50, 3, tmp_path)
    assert config.model.num_classes == 3
    assert not config.train_input.shuffle
    assert config.train.augmentations == ()
    assert config.train.optimizer.learning_rate.total_steps == config.train.num_steps == 50


def test_the_peer_reads_the_keypoints_in_the_order_of_the_data_and_the_id_of_their_class(tmp_path, monkeypatch):
    monkeypatch.setenv("DIGITS_DIR", str(tmp_path))
    (path,) = (path for path in RUN_FILES if path.stem == "keypoints")
    config = loss_curves.configuration(read_run_file(path), 50, 2, tmp_path)
    (tmp_path / "label_map.pbtxt").write_text(format_label_map(LabelMap.from_names(["letter", "digit"])))
    text = loss_curves.name_keypoints(format_pipeline_config(config), config, tmp_path / "keypoints.pbtxt")
    assert f'keypoint_label_map_path: "{tmp_path}/keypoints.pbtxt"' in text
    assert text.count("num_keypoints: 5\n") == 1
    item = (tmp_path / "keypoints.pbtxt").read_text()
    assert item.startswith('item {\n  name: "digit"\n  id: 2\n  keypoints { id: 0 label: "upper_left" }\n')


def test_losses_are_read_by_name_and_step(tmp_path):
    (tmp_path / "ours").mkdir()
    lines = [
        '{"kind": "train", "step": 1, "loss": 3.0, "box_loss": 1.0, "learning_rate": 0.1}',
        '{"kind": "eval", "step": 1, "loss": 9.0}',
        '{"kind": "train", "step": 2, "loss": 2.0, "box_loss": 0.5}',
    ]
    (tmp_path / "ours/train_log.jsonl").write_text("\n".join(lines) + "\n")
    assert loss_curves.read_our_losses(tmp_path) == {"loss": {1: 3.0, 2: 2.0}, "box_loss": {1: 1.0, 2: 0.5}}


def test_means_of_parts_of_a_run():
    assert loss_curves.means({step: float(step) for step in range(1, 11)}, 10) == [1.5, 3.5, 5.5, 7.5, 9.5]
