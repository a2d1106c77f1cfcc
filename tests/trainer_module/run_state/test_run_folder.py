import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import detloom
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.run_state.run_folder import (
    CONFIG_FILE,
    TRAINING_DIR_VARIABLE,
    check_same_run,
    data_fingerprint,
    run_key,
    unfinished_run,
    write_settings,
)

LABEL_MAP = LabelMap.from_names(["red", "green"])
DATA = json.dumps({"train": []})


def refusal(folder, config, label_map=LABEL_MAP, data=DATA):
    """Return the error message; empty if the run may use the folder."""
    try:
        check_same_run(folder, config, label_map, data)
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture
def folder(tmp_path, tiny_config):
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, DATA)
    return tmp_path / "run"


def test_new_folder_and_own_folder_are_accepted(tmp_path, folder, tiny_config):
    assert refusal(tmp_path / "new", tiny_config) == ""
    assert refusal(folder, tiny_config) == ""


def test_other_settings_are_reported_with_both_values(folder, tiny_config, changed):
    found = refusal(folder, changed(tiny_config, {"train.batch_size": 4}))
    assert found.startswith(f"{folder / CONFIG_FILE}: ")
    assert "(train.batch_size: got 4, stored 2)" in found


def test_a_run_may_continue_in_another_precision(folder, tiny_config, changed, caplog):
    half = {"train.precision": "float16"}
    assert refusal(folder, changed(tiny_config, half)) == ""
    assert "train.precision was float32, and is float16 from now on" in caplog.text
    assert "train.batch_size: got 4, stored 2" in refusal(folder, changed(tiny_config, {**half, "train.batch_size": 4}))


def test_other_classes_and_other_data_are_refused(folder, tiny_config):
    assert "label_map.pbtxt" in refusal(folder, tiny_config, label_map=LabelMap.from_names(["red"]))
    assert "data.json" in refusal(folder, tiny_config, data=json.dumps({"train": [["data", 1, ""]]}))


@pytest.mark.reliability("torn file", "train")
@pytest.mark.parametrize("content", [b"", b"{}", b"not JSON", b"\xff"])
def test_invalid_stored_configuration_is_refused(folder, tiny_config, content):
    (folder / CONFIG_FILE).write_bytes(content)
    assert re.search(r"config\.json: ", refusal(folder, tiny_config))


KILLED = """
import os, signal, sys
from pathlib import Path
from detloom.trainer_module.run_state.run_folder import unfinished_run
with unfinished_run(Path(sys.argv[1]), "key") as folder:
    (folder / "ckpt-7").write_text("seven steps")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_finished_run_is_moved_to_the_execution(tmp_path):
    run_dir = tmp_path / "model_run" / "12"
    run_dir.mkdir(parents=True)  # as TFX does
    with unfinished_run(run_dir, "key") as folder:
        (folder / "log").write_text("x")
        assert list(run_dir.iterdir()) == []
    assert {path.name for path in run_dir.iterdir()} == {"log"}
    assert not folder.exists()


def test_failed_run_is_resumed_although_tfx_deletes_its_folders(tmp_path, caplog):
    first, second = tmp_path / "model_run" / "12", tmp_path / "model_run" / "13"
    with contextlib.suppress(RuntimeError), unfinished_run(first, "key") as folder:
        (folder / "ckpt-7").write_text("seven steps")
        raise RuntimeError("out of memory")
    assert not first.exists()
    with caplog.at_level("INFO", "detloom"), unfinished_run(second, "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"
    assert "Resuming" in caplog.text
    assert "Starting a new" not in caplog.text
    assert (second / "ckpt-7").is_file()


def test_new_run_beside_an_unfinished_one_is_logged(tmp_path, caplog):
    """This also happens after an update of the package that adds a setting, because the key changes."""
    with contextlib.suppress(RuntimeError), unfinished_run(tmp_path / "12", "before"):
        raise RuntimeError("killed")
    assert caplog.text == ""
    with caplog.at_level("INFO", "detloom"), unfinished_run(tmp_path / "13", "after") as folder:
        assert list(folder.iterdir()) == []
    assert "(before)" in caplog.text


@pytest.mark.reliability("kill", "train")
@pytest.mark.slow
def test_killed_run_is_resumed_and_its_lock_is_released(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(detloom.__file__).parents[1])}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "12")]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    with unfinished_run(tmp_path / "13", "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"


@pytest.mark.reliability("concurrent runs", "train")
def test_second_process_with_the_same_run_is_refused(tmp_path):
    with unfinished_run(tmp_path / "12", "key"), pytest.raises(FolderBusyError, match="unfinished"):
        unfinished_run(tmp_path / "13", "key").__enter__()


def test_worker_uses_the_chiefs_folder_and_does_not_move_it(tmp_path):
    with unfinished_run(tmp_path / "12", "key") as folder:
        with unfinished_run(tmp_path / "12", "key", is_chief=False) as seen:
            assert seen == folder
        assert folder.is_dir()


def test_environment_variable_sets_the_folder_of_unfinished_runs(tmp_path, monkeypatch):
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


def test_key_depends_on_settings_classes_and_data(tiny_config, changed, shards, tmp_path, write_records, make_example):
    data = data_fingerprint(*shards)
    key = run_key(tiny_config, LABEL_MAP, data)
    assert run_key(tiny_config, LABEL_MAP, data_fingerprint(*shards)) == key
    assert run_key(changed(tiny_config, {"train.seed": 1}), LABEL_MAP, data) != key
    assert run_key(tiny_config, LabelMap.from_names(["red", "blue"]), data) != key
    write_records(Path(shards[0][0]), [make_example([(0.1, 0.1, 0.6, 0.6)], [1], name="c")])  # one letter differs
    assert run_key(tiny_config, LABEL_MAP, data_fingerprint(*shards)) != key


def test_moved_data_keep_their_fingerprint(shards):
    before = data_fingerprint(*shards)
    folder = Path(shards[0][0]).parents[1]
    folder.rename(folder.with_name("elsewhere"))
    moved = [
        [str(folder.with_name("elsewhere") / Path(file).relative_to(folder)) for file in split] for split in shards
    ]
    assert data_fingerprint(*moved) == before
    assert [len(json.loads(before)[split]) for split in ("train", "eval")] == [1, 1]


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_record_changed_behind_the_first_bytes_of_a_shard_is_other_data(
    name, tiny_config, tmp_path, shards, write_records
):
    file = write_records(tmp_path / name, [bytes(70_000), b"ymax: 0.6"])
    before = data_fingerprint([str(file)], shards[1])
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, before)
    write_records(file, [bytes(70_000), b"ymax: 0.7"])
    os.utime(file, ns=(0, 0))  # the clock of the file system may not have moved on
    after = data_fingerprint([str(file)], shards[1])
    assert "data.json" in refusal(tmp_path / "run", tiny_config, data=after)
    assert json.loads(before)["train"] == json.loads(after)["train"]  # names, sizes and first bytes


def test_run_with_other_data_is_refused(tmp_path, tiny_config, shards):
    data = data_fingerprint(*shards)
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, data)
    assert refusal(tmp_path / "run", tiny_config, data=data) == ""
    assert "data.json" in refusal(tmp_path / "run", tiny_config, data=data_fingerprint(*reversed(shards)))
