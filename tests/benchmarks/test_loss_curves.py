"""The comparison of loss curves: equal settings, and means over parts of a run."""

from pathlib import Path

import loss_curves
import pytest

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


def test_means_of_parts_of_a_run():
    assert loss_curves.means({step: float(step) for step in range(1, 11)}, 10) == [1.5, 3.5, 5.5, 7.5, 9.5]
