import json
from pathlib import Path

import pytest
import yaml
from command_line import detloom_command

from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.presets.presets import find_preset

PRESET = "ssd_mobilenet_v2_fpnlite_320x320"
RUN = """
name: cats
data: {format: voc, path: "${PHOTOS}", splits: {train: a, eval: b, test: c}}
train: {batch_size: 2}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.config"
    path.write_text(format_pipeline_config(find_preset(PRESET).config))
    return path


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("PHOTOS", str(tmp_path))
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_check_shows_the_origin_of_each_value(config_file):
    result = detloom_command("config", "check", config_file, "--set", "train.batch_size=8")
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    assert ["train.batch_size", "=", "8", "--set", "train.batch_size"] in lines
    anchor = next(line for line in lines if line[:1] == ["model.anchor_generator.anchor_scale"])
    assert anchor[:3] == ["model.anchor_generator.anchor_scale", "=", "4.0"]
    assert anchor[3] == "line"


def test_check_names_refused_fields_with_file_and_line_and_fails(tmp_path):
    path = tmp_path / "faster.config"
    path.write_text("model {\n  faster_rcnn {\n    num_classes: 3\n  }\n}\n")
    result = detloom_command("config", "check", path)
    assert result.exit_code == 1
    assert f"{path}: refused" in result.output
    assert "line 3  model.faster_rcnn.num_classes = 3" in result.output


def test_check_of_several_files_prints_one_line_each(config_file, run_file):
    (config_file.parent / "broken.config").write_text("model { ssd {")
    files = [config_file, run_file, str(config_file.parent / "broken.config")]
    result = detloom_command("config", "check", *files)
    assert result.exit_code == 1
    verdicts = [line.split()[1] for line in result.output.splitlines()[1:4]]
    assert verdicts == ["loads", "loads", "invalid"]
    assert "broken.config:1" in result.output


def test_check_as_json_contains_lists_and_effective_values(config_file):
    result = detloom_command("config", "check", "--json", config_file)
    (answer,) = json.loads(result.output)
    assert answer["verdict"] == "loads"
    assert answer["refused"] == []
    assert {"path", "where", "value", "reason"} == set(answer["mapped"][0])
    values = {value["key"]: value["value"] for value in answer["values"]}
    assert values["model.image_resizer.height"] == "320"


def test_show_prints_a_valid_run_file(config_file):
    words = ("config", "show", config_file, "--set", "train.seed=7")
    plain = yaml.safe_load(detloom_command(*words).output)
    assert json.loads(detloom_command(*words, "--json").output) == plain
    assert plain["train"]["seed"] == 7
    assert plain["model"]["feature_extractor"]["backbone"] == "mobilenet_v2"


def test_show_does_not_print_values_of_the_environment(run_file):
    result = detloom_command("config", "show", run_file)
    assert yaml.safe_load(result.output)["data"]["path"] == "${PHOTOS}"
    assert str(run_file.parent) not in result.output


def test_diff_prints_the_keys_that_differ(config_file, run_file):
    result = detloom_command("config", "diff", config_file, PRESET, "--set", "train.seed=7")
    assert result.exit_code == 1
    assert result.output.split() == ["train.seed", "0", "->", "7"]
    assert detloom_command("config", "diff", PRESET, config_file).output == "no difference\n"
    result = detloom_command("config", "diff", "--json", PRESET, config_file, "--set", "train.seed=7")
    assert json.loads(result.output) == [{"key": "train.seed", "one": "0", "other": "7"}]
    assert "data.format" in detloom_command("config", "diff", run_file, run_file, "--set", "data.format=coco").output
    assert detloom_command("config", "diff", PRESET, run_file.parent / "none.config").exit_code == 2


def test_schema_has_every_section_of_a_run_file():
    schema = json.loads(detloom_command("config", "schema").output)
    assert {"name", "data", "model", "train", "gates", "push"} <= schema["properties"].keys()


def test_to_text_can_be_read_again(config_file, tmp_path):
    text = detloom_command("config", "to-text", PRESET, "--set", "train.seed=7").output
    (tmp_path / "again.config").write_text(text)
    result = detloom_command("config", "diff", config_file, str(tmp_path / "again.config"))
    assert result.output.split() == ["train.seed", "0", "->", "7"]


def test_a_run_refuses_an_untrained_setting_first(run_file):
    result = detloom_command("run", run_file, "--set", "model.image_resizer.height=300")
    assert result.exit_code != 0
    assert "model.image_resizer.height: got 300, " in str(result.exception)
    assert not (Path.cwd() / "detloom_runs" / "cats").exists()
