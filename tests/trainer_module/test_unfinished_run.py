import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import detloom
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.run_folder import data_fingerprint
from detloom.trainer_module.unfinished_run import TRAINING_DIR_VARIABLE, run_key, unfinished_run

LABEL_MAP = LabelMap.from_names(["red", "green"])
KILLED = """
import os, signal, sys
from pathlib import Path
from detloom.trainer_module.unfinished_run import unfinished_run
with unfinished_run(Path(sys.argv[1]), "key") as folder:
    (folder / "ckpt-7").write_text("seven steps")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_finished_run_becomes_the_executions(tmp_path):
    run_dir = tmp_path / "model_run" / "12"
    run_dir.mkdir(parents=True)  # TFX makes it
    with unfinished_run(run_dir, "key") as folder:
        (folder / "log").write_text("x")
        assert list(run_dir.iterdir()) == []
    assert {path.name for path in run_dir.iterdir()} == {"log"}
    assert not folder.exists()


def test_what_failed_is_found_by_the_next_execution_although_tfx_deletes_its_folders(tmp_path, caplog):
    first, second = tmp_path / "model_run" / "12", tmp_path / "model_run" / "13"
    with contextlib.suppress(RuntimeError), unfinished_run(first, "key") as folder:
        (folder / "ckpt-7").write_text("seven steps")
        raise RuntimeError("out of memory")
    assert not first.exists()
    with caplog.at_level("INFO", "detloom"), unfinished_run(second, "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"
    assert "This training was begun before; it goes on from" in caplog.text
    assert "begins anew" not in caplog.text
    assert (second / "ckpt-7").is_file()


def test_a_training_that_leaves_an_unfinished_one_behind_says_so(tmp_path, caplog):
    """Also after an update of the package that brought a setting: the key is another then."""
    with contextlib.suppress(RuntimeError), unfinished_run(tmp_path / "12", "before"):
        raise RuntimeError("killed")
    assert caplog.text == ""
    with caplog.at_level("INFO", "detloom"), unfinished_run(tmp_path / "13", "after") as folder:
        assert list(folder.iterdir()) == []
    assert "This training begins anew: what is unfinished in" in caplog.text
    assert "has other settings or data (before)." in caplog.text


def test_what_was_killed_is_found_too_and_its_lock_is_open(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1])}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "12")]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    with unfinished_run(tmp_path / "13", "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"


def test_the_same_is_not_trained_twice_at_once(tmp_path):
    message = r"unfinished/key: another process trains the same settings on the same data now"
    with unfinished_run(tmp_path / "12", "key"), pytest.raises(InputError, match=message):
        unfinished_run(tmp_path / "13", "key").__enter__()


def test_a_worker_sees_the_chiefs_folder_and_does_not_move_it(tmp_path):
    with unfinished_run(tmp_path / "12", "key") as folder:
        with unfinished_run(tmp_path / "12", "key", is_chief=False) as seen:
            assert seen == folder
        assert folder.is_dir()


def test_a_container_keeps_its_training_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv(TRAINING_DIR_VARIABLE, str(tmp_path / "volume"))
    first, second = tmp_path / "pod_1" / "model_run", tmp_path / "pod_2" / "model_run"
    with contextlib.suppress(RuntimeError), unfinished_run(first, "key") as folder:
        (folder / "ckpt-7").write_text("seven steps")
        raise RuntimeError("evicted")
    assert folder == tmp_path / "volume" / "key"
    assert not first.exists()
    with unfinished_run(second, "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"
    assert {path.name for path in second.iterdir()} == {"ckpt-7"}
    assert {path.name for path in (tmp_path / "volume").iterdir()} == {"key.lock"}


@pytest.fixture
def shards(tmp_path, make_example, write_records):
    box = [(0.1, 0.1, 0.6, 0.6)]
    train_file = write_records(tmp_path / "Split-train" / "data", [make_example(box, [1], name="a")])
    eval_file = write_records(tmp_path / "Split-eval" / "data", [make_example(box, [2], name="b")])
    return [str(train_file)], [str(eval_file)]


def test_the_key_tells_settings_classes_and_data_apart(
    tiny_config, changed, shards, tmp_path, write_records, make_example
):
    data = data_fingerprint(*shards)
    key = run_key(tiny_config, LABEL_MAP, data)
    assert run_key(tiny_config, LABEL_MAP, data_fingerprint(*shards)) == key
    assert run_key(changed(tiny_config, {"train.seed": 1}), LABEL_MAP, data) != key
    assert run_key(tiny_config, LabelMap.from_names(["red", "blue"]), data) != key
    write_records(Path(shards[0][0]), [make_example([(0.1, 0.1, 0.6, 0.6)], [1], name="c")])  # one letter is another
    assert run_key(tiny_config, LABEL_MAP, data_fingerprint(*shards)) != key


def test_moving_the_data_is_no_change(shards):
    before = data_fingerprint(*shards)
    folder = Path(shards[0][0]).parents[1]
    folder.rename(folder.with_name("elsewhere"))
    moved = [
        [str(folder.with_name("elsewhere") / Path(file).relative_to(folder)) for file in split] for split in shards
    ]
    assert data_fingerprint(*moved) == before
    assert [len(splits) for splits in json.loads(before).values()] == [1, 1]
