import json
import re

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.run_folder import CONFIG_FILE, refuse_another_run, write_settings

LABEL_MAP = LabelMap.from_names(["red", "green"])


def refusal(folder, config, label_map=LABEL_MAP, data="data"):
    """The sentence; empty if the run may go on in the folder."""
    try:
        refuse_another_run(folder, config, label_map, data)
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture
def folder(tmp_path, tiny_config):
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, "data")
    return tmp_path / "run"


def test_a_run_may_begin_in_a_new_folder_and_go_on_in_its_own(tmp_path, folder, tiny_config):
    assert refusal(tmp_path / "new", tiny_config) == ""
    assert refusal(folder, tiny_config) == ""


def test_other_settings_are_named_with_both_values(folder, tiny_config, changed):
    found = refusal(folder, changed(tiny_config, {"train.batch_size": 4}))
    assert found.startswith(f"{folder / CONFIG_FILE}: another run stands here, with other settings ")
    assert "(train.batch_size: got 4, there 2); train into another folder." in found


def test_other_classes_and_other_data_are_refused(folder, tiny_config):
    assert "with other classes" in refusal(folder, tiny_config, label_map=LabelMap.from_names(["red"]))
    assert "with other data" in refusal(folder, tiny_config, data="other data")


def test_a_setting_that_a_later_version_brought_counts_with_its_default(folder, tiny_config, changed):
    stored = json.loads((folder / CONFIG_FILE).read_text())
    del stored["train"]["max_to_keep"]
    (folder / CONFIG_FILE).write_text(json.dumps(stored))
    assert refusal(folder, tiny_config) == ""
    assert "train.max_to_keep: got 9, there 3" in refusal(folder, changed(tiny_config, {"train.max_to_keep": 9}))


@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON", b"\xff"])
def test_what_is_no_configuration_is_refused(folder, tiny_config, content):
    (folder / CONFIG_FILE).write_bytes(content)
    assert re.search(r"config\.json: another run stands here \(", refusal(folder, tiny_config))
