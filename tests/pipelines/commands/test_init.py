"""Test `detloom init`, and `detloom run` with a folder."""

import click
import pytest
from command_line import detloom_command, sentence

from detloom.pipelines.commands.init import Duration
from detloom.pipelines.init.run_file_text import make_pipeline_name
from detloom.schemas.run_file.read_run_file import read_run_file

LISTS = {"train": [f"c{i}" for i in range(8)], "val": ["dz1", "c8"], "test": ["dz2", "c9"]}


def test_init_writes_a_run_file_that_can_be_read(make_voc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_voc(**LISTS)
    result = detloom_command("init", folder)
    assert result.exit_code == 0, result.output
    assert "Next: detloom run voc.yaml" in result.output
    run = read_run_file(tmp_path / "voc.yaml")
    assert run.data.format == "voc"
    assert run.data.splits.eval == "val"
    assert run.train.fine_tune_checkpoint == "imagenet"
    assert "# 12 images; objects: cat 12, dog 2" in (tmp_path / "voc.yaml").read_text()


def test_a_file_of_a_data_set_is_answered_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.yaml").write_text("{train: images, val: images, names: [cell]}")
    for name in ("init", "run"):
        result = detloom_command(name, "data.yaml")
        assert result.exit_code == 1
        assert "folder" in sentence(result)
        assert "'.'" in sentence(result)


@pytest.mark.parametrize(
    ("text", "name"), [("My_Data 2", "my-data-2"), ("__", "detector"), ("Zähl-", "z-hl"), ("a" * 62 + "_b", "a" * 62)]
)
def test_names_of_pipelines_are_valid_on_kubeflow(text, name):
    assert make_pipeline_name(text) == name


def test_init_replaces_a_file_only_with_force(make_voc, tmp_path):
    folder, output = make_voc(**LISTS), tmp_path / "a.yaml"
    output.write_text("mine")
    result = detloom_command("init", folder, "-o", output)
    assert result.exit_code == 1
    assert "exists already" in sentence(result)
    assert output.read_text() == "mine"
    assert detloom_command("init", folder, "-o", output, "--force").exit_code == 0
    assert read_run_file(output).name == "voc"


@pytest.mark.parametrize("part", ["a{SPAN}", "a${HOME}"])
def test_init_refuses_a_path_that_a_run_file_would_expand(make_voc, tmp_path, part):
    folder = make_voc(**LISTS).rename(tmp_path / part)
    result = detloom_command("init", folder, "-o", tmp_path / "a.yaml")
    assert result.exit_code == 1
    assert "rename the folder" in sentence(result)
    assert not (tmp_path / "a.yaml").exists()


def test_init_with_a_format_that_is_not_there_is_refused(make_voc, tmp_path):
    result = detloom_command("init", make_voc(**LISTS), "--format", "coco", "-o", tmp_path / "a.yaml")
    assert result.exit_code == 1
    assert "no labels found; looked for a JSON file with `images`" in sentence(result)


def test_run_of_a_folder_keeps_its_settings_and_another_folder_with_its_name_is_refused(make_voc, tmp_path):
    folder, workspace = make_voc(**LISTS), tmp_path / "runs"
    run_file = workspace / "run.yaml"

    def run(*options):
        result = detloom_command("run", folder, "--workspace", workspace, *options, "--explain")
        assert result.exit_code == 0, result.output
        return run_file.read_text()

    written = run("--quality", "fast")
    assert "quality fast" in written
    run_file.write_text(f"{written}# changed\n")
    assert run().endswith("# changed\n")
    assert "quality balanced" in run("--quality", "balanced")
    other = tmp_path / "other/voc"
    other.mkdir(parents=True)
    result = detloom_command("run", other, "--workspace", workspace, "--explain")
    assert result.exit_code == 1
    assert "--workspace" in sentence(result)


def test_durations():
    texts = {"20m": 1200, "1h30m": 5400, "90s": 90, "1h1s": 3601}
    assert {text: Duration().convert(text, None, None) for text in texts} == texts


@pytest.mark.parametrize("text", ["", "20", "0m", "m", "-5m", "1000h", "20 m", "1m1h"])
def test_wrong_durations_are_refused(text):
    with pytest.raises(click.BadParameter, match="is not a duration"):
        Duration().convert(text, None, None)
