"""The pass over the shards: readable and unreadable records, and independence of the workers."""

import hashlib
import io

import numpy as np
import pytest
import tensorflow as tf
from apache_beam.testing import test_pipeline

from detloom.components.dataset_validator.params import DatasetValidatorParams
from detloom.components.dataset_validator.statistics.collect_statistics import (
    PassSettings,
    collect_statistics,
    read_shard,
)
from detloom.components.dataset_validator.statistics.duplicates import ImageRows
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.dataset_validator.statistics.pass_result import (
    PassResult,
    decode_result,
    encode_result,
    plain_statistics,
)
from detloom.components.dataset_validator.statistics.split_statistics import BoxLimits
from detloom.schemas.contracts import example_keys as keys
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.detector import MultiscaleAnchorGenerator
from detloom.schemas.model.network import FixedShapeResizer
from detloom.schemas.run_file.data_checks import DataChecks, NearDuplicateCheck, ShareCheck

LABEL_MAP = LabelMap.from_names(["cat", "dog"])
KNOWN = frozenset(LABEL_MAP.class_ids)
BOX = (0.1, 0.1, 0.6, 0.6)
PLAIN = PassSettings()
MODEL = ModelInput(
    image_resizer=FixedShapeResizer(height=64, width=64),
    anchor_generator=MultiscaleAnchorGenerator(aspect_ratios=(1.0,), min_level=3, max_level=4),
)
ALL = PassSettings(limits=BoxLimits(model_input=MODEL), anchor_split="train", perceptual_hashes=True)


@pytest.fixture
def read(tmp_path, write_records):
    """Read records as one shard."""

    def call(*records, split="train", settings=PLAIN, name="data"):
        path = write_records(tmp_path / name, records)
        return read_shard(split, str(path), KNOWN, settings)

    return call


def with_feature(serialized, key, *values):
    """Return the example with other values of a feature, or without it."""
    example = tf.train.Example.FromString(serialized)
    feature = example.features.feature[key]
    feature.Clear()
    if values:
        column = feature.bytes_list if isinstance(values[0], bytes) else feature.int64_list
        column.value.extend(values)
    return example.SerializeToString()


def test_shards_of_all_splits_are_collected_by_workers_that_exchange_files(
    make_example, write_records, tmp_path, with_beam
):
    (tmp_path / "statistics.pickle").write_text("mine")
    for number, records in enumerate(([make_example([BOX])], [make_example([BOX]), make_example()])):
        write_records(tmp_path / f"train/data-{number}", records)
    shards = {"train": sorted(map(str, (tmp_path / "train").iterdir())), "eval": []}
    splits = collect_statistics(shards, LABEL_MAP, PLAIN, str(tmp_path), test_pipeline.TestPipeline).splits
    assert (splits["train"].num_examples, splits["train"].num_without_boxes) == (3, 1)
    assert splits["eval"].num_examples == 0
    assert list(splits) == ["train", "eval"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["statistics.pickle", "train"]


@pytest.mark.reliability("torn file", "validate")
@pytest.mark.parametrize(
    ("key", "values"),
    [
        (keys.CLASS_ID, []),
        (keys.IMAGE_HEIGHT, [0]),
        (keys.IMAGE_HEIGHT, [2**40]),
        (keys.IS_CROWD, [0, 1]),
        (keys.IMAGE_ENCODED, []),
        (keys.IMAGE_ENCODED, [b""]),
    ],
)
def test_unreadable_records_are_listed_by_key(read, make_example, key, values):
    broken = with_feature(make_example([BOX], name="broken"), key, *values)
    statistics = read(broken, b"\xff\xff", make_example([BOX])).splits["train"]
    assert (statistics.num_examples, statistics.unreadable.count) == (1, 2)
    assert statistics.unreadable.record_keys == ["(not a tf.Example)", "broken"]


def test_an_example_whose_image_has_another_size_is_unreadable_if_images_are_decoded(read, make_example):
    record = with_feature(make_example([BOX], name="wide"), keys.IMAGE_WIDTH, 65)
    assert read(record, settings=ALL).splits["train"].unreadable.record_keys == ["wide"]
    assert read(record).splits["train"].unreadable.record_keys == []


def test_an_example_without_crowd_flags_has_no_crowds(read, make_example):
    assert read(with_feature(make_example([BOX]), keys.IS_CROWD)).splits["train"].num_objects == 1


@pytest.mark.reliability("torn file", "validate")
def test_a_damaged_or_missing_shard_is_listed_by_name(make_example, write_records, tmp_path):
    path = write_records(tmp_path / "data-0", [make_example([BOX]), make_example([BOX])])
    path.write_bytes(path.read_bytes()[:-5])
    for name, num_examples in (("data-0", 1), ("gone", 0)):
        statistics = read_shard("train", str(tmp_path / name), KNOWN, PLAIN).splits["train"]
        assert (statistics.num_examples, statistics.num_damaged_shards) == (num_examples, 1)
        assert statistics.unreadable.record_keys == [f"(damaged file train/{name})"]


def test_the_content_hash_is_read_or_computed(read, make_example):
    plain = make_example([BOX], name="a")
    encoded = tf.train.Example.FromString(plain).features.feature[keys.IMAGE_ENCODED].bytes_list.value[0]
    digest = hashlib.sha256(encoded).hexdigest()
    stored = [with_feature(plain, keys.IMAGE_SHA256, text) for text in (digest.encode(), b"no digest")]
    (rows,) = read(plain, *stored).images
    assert rows.rows_N["content_hash"].tolist() == [int(digest[:16], 16)] * 3
    shown = with_feature(plain, keys.IMAGE_SHA256, b"01" * 32)
    assert read(shown).images[0].rows_N["content_hash"].tolist() == [0x0101010101010101]


def test_images_are_decoded_only_for_the_checks_that_need_it(read, make_example, monkeypatch):
    def refuse(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr("detloom.components.dataset_validator.statistics.collect_statistics.hash_image", refuse)
    off = DataChecks(
        near_duplicates=NearDuplicateCheck(severity="off", threshold=0.01),
        undecodable_images=ShareCheck(severity="off", threshold=0.0),
    )
    without, default = (PassSettings.of_params(DatasetValidatorParams(checks=each)) for each in (off, DataChecks()))
    assert read(make_example([BOX]), settings=without).splits["train"].num_examples == 1
    with pytest.raises(AssertionError, match="decoded"):
        read(make_example([BOX]), settings=default)


def test_an_image_that_cannot_be_decoded_is_counted(read, make_example):
    result = read(with_feature(make_example([BOX]), keys.IMAGE_ENCODED, b"no image"), make_example([BOX]), settings=ALL)
    assert result.splits["train"].num_undecodable == 1
    assert result.images[0].rows_N["has_perceptual_hash"].tolist() == [False, True]


@pytest.mark.parametrize("near_duplicates", ["off", "fail"])
def test_an_image_that_only_tensorflow_refuses_is_counted(read, make_example, png_without_last_row, near_duplicates):
    checks = DataChecks(near_duplicates=NearDuplicateCheck(severity=near_duplicates, threshold=0.01))
    settings = PassSettings.of_params(DatasetValidatorParams(checks=checks))
    record = with_feature(make_example([BOX]), keys.IMAGE_ENCODED, png_without_last_row)
    assert read(record, make_example([BOX]), settings=settings).splits["train"].num_undecodable == 1


def test_only_objects_of_known_classes_in_the_training_split_are_compared_with_anchors(read, make_example):
    record = make_example([BOX, BOX, BOX], [1, 9, 2], crowds=[0, 0, 1])
    assert read(record, settings=ALL).anchors.total()["num_boxes"] == 1
    assert read(record, split="eval", settings=ALL).anchors is None


def test_the_result_does_not_depend_on_the_partition_of_the_records(read, make_example):
    random = np.random.default_rng(0)
    records = []
    for number in range(20):
        corners = np.sort(random.uniform(0, 1, (number % 5, 2, 2)), axis=1).reshape(-1, 4)
        ids = random.integers(1, 4, len(corners)).tolist()
        records.append(make_example(corners.tolist(), ids, (60 + number % 7, 64), f"img_{number:02d}"))
    whole, merged = read(*records, settings=ALL, name="whole"), PassResult()
    for part in (2, 0, 1):
        merged.merge(read(*records[part::3], settings=ALL, name=f"part{part}"))
    assert plain_statistics(merged.splits["train"]) == plain_statistics(whole.splits["train"])
    assert merged.anchors.to_dict(LABEL_MAP) == whole.anchors.to_dict(LABEL_MAP)
    columns = ["key", "content_hash", "perceptual_hash", "has_perceptual_hash"]
    one, many = (ImageRows.of_shards(each.images, ["train"]).rows_N[columns].tolist() for each in (whole, merged))
    assert one == many
    assert [place.record_key for place in merged.sample.places("sample:train")] == [
        place.record_key for place in whole.sample.places("sample:train")
    ]


@pytest.fixture
def result(read, make_example, tmp_path):
    """The statistics of readable and damaged records with unknown classes, anchors and every kind of finding."""
    records = [make_example([BOX, BOX], [1, 9], name="doubled"), make_example([], name="empty"), b"no example"]
    merged = read(*records, settings=ALL)
    (tmp_path / "cut").write_bytes(b"damaged")
    merged.merge(read_shard("eval", str(tmp_path / "cut"), KNOWN, ALL))
    return merged


def test_statistics_are_the_same_after_a_file(result):
    data = encode_result(result)
    read = decode_result(data, "file", MODEL.anchor_generator)
    assert encode_result(read) == data
    for split, statistics in result.splits.items():
        assert plain_statistics(read.splits[split]) == plain_statistics(statistics)
    assert read.sample == result.sample
    assert read.anchors.to_dict(LABEL_MAP) == result.anchors.to_dict(LABEL_MAP)
    rows = [ImageRows.of_shards(each.images, ["train", "eval"]) for each in (result, read)]
    assert [rows[0].place(row) for row in range(2)] == [rows[1].place(row) for row in range(2)]


@pytest.mark.reliability("hostile input", "validate")
@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_file_that_another_program_has_cut_is_refused(result, keep):
    with pytest.raises(InputError, match=r"part-00000: cannot be read .*; validate again"):
        decode_result(encode_result(result)[:keep], "part-00000", MODEL.anchor_generator)


@pytest.mark.reliability("hostile input", "validate")
def test_a_file_with_python_objects_or_unrequested_anchors_is_refused(result):
    file = io.BytesIO()
    np.savez(file, head=np.array([{}], object))
    for data, message in ((file.getvalue(), "allow_pickle=False"), (encode_result(result), "was not requested")):
        with pytest.raises(InputError, match=message):
            decode_result(data, "file", None)
