import contextlib
import json
import os
import re
from pathlib import Path

import pytest

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.run_state import run_folder
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


def test_other_settings_are_reported_with_both_values(tmp_path, folder, tiny_config, changed):
    assert refusal(tmp_path / "new", tiny_config) == refusal(folder, tiny_config) == ""
    reason = refusal(folder, changed(tiny_config, {"train.batch_size": 4}))
    assert reason.startswith(f"{folder / CONFIG_FILE}: ")
    assert "(train.batch_size: got 4, stored 2)" in reason


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


@pytest.mark.parametrize("volume", ["", "volume"])
def test_failed_run_is_resumed_although_tfx_deletes_its_folders(tmp_path, monkeypatch, caplog, volume):
    """With the environment variable, also in another pod, whose other folders are new."""
    if volume:
        monkeypatch.setenv(TRAINING_DIR_VARIABLE, str(tmp_path / volume))
    first, second = (tmp_path / (pod if volume else "") / "model_run" / pod for pod in ("12", "13"))
    with contextlib.suppress(RuntimeError), unfinished_run(first, "key") as folder:
        (folder / "ckpt-7").write_text("seven steps")
        raise RuntimeError("out of memory")
    assert folder == (tmp_path / volume if volume else first.with_name("unfinished")) / "key"
    assert not first.exists()
    second.mkdir(parents=True)  # as TFX does
    with caplog.at_level("INFO", "detloom"), unfinished_run(second, "key") as folder:
        assert (folder / "ckpt-7").read_text() == "seven steps"
        assert list(second.iterdir()) == []
    assert not folder.exists()
    assert "Resuming" in caplog.text
    assert "Starting a new" not in caplog.text
    assert {path.name for path in second.iterdir()} == {"ckpt-7"}


def test_new_run_beside_an_unfinished_one_is_logged(tmp_path, caplog):
    """This also happens after an update of the package that adds a setting, because the key changes."""
    with contextlib.suppress(RuntimeError), unfinished_run(tmp_path / "12", "before"):
        raise RuntimeError("killed")
    assert caplog.text == ""
    with caplog.at_level("INFO", "detloom"), unfinished_run(tmp_path / "13", "after") as folder:
        assert list(folder.iterdir()) == []
    assert "(before)" in caplog.text


@pytest.mark.reliability("concurrent runs", "train")
def test_second_process_with_the_same_run_is_refused(tmp_path):
    with unfinished_run(tmp_path / "12", "key"), pytest.raises(FolderBusyError, match="unfinished"):
        unfinished_run(tmp_path / "13", "key").__enter__()


def test_only_in_a_shared_folder_the_lock_of_a_lost_machine_is_awaited(tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(run_folder, "hold_folder_lock", lambda *_, limit_seconds, **__: limits.append(limit_seconds))
    for environment in ({}, {TRAINING_DIR_VARIABLE: "/data/unfinished"}):
        monkeypatch.setattr(os, "environ", environment)
        run_folder.hold_training_lock(tmp_path / "key.lock")
    assert limits == [0, 120]  # the lease of NFS version 4 is 90 s


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


def test_worker_uses_the_chiefs_folder_and_does_not_move_it(tmp_path):
    with unfinished_run(tmp_path / "12", "key") as folder:
        with unfinished_run(tmp_path / "12", "key", is_chief=False) as seen:
            assert seen == folder
        assert folder.is_dir()


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


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_run_with_a_changed_record_is_refused(name, tiny_config, tmp_path, shards, write_records):
    file = write_records(tmp_path / name, [bytes(70_000), b"ymax: 0.6"])
    data = data_fingerprint([str(file)], shards[1])
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, data)
    assert refusal(tmp_path / "run", tiny_config, data=data) == ""
    write_records(file, [bytes(70_000), b"ymax: 0.7"])
    os.utime(file, ns=(0, 0))  # the clock of the file system may not have moved on
    assert "data.json" in refusal(tmp_path / "run", tiny_config, data=data_fingerprint([str(file)], shards[1]))
    assert data_fingerprint(shards[1], shards[0]) != data_fingerprint(*shards)
