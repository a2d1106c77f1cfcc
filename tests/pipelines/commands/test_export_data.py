"""Test `detloom export-coco` and `detloom export-yolo`."""

import os
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from command_line import detloom_command

ROOT = Path(__file__).parents[3]


def read_examples(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the features by the hash of the image."""
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


# Features that the formats do not support, or name differently.
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


def test_an_export_reports_an_empty_split_and_lost_information(crowded, tmp_path):
    (crowded / "Split-b").mkdir()
    result = detloom_command("export-coco", crowded, tmp_path / "coco")
    assert result.output.splitlines()[:2] == ["a: 1 images, 2 boxes", "b: no images, left out"]
    (crowded / "label_map.pbtxt").write_text("item {\n  id: 1\n  name: 'cat'\n}\nitem {\n  id: 5\n  name: 'dog'\n}\n")
    result = detloom_command("export-yolo", crowded, tmp_path / "yolo")
    assert "Lost: class id (renumbered) 1" in result.output.splitlines()


def test_exported_data_ingest_to_the_same_examples(make_voc, tmp_path, without_beam):
    check_reads_back(make_voc(train=["c1", "d1", "d2"], val=["c4"]), tmp_path, [])


@pytest.mark.slow
def test_exported_bccd_data_ingest_to_the_same_examples(tmp_path, without_beam):
    folder = Path(os.environ.get("DETLOOM_SHARED", ROOT.parent / "shared")) / "data/bccd"
    if not folder.is_dir():
        pytest.skip("no BCCD: set DETLOOM_SHARED to the folder that holds data/bccd")
    check_reads_back(folder, tmp_path, ["--splits", "train=train,val=val,test=test"])
