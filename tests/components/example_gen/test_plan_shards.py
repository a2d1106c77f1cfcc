"""What is read and how it is cut: classes, duplicates, shards."""

import pytest

from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.example_gen.plan_shards import plan_shards, read_data_set
from detloom.components.example_gen.sources.source_record import SourceRecord, SourceSplit
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reason


def voc_params(**changes):
    return ExampleGenParams(**{"data_format": "voc", "splits": {"train": "train", "eval": "val"}, **changes})


def make_split(folder, sizes):
    (folder / "images").mkdir(exist_ok=True)
    records = []
    for index, size in enumerate(sizes):
        (folder / f"images/{index}.jpg").write_bytes(bytes(size))
        records.append(SourceRecord("train", str(index), f"images/{index}.jpg", "a.json", None, ()))
    return SourceSplit("train", "a.json", records=records)


def test_shards_share_the_bytes_and_hold_every_record_once(tmp_path):
    split = make_split(tmp_path, [100] * 64)
    shards = plan_shards(tmp_path, split, max_bytes=1600)  # 6400 bytes in all
    assert [len(shard.records) for shard in shards] == [16, 16, 16, 16]
    assert [shard.file_name for shard in shards][:2] == ["data_tfrecord-00000-of-00004", "data_tfrecord-00001-of-00004"]
    assert sorted(record.record_key for shard in shards for record in shard.records) == sorted(map(str, range(64)))


def test_a_small_split_is_cut_for_two_workers_but_a_tiny_one_is_not(tmp_path):
    assert len(plan_shards(tmp_path, make_split(tmp_path, [10] * 70), 2**27)) == 3  # ceil(70 / 32)
    assert len(plan_shards(tmp_path, make_split(tmp_path, [10] * 20), 2**27)) == 1


def test_the_plan_does_not_depend_on_the_order_of_the_source(tmp_path):
    split = make_split(tmp_path, range(40))
    turned = SourceSplit("train", "a.json", records=split.records[::-1])
    assert plan_shards(tmp_path, split, 200) == plan_shards(tmp_path, turned, 200)


def test_missing_images_are_planned_as_empty_ones(tmp_path):
    records = [SourceRecord("train", "1", "gone.jpg", "a.json", None, ())]
    (shard,) = plan_shards(tmp_path, SourceSplit("train", "a.json", records=records), 200)
    assert shard.records == tuple(records)


def test_voc_classes_are_the_sorted_names_over_all_splits(make_voc):
    folder = make_voc({"train": ["a"], "val": ["b"]}, {"a": [("zebra", 1, 1, 9, 9)], "b": [("ant", 1, 1, 9, 9)]})
    _, label_map = read_data_set(folder, voc_params())
    assert label_map.names_by_id == ((1, "ant"), (2, "zebra"))


def test_coco_classes_keep_their_category_ids(make_coco):
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], [])})
    _, label_map = read_data_set(folder, ExampleGenParams(data_format="coco", splits={"train": "t.json"}))
    assert label_map.names_by_id == ((3, "cat"), (7, "dog"))


def test_coco_category_id_zero_says_what_to_do(make_coco):
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], [])}, categories=[{"id": 0, "name": "cat"}])
    with pytest.raises(InputError, match=r"t\.json.*got id 0.*name the classes in class_names"):
        read_data_set(folder, ExampleGenParams(data_format="coco", splits={"train": "t.json"}))


def test_given_class_names_fix_the_ids(make_voc):
    folder = make_voc({"train": ["a"], "val": ["b"]})
    _, label_map = read_data_set(folder, voc_params(class_names=("dog", "cat")))
    assert label_map.names_by_id == ((1, "dog"), (2, "cat"))


def test_an_unknown_class_fails_with_class_file_and_allowed_names(make_voc):
    folder = make_voc({"train": ["a"], "val": ["b"]}, {"b": [("cow", 1, 1, 9, 9)]})
    with pytest.raises(InputError, match=r"Annotations/b\.xml: record 'b' has class 'cow', allowed: \['cat', 'dog'\]"):
        read_data_set(folder, voc_params(class_names=("dog", "cat")))
    read_data_set(folder, voc_params(class_names=("dog", "cat"), unknown_class="reject"))


def coco_params(**changes):
    return ExampleGenParams(**{"data_format": "coco", "splits": {"train": "t.json"}, **changes})


def test_a_category_id_that_is_not_there_fails_with_file_annotation_and_allowed_ids(make_coco):
    annotation = {"image_id": 1, "category_id": 99, "bbox": [1, 2, 3, 4]}
    folder = make_coco({"t.json": ([{"id": 1, "file_name": "a.jpg"}], [annotation])})
    message = r"coco/t\.json: annotations\[0\]: category_id 99 is not among the categories, allowed: \[3, 7\]"
    with pytest.raises(InputError, match=message):
        read_data_set(folder, coco_params())
    (split,), _ = read_data_set(folder, coco_params(unknown_class="reject"))
    assert [(reject.reason, reject.scope) for reject in split.rejects] == [(Reason.UNKNOWN_CLASS, "box")]


def test_of_coco_images_with_one_id_none_is_kept(make_coco):
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}, {"id": 2, "file_name": "c.jpg"}]
    annotations = [{"image_id": image_id, "category_id": 3, "bbox": [1, 2, 3, 4]} for image_id in (1, 1, 2)]
    folder = make_coco({"t.json": (images, annotations)})
    (split,), _ = read_data_set(folder, coco_params())
    assert [record.image_path for record in split.records] == ["images/c.jpg"]
    assert [(reject.reason, reject.scope, reject.record_key) for reject in split.rejects] == [
        (Reason.DUPLICATE_ID, "record", "1"),
        (Reason.DUPLICATE_ID, "record", "1"),
    ]
    assert (split.num_boxes_in, split.num_boxes_quarantined) == (3, 2)


def test_a_listed_name_that_stands_twice_is_kept_once(make_voc):
    folder = make_voc({"train": ["a", "b", "a"]})
    (split,), _ = read_data_set(folder, voc_params(splits={"train": "train"}))
    assert [record.record_key for record in split.records] == ["a", "b"]
    assert [(reject.reason, reject.record_key) for reject in split.rejects] == [(Reason.DUPLICATE_ID, "a")]
    assert (split.num_boxes_in, split.num_boxes_quarantined) == (3, 1)


def test_a_refused_record_does_not_cost_another_its_image(make_coco):
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": "1", "file_name": "b.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    folder = make_coco({"t.json": (images, [])})  # 1 and "1" are two ids but one record key
    (split,), _ = read_data_set(folder, coco_params())
    assert [record.image_path for record in split.records] == ["images/a.jpg", "images/b.jpg"]
    assert [(reject.reason, reject.record_key) for reject in split.rejects] == [(Reason.DUPLICATE_ID, "1")]


def test_an_image_of_two_splits_is_quarantined_in_the_second(make_voc):
    folder = make_voc({"train": ["a", "b"], "val": ["b", "c"]})
    (train, evaluation), _ = read_data_set(folder, voc_params())
    assert (train.rejects, [record.record_key for record in evaluation.records]) == ([], ["c"])
    (reject,) = evaluation.rejects
    assert (reject.reason, reject.record_key) == (Reason.DUPLICATE_IMAGE, "b")
    assert "record 'b' of split 'train'" in reject.detail


def test_equal_ids_of_different_images_in_two_files_are_no_duplicates(make_coco):
    folder = make_coco(
        {"t.json": ([{"id": 1, "file_name": "a.jpg"}], []), "e.json": ([{"id": 1, "file_name": "b.jpg"}], [])}
    )
    params = ExampleGenParams(data_format="coco", splits={"train": "t.json", "eval": "e.json"})
    splits, _ = read_data_set(folder, params)
    assert [split.rejects for split in splits] == [[], []]


def test_two_splits_of_one_source_share_its_images_on_purpose(make_voc):
    folder = make_voc({"train": ["a"], "val": ["b"]})
    splits, _ = read_data_set(folder, voc_params(splits={"train": "train", "eval": "val", "test": "val"}))
    assert [len(split.records) for split in splits] == [1, 1, 1]


def test_a_split_that_lists_nothing_is_refused_with_its_file(make_coco):
    folder = make_coco({"t.json": ([], [])})
    with pytest.raises(InputError, match=r"t\.json: split 'train' lists no image"):
        read_data_set(folder, ExampleGenParams(data_format="coco", splits={"train": "t.json"}))
