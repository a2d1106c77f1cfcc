"""Checkpoints and run folders with a full or read-only disk, a jumping clock and a lost lock."""

import os

import pytest
import tensorflow as tf

from detloom.schemas.model.config import Train
from detloom.schemas.model.optimizers import ConstantLearningRate, MomentumOptimizer
from detloom.trainer_module.run_state.run_checkpoints import RunCheckpoints
from detloom.trainer_module.run_state.run_folder import unfinished_run

TRAIN = Train(num_steps=9, optimizer=MomentumOptimizer(learning_rate=ConstantLearningRate()), max_to_keep=2)


def make(folder, train=TRAIN):
    """Return checkpoints of 400 kB of weights, which `save` sets to the step."""
    variable = tf.Variable(tf.fill([100_000], -1.0))
    return RunCheckpoints(folder, {"network": {"head/kernel": variable}}, train), variable


def save(checkpoints, variable, step):
    variable.assign(tf.fill([100_000], float(step)))
    checkpoints.save(step)


def restore(folder):
    """Return the step of the newest checkpoint and the value of its weights."""
    checkpoints, variable = make(folder)
    return checkpoints.restore_newest(), float(variable[0])


@pytest.mark.reliability("full disk", "train")
@pytest.mark.parametrize("free_bytes", [0, 8192, 200_000, 403_000])
def test_full_disk_keeps_the_earlier_checkpoint_and_the_next_save_succeeds(disk, free_bytes):
    checkpoints, variable = make(disk.folder / "checkpoints")
    save(checkpoints, variable, 5)
    disk.fill(free_bytes)
    with pytest.raises((OSError, tf.errors.OpError), match="No space left on device"):
        save(checkpoints, variable, 10)
    assert restore(disk.folder / "checkpoints") == (5, 5.0)
    disk.empty()
    save(checkpoints, variable, 15)
    assert restore(disk.folder / "checkpoints") == (15, 15.0)


@pytest.mark.reliability("read-only", "train")
def test_checkpoint_on_a_read_only_disk_is_restored_and_not_replaced(disk):
    checkpoints, variable = make(disk.folder / "checkpoints")
    save(checkpoints, variable, 5)
    disk.make_read_only()
    with pytest.raises((OSError, tf.errors.OpError), match="Read-only file system"):
        save(checkpoints, variable, 10)
    assert restore(disk.folder / "checkpoints") == (5, 5.0)


@pytest.mark.reliability("clock jump", "train")
@pytest.mark.usefixtures("jumping_clock")
def test_newest_checkpoint_is_that_of_the_highest_step_whatever_the_clock(tmp_path):
    """The times of the files are those of a clock that goes back by an hour at each checkpoint."""
    train = Train(**{**vars(TRAIN), "keep_checkpoint_every_n_hours": 2})
    checkpoints, variable = make(tmp_path, train)
    for step in range(1, 7):
        save(checkpoints, variable, step)
        os.utime(tmp_path / f"ckpt-{step}.index", (1e6 - 3600 * step, 1e6 - 3600 * step))
    assert checkpoints.steps[-2:] == [5, 6]
    assert restore(tmp_path) == (6, 6.0)


@pytest.mark.reliability("lost lease", "train")
def test_run_that_lost_its_lock_is_not_moved_away_from_the_next_owner(tmp_path):
    run = unfinished_run(tmp_path / "12", "key")
    folder = run.__enter__()
    (folder / "ckpt-7").write_text("seven steps")
    folder.with_suffix(".lock").unlink()
    with unfinished_run(tmp_path / "13", "key") as next_folder:
        assert next_folder == folder
        with pytest.raises(OSError, match=r"key\.lock"):
            run.__exit__(None, None, None)
        assert not (tmp_path / "12").exists()
        assert (next_folder / "ckpt-7").read_text() == "seven steps"
    assert (tmp_path / "13" / "ckpt-7").is_file()
