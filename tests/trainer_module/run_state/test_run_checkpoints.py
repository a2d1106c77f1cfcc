import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import tensorflow as tf

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Train
from detloom.schemas.model.optimizers import ConstantLearningRate, MomentumOptimizer
from detloom.trainer_module.run_state import run_checkpoints
from detloom.trainer_module.run_state.run_checkpoints import RunCheckpoints

TRAIN = Train(num_steps=9, optimizer=MomentumOptimizer(learning_rate=ConstantLearningRate()), max_to_keep=2)


def make(folder, train=TRAIN, shape=(), **settings):
    """Return checkpoints of one variable, which `save` sets to the step."""
    variable = tf.Variable(tf.fill(shape, -1.0))
    return RunCheckpoints(folder, {"network": {"head/kernel": variable}}, train, **settings), variable


def save(checkpoints, variable, *steps):
    for step in steps:
        variable.assign(tf.fill(variable.shape, float(step)))
        checkpoints.save(step)


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def truncate(path):
    path.write_bytes(path.read_bytes()[:3])


def test_a_save_is_overdue_ten_minutes_after_the_last_one(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(run_checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    checkpoints, variable = make(tmp_path)
    now = 1600.0
    assert not checkpoints.is_overdue
    now = 1601.0
    assert checkpoints.is_overdue
    save(checkpoints, variable, 5)
    assert not checkpoints.is_overdue


@pytest.mark.parametrize("device", [None, "/job:localhost"])
def test_newest_checkpoint_is_restored(tmp_path, device):
    options = tf.train.CheckpointOptions(experimental_io_device=device)
    checkpoints, variable = make(tmp_path, options=options)
    save(checkpoints, variable, 0, 5, 10)
    other, restored = make(tmp_path, options=options)
    assert (other.restore_newest(), float(restored)) == (10, 10.0)


def test_max_to_keep_newest_checkpoints_are_kept(tmp_path):
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 0, 5, 10, 15)
    assert checkpoints.steps == [10, 15]
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint",
        *(f"ckpt-{step}.{ending}" for step in (10, 15) for ending in ("index", "data-00000-of-00001")),
    }
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-15")


def test_last_checkpoint_of_each_span_of_hours_is_kept(tmp_path):
    """Spans of two hours, checkpoints at 0:30, 1:00, 2:30, 3:30, 4:30: 1:00 and 3:30 are the last of their spans."""
    hours_of_step = {1: 0.5, 2: 1.0, 3: 2.5, 4: 3.5, 5: 4.5}
    checkpoints, variable = make(
        tmp_path, Train(**{**vars(TRAIN), "max_to_keep": 1, "keep_checkpoint_every_n_hours": 2})
    )
    for step, hours in hours_of_step.items():
        save(checkpoints, variable, step)
        os.utime(tmp_path / f"ckpt-{step}.index", (hours * 3600, hours * 3600))
    save(checkpoints, variable, 6)
    assert checkpoints.steps == [2, 4, 5, 6]


@pytest.mark.reliability("torn file", "train")
@pytest.mark.parametrize(
    ("damage", "ending"),
    [(flip_a_byte, "data-00000-of-00001"), (truncate, "data-00000-of-00001"), (truncate, "index")],
)
def test_damaged_newest_checkpoint_falls_back_to_the_previous_one(tmp_path, caplog, damage, ending):
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5, 10)
    damage(tmp_path / f"ckpt-10.{ending}")
    other, restored = make(tmp_path)
    assert (other.restore_newest(), float(restored)) == (5, 5.0)
    assert "ckpt-10" in caplog.text
    assert "step 5" in caplog.text
    assert other.steps == [5]
    names = {path.name for path in (tmp_path / "damaged").iterdir()}  # kept, not deleted
    assert names == {"ckpt-10.index", "ckpt-10.data-00000-of-00001"}


@pytest.mark.reliability("torn file", "train")
def test_run_without_an_intact_checkpoint_is_refused(tmp_path):
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5)
    flip_a_byte(tmp_path / "ckpt-5.data-00000-of-00001")
    with pytest.raises(InputError, match="ckpt-5 "):
        make(tmp_path)[0].restore_newest()
    assert checkpoints.steps == [5]


@pytest.mark.reliability("torn file", "train")
def test_tensorflows_list_of_checkpoints_is_ignored(tmp_path):
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5, 10)
    (tmp_path / "checkpoint").write_bytes(b"\xff no text format")
    other, restored = make(tmp_path)
    assert (other.restore_newest(), float(restored)) == (10, 10.0)
    save(other, restored, 15)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("ckpt-15")


@pytest.mark.reliability("kill", "train")
def test_data_without_an_index_are_ignored_and_deleted(tmp_path):
    """A killed process leaves such a file; the next save deletes it."""
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5)
    data = tmp_path / "ckpt-7.data-00000-of-00001"
    data.write_bytes(b"half")
    assert make(tmp_path)[0].restore_newest() == 5
    save(checkpoints, variable, 10)
    assert not data.exists()


@pytest.mark.reliability("kill", "train")
def test_partial_checkpoint_of_a_killed_process_is_ignored(tmp_path):
    """The first checkpoint of a run has a truncated index, so the run starts from the beginning."""
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "ckpt-0.index").write_bytes(b"half")
    checkpoints, variable = make(tmp_path)
    assert checkpoints.restore_newest() is None
    save(checkpoints, variable, 0)
    assert not unfinished.exists()
    assert make(tmp_path)[0].restore_newest() == 0


def test_checkpoint_appears_only_after_it_is_complete(tmp_path, monkeypatch):
    """The index is moved last; until then, the checkpoint does not exist."""
    checkpoints, variable = make(tmp_path)
    moves, replace = [], Path.replace

    def watched(path, target):
        if target.name.startswith("ckpt-"):
            moves.append((target.name, (tmp_path / "ckpt-5.index").exists()))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    save(checkpoints, variable, 5)
    assert moves == [("ckpt-5.data-00000-of-00001", False), ("ckpt-5.index", False)]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_checkpoint_of_the_current_step_is_not_rewritten(tmp_path, is_resumed):
    """Otherwise a kill while it is overwritten after a rollback would leave no checkpoint."""
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5)
    if is_resumed:
        checkpoints, variable = make(tmp_path)
        checkpoints.restore_newest()
    before = (tmp_path / "ckpt-5.index").stat().st_ino
    checkpoints.save(5)
    assert (tmp_path / "ckpt-5.index").stat().st_ino == before


def test_checkpoint_with_other_variables_is_refused(tmp_path):
    save(*make(tmp_path), 5)
    other = RunCheckpoints(tmp_path, {"network": {"head/bias": tf.Variable(0.0)}}, TRAIN)
    with pytest.raises(InputError, match=r"ckpt-5: .*train\.fine_tune_checkpoint"):
        other.restore_newest()


def test_optional_variable_keeps_its_value_if_the_checkpoint_lacks_it(tmp_path):
    first, second = ({"a": tf.Variable(value)} for value in (1.0, 2.0))
    RunCheckpoints(tmp_path, {"steps": first}, TRAIN).save(5)
    second["scale"] = tf.Variable(8.0)
    RunCheckpoints(tmp_path, {"steps": second}, TRAIN, optional=["steps/scale"]).restore_newest()
    assert (float(second["a"]), float(second["scale"])) == (1.0, 8.0)
    second["scale"].assign(4.0)
    both = RunCheckpoints(tmp_path, {"steps": second}, TRAIN, optional=["steps/scale"])
    both.save(10)
    second["scale"].assign(2.0)
    assert both.restore_newest() == 10
    assert float(second["scale"]) == 4.0


def test_worker_other_than_the_chief_leaves_no_files_and_quarantines_nothing(tmp_path):
    checkpoints, variable = make(tmp_path / "run", is_chief=False)
    assert checkpoints.restore_newest() is None
    save(checkpoints, variable, 5)
    assert not (tmp_path / "run").exists()
    save(*make(tmp_path), 5, 10)
    worker, _ = make(tmp_path, is_chief=False)
    assert not worker.quarantine_newest()
    assert worker.steps == [5, 10]


def test_newest_checkpoint_can_be_quarantined_if_another_exists(tmp_path):
    checkpoints, variable = make(tmp_path)
    save(checkpoints, variable, 5, 10)
    assert checkpoints.quarantine_newest()
    assert (checkpoints.restore_newest(), float(variable)) == (5, 5.0)
    assert not checkpoints.quarantine_newest()
    assert checkpoints.steps == [5]


# --- full and read-only disk, jumping clock ---------------------------------------------------------------------------


LARGE = (100_000,)  # 400 kB


def restore_large(folder):
    """Return the step of the newest checkpoint and the value of its weights."""
    checkpoints, variable = make(folder, shape=LARGE)
    return checkpoints.restore_newest(), float(variable[0])


@pytest.mark.reliability("full disk", "train")
@pytest.mark.parametrize("free_bytes", [0, 8192, 200_000, 403_000])
def test_full_disk_keeps_the_earlier_checkpoint_and_the_next_save_succeeds(disk, free_bytes):
    checkpoints, variable = make(disk.folder / "checkpoints", shape=LARGE)
    save(checkpoints, variable, 5)
    disk.fill(free_bytes)
    with pytest.raises((OSError, tf.errors.OpError), match="No space left on device"):
        save(checkpoints, variable, 10)
    assert restore_large(disk.folder / "checkpoints") == (5, 5.0)
    disk.empty()
    save(checkpoints, variable, 15)
    assert restore_large(disk.folder / "checkpoints") == (15, 15.0)


@pytest.mark.reliability("read-only", "train")
def test_checkpoint_on_a_read_only_disk_is_restored_and_not_replaced(disk):
    checkpoints, variable = make(disk.folder / "checkpoints", shape=LARGE)
    save(checkpoints, variable, 5)
    disk.make_read_only()
    with pytest.raises((OSError, tf.errors.OpError), match="Read-only file system"):
        save(checkpoints, variable, 10)
    assert restore_large(disk.folder / "checkpoints") == (5, 5.0)


@pytest.mark.reliability("clock jump", "train")
@pytest.mark.usefixtures("jumping_clock")
def test_newest_checkpoint_is_that_of_the_highest_step_whatever_the_clock(tmp_path):
    """The times of the files are those of a clock that goes back by an hour at each checkpoint."""
    checkpoints, variable = make(tmp_path, Train(**{**vars(TRAIN), "keep_checkpoint_every_n_hours": 2}))
    for step in range(1, 7):
        save(checkpoints, variable, step)
        os.utime(tmp_path / f"ckpt-{step}.index", (1e6 - 3600 * step, 1e6 - 3600 * step))
    assert checkpoints.steps[-2:] == [5, 6]
    other, restored = make(tmp_path)
    assert (other.restore_newest(), float(restored)) == (6, 6.0)
