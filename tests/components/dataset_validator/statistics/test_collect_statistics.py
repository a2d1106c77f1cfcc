"""The pass over the shards: readable and unreadable records, and independence of the workers."""

import hashlib

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
from detloom.components.dataset_validator.statistics.collected import Collected, decode_collected, encode_collected
from detloom.components.dataset_validator.statistics.model_input import ModelInput
from detloom.components.dataset_validator.statistics.split_statistics import BoxLimits
from detloom.components.record_files import read_records
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
def collect(tmp_path, write_records):
    """Run the pass over {split: [records of a shard, ...]}."""

    def run(settings=PLAIN, **splits):
        for split, shards in splits.items():
            for index, records in enumerate(shards):
                write_records(tmp_path / f"{split}/data-{index}", records)
        shards = {split: sorted(map(str, (tmp_path / split).glob("*"))) for split in splits}
        return collect_statistics(shards, LABEL_MAP, settings, str(tmp_path), test_pipeline.TestPipeline)

    return run


def test_shards_of_all_splits_are_counted_in_one_pass(collect, make_example, tmp_path, with_beam):
    splits = collect(train=[[make_example([BOX])], [make_example([BOX]), make_example()]], eval=[]).splits
    assert (splits["train"].num_examples, splits["train"].num_without_boxes) == (3, 1)
    assert splits["eval"].num_examples == 0
    assert list(splits) == ["train", "eval"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]


def change(serialized, edit):
    example = tf.train.Example.FromString(serialized)
    edit(example.features.feature)
    return example.SerializeToString()


@pytest.mark.reliability("torn file", "validate")
def test_unreadable_records_are_listed_by_key(collect, make_example):
    def drop_class(feature):
        feature[keys.CLASS_ID].int64_list.value.pop()

    def drop_height(feature):
        feature[keys.IMAGE_HEIGHT].int64_list.value[0] = 0

    def add_crowd(feature):
        feature[keys.IS_CROWD].int64_list.value.append(1)

    records = [change(make_example([BOX], name=edit.__name__), edit) for edit in (drop_class, drop_height, add_crowd)]
    statistics = collect(train=[[*records, b"\xff\xff", make_example([BOX])]]).splits["train"]
    assert statistics.num_examples == 1
    assert statistics.unreadable.count == 4
    assert statistics.unreadable.record_keys == ["(not a tf.Example)", "add_crowd", "drop_class", "drop_height"]


def test_an_example_without_crowd_flags_has_no_crowds(make_example, write_records, tmp_path):
    record = change(make_example([BOX]), lambda feature: feature[keys.IS_CROWD].int64_list.value.pop())
    path = write_records(tmp_path / "data", [record])
    assert read_shard("train", str(path), KNOWN, PLAIN).splits["train"].num_objects == 1


@pytest.mark.reliability("torn file", "validate")
def test_a_damaged_shard_is_listed_by_name(make_example, write_records, tmp_path):
    path = write_records(tmp_path / "data-0", [make_example([BOX]), make_example([BOX])])
    path.write_bytes(path.read_bytes()[:-5])
    statistics = read_shard("train", str(path), KNOWN, PLAIN).splits["train"]
    assert statistics.num_examples == 1
    assert statistics.unreadable.record_keys == ["(damaged file train/data-0)"]


def test_a_compressed_shard_gives_the_same_records_as_a_plain_one(make_example, write_records, tmp_path):
    records = [make_example([BOX], name=name) for name in ("a", "b")]
    plain, packed = tmp_path / "data", tmp_path / "data.gz"
    write_records(plain, records)
    with tf.io.TFRecordWriter(str(packed), "GZIP") as writer:
        for record in records:
            writer.write(record)
    assert list(read_records(str(packed))) == list(read_records(str(plain)))


def test_an_offset_is_the_start_of_the_record_in_the_file(make_example, write_records, tmp_path):
    records = [make_example([BOX], name=name) for name in ("a", "bb", "ccc")]
    path = write_records(tmp_path / "data", records)
    for offset, record in read_records(str(path)):
        assert path.read_bytes()[offset + 12 : offset + 12 + len(record)] == record  # after length and checksum


def test_the_content_hash_is_read_or_computed(make_example, write_records, tmp_path):
    plain = make_example([BOX], name="a")
    encoded = tf.train.Example.FromString(plain).features.feature[keys.IMAGE_ENCODED].bytes_list.value[0]
    digest = hashlib.sha256(encoded).hexdigest()

    def state(feature):
        feature[keys.IMAGE_SHA256].bytes_list.value.append(digest.encode())

    def misstate(feature):
        feature[keys.IMAGE_SHA256].bytes_list.value.append(b"no digest")

    path = write_records(tmp_path / "data", [plain, change(plain, state), change(plain, misstate)])
    (rows,) = read_shard("train", str(path), KNOWN, PLAIN).images.parts
    assert rows.content_hashes_N.tolist() == [int(digest[:16], 16)] * 3


def test_images_are_decoded_only_for_the_checks_that_need_it(make_example, write_records, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr("detloom.components.dataset_validator.statistics.collect_statistics.hash_image", refuse)
    path = str(write_records(tmp_path / "data", [make_example([BOX])]))
    off = DataChecks(
        near_duplicates=NearDuplicateCheck(severity="off", threshold=0.01),
        undecodable_images=ShareCheck(severity="off", threshold=0.0),
    )
    without = PassSettings.of_params(DatasetValidatorParams(checks=off))
    assert read_shard("train", path, KNOWN, without).splits["train"].num_examples == 1
    with pytest.raises(AssertionError, match="decoded"):
        read_shard("train", path, KNOWN, PassSettings.of_params(DatasetValidatorParams()))


def test_an_image_that_cannot_be_decoded_is_counted(make_example, write_records, tmp_path):
    def damage(feature):
        feature[keys.IMAGE_ENCODED].bytes_list.value[0] = b"no image"

    path = write_records(tmp_path / "data", [change(make_example([BOX]), damage), make_example([BOX])])
    collected = read_shard("train", str(path), KNOWN, ALL)
    assert collected.splits["train"].num_undecodable == 1
    assert collected.images.parts[0].has_perceptual_hash_N.tolist() == [False, True]


@pytest.mark.parametrize("near_duplicates", ["off", "fail"])
def test_an_image_that_only_tensorflow_refuses_is_counted(
    make_example, write_records, tmp_path, png_without_last_row, near_duplicates
):
    def exchange(feature):
        feature[keys.IMAGE_ENCODED].bytes_list.value[0] = png_without_last_row

    path = write_records(tmp_path / "data", [change(make_example([BOX]), exchange), make_example([BOX])])
    checks = DataChecks(near_duplicates=NearDuplicateCheck(severity=near_duplicates, threshold=0.01))
    settings = PassSettings.of_params(DatasetValidatorParams(checks=checks))
    assert read_shard("train", str(path), KNOWN, settings).splits["train"].num_undecodable == 1


def test_an_example_without_an_image_or_of_another_size_is_unreadable(make_example, write_records, tmp_path):
    def drop(feature):
        feature[keys.IMAGE_ENCODED].bytes_list.value.pop()

    def clear(feature):
        feature[keys.IMAGE_ENCODED].bytes_list.value[0] = b""

    def misstate(feature):
        feature[keys.IMAGE_WIDTH].int64_list.value[0] = 65

    edits = (drop, clear, misstate)
    records = [change(make_example([BOX], name=edit.__name__), edit) for edit in edits]
    path = str(write_records(tmp_path / "data", records))
    assert read_shard("train", path, KNOWN, ALL).splits["train"].unreadable.record_keys == ["clear", "drop", "misstate"]
    assert read_shard("train", path, KNOWN, PLAIN).splits["train"].unreadable.record_keys == ["clear", "drop"]


@pytest.mark.reliability("hostile input", "validate")
def test_an_impossible_size_is_unreadable(make_example, write_records, tmp_path):
    def stretch(feature):
        feature[keys.IMAGE_HEIGHT].int64_list.value[0] = 2**40

    path = str(write_records(tmp_path / "data", [change(make_example([BOX]), stretch)]))
    assert read_shard("train", path, KNOWN, PLAIN).splits["train"].unreadable.count == 1


def test_a_shard_that_cannot_be_opened_is_damaged(tmp_path):
    statistics = read_shard("train", str(tmp_path / "gone"), KNOWN, PLAIN).splits["train"]
    assert (statistics.num_damaged_shards, statistics.unreadable.record_keys) == (1, ["(damaged file train/gone)"])


def test_other_files_in_the_scratch_folder_are_kept(collect, make_example, tmp_path, with_beam):
    (tmp_path / "statistics.pickle").write_text("mine")
    collect(train=[[make_example([BOX])]])
    assert (tmp_path / "statistics.pickle").read_text() == "mine"


def test_anchors_are_compared_with_the_training_split_only(collect, make_example):
    collected = collect(ALL, train=[[make_example([BOX])]], eval=[[make_example([BOX, BOX])]])
    assert collected.anchors.to_dict(LABEL_MAP)["num_boxes"] == 1


def test_unknown_classes_and_crowds_are_not_compared_with_anchors(make_example, write_records, tmp_path):
    record = make_example([BOX, BOX, BOX], [1, 9, 2], crowds=[0, 0, 1])
    path = write_records(tmp_path / "data", [record])
    assert read_shard("train", str(path), KNOWN, ALL).anchors.to_dict(LABEL_MAP)["num_boxes"] == 1


def test_the_result_does_not_depend_on_the_partition_of_the_records(make_example, write_records, tmp_path):
    random = np.random.default_rng(0)
    records = []
    for number in range(40):
        corners = np.sort(random.uniform(0, 1, (number % 5, 2, 2)), axis=1).reshape(-1, 4)
        ids = random.integers(1, 4, len(corners)).tolist()
        records.append(make_example(corners.tolist(), ids, (60 + number % 7, 64), f"img_{number:02d}"))
    whole = read_shard("train", str(write_records(tmp_path / "a", records)), KNOWN, ALL)
    parts = [read_shard("train", str(write_records(tmp_path / f"b{i}", records[i::3])), KNOWN, ALL) for i in (2, 0, 1)]
    merged = Collected()
    for part in parts:
        merged.merge(part)
    assert merged.splits == whole.splits
    assert merged.anchors.to_dict(LABEL_MAP) == whole.anchors.to_dict(LABEL_MAP)
    one, many = whole.images.sorted_rows(["train"]), merged.images.sorted_rows(["train"])
    for column in ("keys_N", "content_hashes_N", "perceptual_hashes_N", "has_perceptual_hash_N"):
        assert getattr(one, column).tolist() == getattr(many, column).tolist()
    assert [place.record_key for place in merged.sample.places("sample:train")] == [
        place.record_key for place in whole.sample.places("sample:train")
    ]


def collect_all(make_example, write_records, tmp_path):
    """Return statistics of readable and damaged records with unknown classes, anchors and every kind of finding."""
    records = [make_example([BOX, BOX], [1, 9], name="doubled"), make_example([], name="empty"), b"no example"]
    (tmp_path / "cut").write_bytes(b"damaged")
    parts = [
        read_shard("train", str(write_records(tmp_path / "data", records)), KNOWN, ALL),
        read_shard("eval", str(tmp_path / "cut"), KNOWN, ALL),
    ]
    merged = Collected()
    for part in parts:
        merged.merge(part)
    return merged


def test_statistics_are_the_same_after_a_file(make_example, write_records, tmp_path):
    before = collect_all(make_example, write_records, tmp_path)
    data = encode_collected(before)
    after = decode_collected(data, "file", ALL.limits.model_input.anchor_generator)
    assert encode_collected(after) == data
    assert (after.splits, after.sample) == (before.splits, before.sample)
    assert after.anchors.to_dict(LABEL_MAP) == before.anchors.to_dict(LABEL_MAP)
    rows = [each.images.sorted_rows(["train", "eval"]) for each in (before, after)]
    assert [repr(rows[0].place(row)) for row in range(2)] == [repr(rows[1].place(row)) for row in range(2)]


@pytest.mark.reliability("hostile input", "validate")
@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_file_that_another_program_has_cut_is_refused(make_example, write_records, tmp_path, keep):
    data = encode_collected(collect_all(make_example, write_records, tmp_path))
    with pytest.raises(InputError, match=r"part-00000: cannot be read .*; validate again"):
        decode_collected(data[:keep], "part-00000", ALL.limits.model_input.anchor_generator)


@pytest.mark.reliability("hostile input", "validate")
def test_a_file_with_python_objects_is_refused():
    data = encode_collected(Collected()).replace(b'"arrays": []', b'"arrays": [["|O", [1]]]')
    with pytest.raises(InputError, match="an array of object"):
        decode_collected(data + bytes(8), "file", None)


def test_workers_exchange_files_in_a_folder_that_is_removed(collect, make_example, tmp_path, with_beam):
    collected = collect(train=[[make_example([BOX], name=f"img_{shard}")] for shard in range(3)])
    assert collected.splits["train"].num_examples == 3
    assert not (tmp_path / ".statistics").exists()
