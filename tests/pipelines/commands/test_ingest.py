"""Test `detloom ingest`."""

import json
from pathlib import Path

import click
import pytest
import tensorflow as tf
from command_line import detloom_command, sentence

from detloom.components.example_gen.command_settings import command_settings
from detloom.pipelines.commands.ingest import ingest_command
from detloom.pipelines.local.beam_pipelines import pipeline_maker

ROOT = Path(__file__).parents[3]


def split_names(folder: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for shard in sorted(folder.glob("Split-*/data_tfrecord-*")):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            name = feature["image/source_id"].bytes_list.value[0].decode()
            names.setdefault(shard.parent.name[len("Split-") :], []).append(name)
    return names


def test_ingest_prints_counts_and_output_paths(make_voc, tmp_path):
    folder = make_voc(a=["c1", "c2", "c3", "d1"], b=["c4"])
    (folder / "JPEGImages/c3.jpg").write_bytes(b"not an image")
    options = ["--splits", "train=a, eval=b", "--classes", "cat", "--unknown-class", "reject"]
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", *options, "--max-reject-fraction", "0.2"
    )
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "in 5 images, 6 boxes" in lines
    assert "written 4 images, 4 boxes (train 3, eval 1)" in lines
    assert "quarantined 1 images, 1 boxes" in lines
    assert "reasons not_an_image 1, unknown_class 1" in lines
    found = {split: sorted(names) for split, names in split_names(tmp_path / "out").items()}
    assert found == {"train": ["c1", "c2", "d1"], "eval": ["c4"]}
    assert f"report {tmp_path}/out/rejects/report.json" in lines
    assert lines[-1] == f"Next: detloom validate {tmp_path}/out"


def test_too_many_rejects_print_the_summary_and_fail(make_voc, tmp_path, without_beam):
    folder = make_voc(a=["c1", "c2", "c3"])
    (folder / "JPEGImages/c2.jpg").write_bytes(b"")
    result = detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--splits", "train=a")
    assert result.exit_code == 1
    assert "1 of 3 records (33.3%) were rejected, allowed: 5.0%" in sentence(result)
    assert "empty_image_file 1" in result.output


def test_ratios_split_the_whole_data_set(make_voc, tmp_path, without_beam):
    folder = make_voc(a=[f"c{number}" for number in range(21)])
    (folder / "Annotations/c20.xml").write_text("<broken")
    options = ["--split-by-ratio", "train=0.5, eval=0.5", "--gzip"]
    result = detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    assert "(none)" not in result.output
    assert len(list((tmp_path / "out").glob("Split-*/data_tfrecord-*.gz"))) >= 2
    report = json.loads((tmp_path / "out/rejects/report.json").read_text())
    assert report["splits"]["train"]["num_written"] + report["splits"]["eval"]["num_written"] == 20
    assert report["splits"]["eval"]["num_written"] > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--splits", "train"], "got 'train'"),
        (["--splits", "train=a,train=b"], "got 'train=b'"),
        (["--splits", "../x=a"], "got the name '../x'"),
        (["--split-by-ratio", "train=most"], "train: got 'most'"),
        (["--split-by-ratio", "train=0.5"], "a sum of 0.5"),
        (["--max-reject-fraction", "nan"], "--max-reject-fraction"),
    ],
)
def test_an_invalid_option_is_named(options, message, make_voc, tmp_path):
    result = detloom_command("ingest", "--input", make_voc(a=["c1"]), "--output", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert message in result.output


def test_every_setting_has_an_option_with_its_name_default_and_documentation():
    options = {option.name: option for option in ingest_command.params}
    for name, setting in command_settings().items():
        assert options[name].opts == [f"--{name.replace('_', '-')}"]
        assert options[name].help.split()[:3] == setting.doc.split()[:3] or "`" in setting.doc
        if options[name].is_flag:
            assert setting.annotation is bool
        elif not isinstance(options[name].type, click.types.StringParamType) and setting.default is not None:
            assert options[name].default == setting.default
    assert "--classes" in options["unknown_class"].help


def test_an_output_at_s3_is_refused_and_an_input_needed(make_voc, tmp_path):
    result = detloom_command("ingest", "--input", make_voc(a=["c1"]), "--output", "s3://bucket/examples")
    assert "--output: got 's3://bucket/examples'" in sentence(result)
    result = detloom_command("ingest", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "--input" in result.output


def test_beam_arguments_after_two_dashes_reach_beam(make_voc, tmp_path):
    from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

    pipeline = pipeline_maker(2, ["--direct_running_mode=multi_threading"])()
    assert pipeline.options.view_as(DirectOptions).direct_running_mode == "multi_threading"
    assert pipeline.options.view_as(DirectOptions).direct_num_workers == 2
    other = pipeline_maker(1, ["--runner=FlinkRunner"])()
    assert other.options.view_as(StandardOptions).runner == "FlinkRunner"
    folder = make_voc(a=["c1"])
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", "--splits", "train=a", "--", "--runner=NoSuchRunner"
    )
    assert result.exit_code != 0
    assert "NoSuchRunner" in str(result.exception)
