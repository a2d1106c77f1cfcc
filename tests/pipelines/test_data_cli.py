import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner, Result
from PIL import Image

from detloom.pipelines.cli import cli
from detloom.pipelines.data_cli import COMMANDS, pipeline_maker
from detloom.schemas.errors import InputError

ROOT = Path(__file__).parents[2]


def detloom_command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def sentence(result: Result) -> str:
    """What `main` prints of a mistake of the user."""
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def encode_image(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (40, 60, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG")
    return buffer.getvalue()


@pytest.fixture
def make_voc(tmp_path: Path) -> Callable[..., Path]:
    """Lists of stems; each image has one cat and, if its name starts with d, one dog."""

    def make(**lists: list[str]) -> Path:
        folder = tmp_path / "voc"
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (folder / part).mkdir(parents=True)
        for list_name, stems in lists.items():
            (folder / f"ImageSets/Main/{list_name}.txt").write_text("\n".join(stems))
            for stem in stems:
                (folder / f"JPEGImages/{stem}.jpg").write_bytes(encode_image(sum(map(ord, stem))))
                names = ["cat", "dog"] if stem.startswith("d") else ["cat"]
                objects = "".join(
                    f"<object><name>{name}</name><bndbox><xmin>7</xmin><ymin>3</ymin><xmax>31</xmax><ymax>23</ymax>"
                    "</bndbox></object>"
                    for name in names
                )
                text = f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>"
                (folder / f"Annotations/{stem}.xml").write_text(text)
        return folder

    return make


def read_examples(folder: Path) -> dict[str, dict[str, Any]]:
    """Features by the hash of the image."""
    found = {}
    for shard in sorted(folder.glob("Split-*/data_tfrecord-*")):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            values = {
                key: list(item.float_list.value or item.int64_list.value or item.bytes_list.value)
                for key, item in feature.items()
            }
            found[values["image/key/sha256"][0].decode()] = values
    return found


def split_names(folder: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for shard in sorted(folder.glob("Split-*/data_tfrecord-*")):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            feature = tf.train.Example.FromString(record).features.feature
            name = feature["image/source_id"].bytes_list.value[0].decode()
            names.setdefault(shard.parent.name[len("Split-") :], []).append(name)
    return names


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help(command):
    result = detloom_command(command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_help_imports_neither_tensorflow_nor_beam():
    code = (
        "import sys\nfrom detloom.pipelines.cli import cli\n"
        "try:\n    cli(['ingest', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('tensorflow', 'apache_beam', 'tfx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_ingest_writes_the_splits_that_were_asked_for(make_voc, tmp_path):
    folder = make_voc(a=["c1", "d1"], b=["c2"])
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a", "--split", "eval=b"
    )
    assert result.exit_code == 0, result.output
    found = {split: sorted(names) for split, names in split_names(tmp_path / "out").items()}
    assert found == {"train": ["c1", "d1"], "eval": ["c2"]}
    assert "name: 'dog'" in (tmp_path / "out/label_map.pbtxt").read_text()


def test_ingest_prints_what_went_in_and_where_it_went(make_voc, tmp_path):
    folder = make_voc(a=[f"c{number}" for number in range(9)] + ["d1"])
    (folder / "JPEGImages/c3.jpg").write_bytes(b"not an image")
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a", "--max-reject-fraction", "0.1"
    )
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert "in 10 images, 11 boxes" in lines
    assert "written 9 images, 10 boxes (train 9)" in lines
    assert "quarantined 1 images, 1 boxes" in lines
    assert "reasons not_an_image 1" in lines
    assert f"report {tmp_path}/out/rejects/report.json" in lines


def test_over_the_budget_the_summary_is_printed_and_one_sentence_says_why(make_voc, tmp_path):
    folder = make_voc(a=["c1", "c2", "c3"])
    (folder / "JPEGImages/c2.jpg").write_bytes(b"")
    result = detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a")
    assert result.exit_code == 1
    assert "1 of 3 records (33.3%) were refused, allowed: 5.0%" in sentence(result)
    assert "empty_image_file 1" in result.output


def test_the_command_exits_with_one_and_one_line(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "detloom.pipelines.cli",
            "ingest",
            "--input",
            "nowhere",
            "--output",
            str(tmp_path / "o"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: nowhere:")
    assert "Traceback" not in done.stderr


def test_ratios_divide_all_there_is(make_voc, tmp_path):
    folder = make_voc(a=[f"c{number}" for number in range(40)])
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", "--split-ratios", "train=0.5, eval=0.5", "--gzip"
    )
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "out").glob("Split-*/data_tfrecord-*.gz"))) >= 2
    report = json.loads((tmp_path / "out/rejects/report.json").read_text())
    assert report["splits"]["train"]["num_written"] + report["splits"]["eval"]["num_written"] == 40
    assert report["splits"]["eval"]["num_written"] > 5


def test_classes_are_numbered_as_given_and_others_refused(make_voc, tmp_path):
    folder = make_voc(a=["d1", "c1"])
    options = ["--classes", "cat", "--unknown-class", "reject", "--max-reject-fraction", "1"]
    result = detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a", *options)
    assert result.exit_code == 0, result.output
    assert "unknown_class 1" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "train"], "--split: got 'train'"),
        (["--split", "train=a", "--split", "train=b"], "'train' stands twice"),
        (["--split-ratios", "train=most"], "got train='most'"),
        (["--split-ratios", "train=0.5"], "a sum of 0.5"),
        (["--split", "../x=a"], "got the name '../x'"),
    ],
)
def test_a_wrong_option_is_named(options, message, make_voc, tmp_path):
    result = detloom_command("ingest", "--input", make_voc(a=["c1"]), "--output", tmp_path / "out", *options)
    assert message in sentence(result)


def test_an_output_over_the_input_is_refused(make_voc, tmp_path):
    folder = make_voc(a=["c1"])
    for output in (folder, folder.parent):
        assert "overlap; give a folder of its own" in sentence(
            detloom_command("ingest", "--input", folder, "--output", output)
        )
    assert (folder / "Annotations/c1.xml").exists()


def test_an_input_or_a_replay_is_needed(tmp_path):
    result = detloom_command("ingest", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "--input" in result.output


def test_replay_takes_the_settings_of_the_first_time_alone(tmp_path):
    result = detloom_command("ingest", "--output", tmp_path / "out", "--replay", tmp_path, "--gzip")
    assert result.exit_code == 2
    assert "got 'gzip' beside it" in result.output


def test_mended_records_are_replayed(make_voc, tmp_path):
    folder = make_voc(a=["c1", "c2", "c3"])
    (folder / "JPEGImages/c2.jpg").write_bytes(b"")
    options = ["--split", "train=a", "--max-reject-fraction", "0.5"]
    assert detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", *options).exit_code == 0
    (folder / "JPEGImages/c2.jpg").write_bytes(encode_image(5))
    result = detloom_command("ingest", "--replay", tmp_path / "out/rejects", "--output", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert split_names(tmp_path / "again") == {"train": ["c2"]}
    assert "1 quarantined images" in result.output


def test_beam_arguments_after_two_dashes_reach_beam(make_voc, tmp_path):
    from apache_beam.options.pipeline_options import DirectOptions, StandardOptions

    pipeline = pipeline_maker(2, ["--direct_running_mode=multi_threading"])()
    assert pipeline.options.view_as(DirectOptions).direct_running_mode == "multi_threading"
    assert pipeline.options.view_as(DirectOptions).direct_num_workers == 2
    other = pipeline_maker(1, ["--runner=FlinkRunner"])()
    assert other.options.view_as(StandardOptions).runner == "FlinkRunner"
    folder = make_voc(a=["c1"])
    result = detloom_command(
        "ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a", "--", "--runner=NoSuchRunner"
    )
    assert result.exit_code != 0
    assert "NoSuchRunner" in str(result.exception)


def test_validate_says_which_check_failed(make_voc, tmp_path):
    folder = make_voc(a=["c1", "d1"])
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a")
    checks = tmp_path / "checks.yaml"
    checks.write_text("examples_per_split: {threshold: 3}\n")
    result = detloom_command("validate", tmp_path / "out", "--checks", checks, "--output", tmp_path / "report")
    assert result.exit_code == 1
    assert "examples_per_split" in sentence(result)
    assert (tmp_path / "report/report.html").is_file()
    assert detloom_command("validate", tmp_path / "out").exit_code == 0


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """One split `a` of one picture with two boxes, and a run file `run.yaml` that takes one of them."""
    folder = tmp_path / "crowded"
    (folder / "Split-a").mkdir(parents=True)
    example = tf.train.Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(encode_image(1))
    feature["image/format"].bytes_list.value.append(b"jpeg")
    feature["image/height"].int64_list.value.append(40)
    feature["image/width"].int64_list.value.append(60)
    for side, values in (("ymin", (0.1, 0.5)), ("xmin", (0.1, 0.5)), ("ymax", (0.4, 0.9)), ("xmax", (0.4, 0.9))):
        feature[f"image/object/bbox/{side}"].float_list.value.extend(values)
    feature["image/object/class/label"].int64_list.value.extend((1, 1))
    with tf.io.TFRecordWriter(str(folder / "Split-a/data_tfrecord-00000-of-00001")) as writer:
        writer.write(example.SerializeToString())
    (folder / "label_map.pbtxt").write_text("item {\n  id: 1\n  name: 'cat'\n}\n")
    (tmp_path / "run.yaml").write_text(
        "name: small\ndata: {format: voc, path: nowhere, splits: {train: a, eval: b, test: c}}\n"
        "train_input: {max_number_of_boxes: 1}\nchecks: {crowded_images: {severity: fail, threshold: 0.0}}\n"
    )
    return folder


def test_validate_takes_checks_and_the_limit_of_boxes_from_a_run_file(crowded, tmp_path):
    result = detloom_command("validate", crowded, "--config", tmp_path / "run.yaml", "--output", tmp_path / "report")
    assert "crowded_images" in sentence(result)


def test_checks_of_their_own_replace_those_of_the_run_file(crowded, tmp_path):
    (tmp_path / "checks.yaml").write_text("examples_per_split: {threshold: 7}\n")
    options = ["--config", tmp_path / "run.yaml", "--checks", tmp_path / "checks.yaml", "--output", tmp_path / "report"]
    message = sentence(detloom_command("validate", crowded, *options))
    assert "examples_per_split" in message
    assert "crowded_images" not in message


def test_the_split_to_train_on_must_be_there(crowded):
    result = detloom_command("validate", crowded, "--train-split", "b")
    assert "--train-split: got 'b'" in sentence(result)


def test_an_export_names_an_empty_split(crowded, tmp_path):
    (crowded / "Split-b").mkdir()
    result = detloom_command("export-coco", crowded, tmp_path / "coco")
    assert result.output.splitlines()[:2] == ["a: 1 images, 2 boxes", "b: no images, left out"]


def test_inspect_writes_a_page(make_voc, tmp_path):
    pytest.importorskip("detloom.components.dataset_validator.inspect_page")
    folder = make_voc(a=["c1", "d1"])
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a")
    result = detloom_command("inspect", tmp_path / "out", "--output", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "dog" in (tmp_path / "page.html").read_text()


def test_inspect_shows_what_training_makes_of_the_pictures(make_voc, tmp_path):
    folder, run_file = make_voc(a=["c1", "d1"]), tmp_path / "run.yaml"
    detloom_command("ingest", "--input", folder, "--output", tmp_path / "out", "--split", "train=a")
    run_file.write_text(
        "name: test\ndata: {format: voc, path: ., splits: {train: a, eval: b, test: c}}\n"
        "detector: ssd_mobilenet_v2_fpnlite_320x320\n"
        "train: {augmentations: [{type: RandomVerticalFlip}]}\n"
    )
    result = detloom_command("inspect", tmp_path / "out", "--augment", "--config", run_file, "--versions", 1)
    assert result.exit_code == 0, result.output
    assert result.output == f"Wrote {tmp_path / 'out/augment.html'}\n"
    text = (tmp_path / "out/augment.html").read_text("utf-8")
    assert "RandomVerticalFlip" in text
    assert text.count("data:image/jpeg;base64,") == 4  # two pictures, stored and one version each


@pytest.mark.parametrize("options", [["--augment"], ["--config", "efficientdet_d0"]])
def test_inspect_wants_a_configuration_for_augmentation_and_for_nothing_else(tmp_path, options):
    result = detloom_command("inspect", tmp_path, *options)
    assert result.exit_code == 2
    assert "--augment and --config go together" in result.output


# What the formats have no place for, or name otherwise.
NOT_IN_COCO = {"image/filename", "image/source_id", "image/object/truncated", "image/object/difficult"}


def check_reads_back(folder: Path, tmp_path: Path, split_options: list[str]) -> None:
    original = tmp_path / "original"
    result = detloom_command("ingest", "--input", folder, "--output", original, *split_options)
    assert result.exit_code == 0, result.output
    expected = read_examples(original)
    for name in ("coco", "yolo"):
        assert detloom_command(f"export-{name}", original, tmp_path / name).exit_code == 0
        result = detloom_command("ingest", "--input", tmp_path / name, "--output", tmp_path / f"{name}_again")
        assert result.exit_code == 0, result.output
        found = read_examples(tmp_path / f"{name}_again")
        assert found.keys() == expected.keys()
        for key, values in found.items():
            assert values.keys() == expected[key].keys()
            different = {feature for feature in values if values[feature] != expected[key][feature]}
            assert different <= NOT_IN_COCO, (name, key, different)


def test_exports_read_back_to_the_same_examples(make_voc, tmp_path):
    check_reads_back(make_voc(train=["c1", "d1", "d2"], val=["c4"]), tmp_path, [])


def test_bccd_reads_back_to_the_same_examples(tmp_path):
    folder = Path(os.environ.get("DETLOOM_SHARED", ROOT.parent / "shared")) / "data/bccd"
    if not folder.is_dir():
        pytest.skip("no BCCD: set DETLOOM_SHARED to the folder that holds data/bccd")
    check_reads_back(folder, tmp_path, ["--split", "train=train", "--split", "val=val", "--split", "test=test"])


def test_an_export_prints_what_is_lost(crowded, tmp_path):
    (crowded / "label_map.pbtxt").write_text("item {\n  id: 1\n  name: 'cat'\n}\nitem {\n  id: 5\n  name: 'dog'\n}\n")
    result = detloom_command("export-yolo", crowded, tmp_path / "yolo")
    assert "Lost: class id (renumbered) 1" in result.output.splitlines()
