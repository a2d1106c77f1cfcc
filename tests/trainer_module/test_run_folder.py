import json

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.trainer_module.run_folder import CONFIG_FILE, refuse_another_run, write_settings

LABEL_MAP = LabelMap.from_names(["red", "green"])


def test_the_same_run_goes_on_in_its_folder(tmp_path, tiny_config):
    refuse_another_run(tmp_path, tiny_config, LABEL_MAP, "data")
    write_settings(tmp_path / "run", tiny_config, LABEL_MAP, "data")
    refuse_another_run(tmp_path / "run", tiny_config, LABEL_MAP, "data")


def test_other_settings_are_named_with_both_values(tmp_path, tiny_config, changed):
    write_settings(tmp_path, tiny_config, LABEL_MAP, "data")
    with pytest.raises(
        InputError, match=r"config\.json: another run .*\(train\.batch_size: got 4, there 2\); train into"
    ):
        refuse_another_run(tmp_path, changed(tiny_config, {"train.batch_size": 4}), LABEL_MAP, "data")


def test_other_classes_and_other_data_are_refused(tmp_path, tiny_config):
    write_settings(tmp_path, tiny_config, LABEL_MAP, "data")
    with pytest.raises(InputError, match="with other classes"):
        refuse_another_run(tmp_path, tiny_config, LabelMap.from_names(["red"]), "data")
    with pytest.raises(InputError, match="with other data"):
        refuse_another_run(tmp_path, tiny_config, LABEL_MAP, "other data")


def test_a_setting_that_a_later_version_brought_counts_with_its_default(tmp_path, tiny_config):
    write_settings(tmp_path, tiny_config, LABEL_MAP, "data")
    stored = json.loads((tmp_path / CONFIG_FILE).read_text())
    del stored["train"]["max_to_keep"]
    (tmp_path / CONFIG_FILE).write_text(json.dumps(stored))
    refuse_another_run(tmp_path, tiny_config, LABEL_MAP, "data")


@pytest.mark.parametrize("content", [b"{}", b"no JSON", b"\xff"])
def test_what_is_no_configuration_is_refused(tmp_path, tiny_config, content):
    (tmp_path / CONFIG_FILE).write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: another run stands here \("):
        refuse_another_run(tmp_path, tiny_config, LABEL_MAP, "data")
