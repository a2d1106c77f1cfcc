"""Validate an examples folder, without TFX."""

import json

import apache_beam as beam
import numpy as np
import pytest
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from PIL import Image

from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.validate import describe_failures, validate, validate_examples
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.data_checks import DataChecks, NearDuplicateCheck, ShareCheck

BOX = (0.1, 0.1, 0.6, 0.6)


@pytest.fixture
def make_folder(tmp_path, make_example, write_records):
    """An examples folder of {split: [(name, seed of the image, class id)]}; equal seeds are equal images."""

    def image(seed, quality):
        # Smooth patterns: noise would not survive the scaling to 9 x 8 cells.
        small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        file = tmp_path / "image.jpg"
        Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(file, quality=quality)
        return file.read_bytes()

    def make(folder="examples", quality=90, **splits):
        path = tmp_path / folder
        for split, images in splits.items():
            records = []
            for name, seed, class_id in images:
                example = tf.train.Example.FromString(make_example([BOX], [class_id], (96, 96), name))
                encoded = image(seed, quality if split == "train" else 90)
                example.features.feature[keys.IMAGE_ENCODED].bytes_list.value[0] = encoded
                records.append(example.SerializeToString())
            write_records(path / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
        write_label_map(path / LABEL_MAP_FILE, LabelMap.from_names(["cat", "dog"]))
        return path

    return make


TRAIN = [("a", 1, 1), ("b", 2, 2), ("c", 3, 1)]
EVAL = [("x", 11, 1), ("y", 12, 2)]


def results(report):
    return {check["check"]: check for check in report["checks"]}


def test_good_examples_pass_and_evaluation_splits_may_share_images(make_folder, tmp_path):
    report = validate_examples(make_folder(train=TRAIN, eval=EVAL, test=EVAL), tmp_path / "out")
    assert (report["verdict"], describe_failures(report)) == ("passed", "")
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    assert (tmp_path / "out/report.html").is_file()
    assert list(report["splits"]) == ["train", "eval", "test"]


def test_an_image_in_two_splits_is_leakage_and_fails(make_folder, tmp_path):
    report = validate_examples(make_folder(train=TRAIN, eval=[*EVAL, ("z", 3, 1)]), tmp_path / "out")
    assert results(report)["exact_duplicates"]["status"] == "failed"
    failures = describe_failures(report)
    assert failures.startswith("check exact_duplicates: ")
    assert "1 of 3 in split 'eval' (33.3 %)" in failures
    assert failures.endswith("eval/z.")
    (group,) = report["duplicates"]["exact"]["groups"]
    assert group == {
        "size": 2,
        "size_by_split": {"train": 1, "eval": 1},
        "members": [{"split": "train", "record_key": "c"}, {"split": "eval", "record_key": "z"}],
    }


def test_a_recompressed_image_is_only_a_near_duplicate(make_folder, tmp_path):
    report = validate_examples(make_folder(quality=40, train=TRAIN, eval=[*EVAL, ("z", 3, 1)]), tmp_path / "out")
    assert results(report)["exact_duplicates"]["status"] == "passed"
    assert results(report)["near_duplicates"]["status"] == "warned"
    assert results(report)["near_duplicates"]["record_keys"] == ["eval/z"]


def test_identical_images_in_one_split_are_not_leakage(make_folder, tmp_path):
    report = validate_examples(make_folder(train=[*TRAIN, ("d", 3, 1)], eval=EVAL), tmp_path / "out")
    found = results(report)
    assert found["exact_duplicates_within_split"]["value"] == 0.25
    assert found["exact_duplicates_within_split"]["record_keys"] == ["train/c", "train/d"]
    assert found["near_duplicates_within_split"]["value"] == 0.25
    assert found["exact_duplicates"]["status"] == "passed"


def test_checks_that_are_off_are_not_computed(make_folder, tmp_path):
    checks = DataChecks(
        near_duplicates=NearDuplicateCheck(severity="off", threshold=0.01),
        near_duplicates_within_split=ShareCheck(severity="fail", threshold=0.1),
        exact_duplicates=ShareCheck(severity="off", threshold=0.0),
    )
    report = validate_examples(make_folder(train=TRAIN, eval=[("z", 3, 1)]), tmp_path / "out", checks=checks)
    found = results(report)
    assert report["duplicates"]["near"] is None
    assert (found["near_duplicates"]["status"], found["exact_duplicates"]["status"]) == ("off", "off")
    assert found["near_duplicates_within_split"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("splits", "options", "train", "sentence"),
    [
        (
            {"main": TRAIN, "eval": EVAL},
            {"splits": ["main", "test"], "train_split": "main"},
            "main",
            "split 'test' has 0",
        ),
        ({"b": TRAIN, "a": EVAL}, {}, "a", "split 'a' has 2, split 'b' has 3"),  # without "train", the first one
    ],
)
def test_the_training_split_and_required_splits(make_folder, tmp_path, splits, options, train, sentence):
    report = validate_examples(make_folder(**splits), tmp_path / "out", **options)
    assert report["train_split"] == train
    assert sentence in results(report)["examples_per_split"]["sentence"]


def test_a_folder_without_splits_and_too_many_splits_are_refused(tmp_path):
    with pytest.raises(InputError, match="Split-NAME"):
        validate_examples(tmp_path, tmp_path / "out")
    shards = {f"split{i}": [] for i in range(64)}
    with pytest.raises(InputError, match="splits: got 64, allowed: at most 63"):
        validate(shards, LabelMap.from_names(["cat"]), DatasetValidatorParams(), tmp_path / "out", TestPipeline)


@pytest.mark.reliability("torn file", "validate")
def test_missing_shards_fail_for_any_threshold(make_folder, tmp_path):
    folder = make_folder(train=TRAIN, eval=EVAL)
    shard = folder / "Split-train/data_tfrecord-00000-of-00001"
    shard.rename(shard.with_name("data_tfrecord-00002-of-00007"))
    checks = DataChecks(records=ShareCheck(severity="fail", threshold=1.0))
    found = results(validate_examples(folder, tmp_path / "out", checks=checks))["records"]
    assert (found["status"], found["value"]) == ("failed", 0.0)
    assert "split 'train': 6 of 7 shards are missing" in found["sentence"]


@pytest.mark.reliability("hostile input", "validate")
def test_hostile_names_are_escaped_and_not_used_as_patterns(make_folder, tmp_path):
    folder = make_folder("<b>[1]*?\\", train=[("<script>", 1, 1)], eval=EVAL)
    (folder / "Split-train/README.md").write_text("no records")
    report = validate_examples(folder, tmp_path / "out")
    assert report["splits"]["train"]["num_examples"] == 1
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<script") == 2  # its own
    assert "&lt;script&gt;" in page


def test_the_report_does_not_depend_on_the_number_of_workers(make_folder, tmp_path, with_beam):
    folder = make_folder(train=TRAIN, eval=EVAL)
    options = PipelineOptions(["--direct_running_mode=multi_threading", "--direct_num_workers=2"])
    validate_examples(folder, tmp_path / "many", make_pipeline=lambda: beam.Pipeline(options=options))
    validate_examples(folder, tmp_path / "one")
    for name in ("report.json", "report.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()
