import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.records import (
    ExampleFeatures,
    count_records,
    list_shards,
    read_records,
    sampled_mean_bytes,
    scan_classes,
)


def test_compressed_shards_are_read(tmp_path, make_example):
    path = str(tmp_path / "data.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        writer.write(make_example([(0, 0, 1, 1)]))
    assert len(list(read_records([path]))) == 1


def test_a_pattern_without_files_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\*: no TFRecord file"):
        list_shards([str(tmp_path / "none*")])


def test_records_are_counted_whether_compressed_or_not(tmp_path, make_example, write_records):
    plain = [write_records(tmp_path / str(count), [make_example()] * count) for count in (3, 0, 1)]
    assert count_records([str(path) for path in plain]) == (3, 0, 1)
    path = str(tmp_path / "data.gz")
    with tf.io.TFRecordWriter(path, "GZIP") as writer:
        for _ in range(2):
            writer.write(make_example())
    assert count_records([path]) == (2,)


@pytest.mark.reliability("torn file", "train")
def test_a_truncated_file_is_named_when_it_is_counted(tmp_path, make_example, write_records):
    path = write_records(tmp_path / "data", [make_example()] * 2)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"data: record 1 "):
        count_records([str(path)])


def test_a_file_is_counted_again_only_if_it_has_changed(tmp_path, make_example, write_records, caplog):
    path = write_records(tmp_path / "data", [make_example()] * 2)
    with caplog.at_level("INFO", "detloom"):
        assert count_records([str(path)]) == count_records([str(path)]) == (2,)
        assert caplog.text.count("Counting records (files: 1).") == 1
        write_records(path, [make_example()] * 3)
        assert count_records([str(path)]) == (3,)


def test_the_mean_size_is_that_of_the_records(tmp_path, write_records):
    paths = [str(write_records(tmp_path / str(size), [b"x" * size] * 3)) for size in (10, 30)]
    assert sampled_mean_bytes(paths) == 20


def test_the_classes_of_each_image_are_found_without_crowds(tmp_path, make_example, write_records):
    box = (0.0, 0.0, 0.5, 0.5)
    first = [make_example([box] * 3, [2, 1, 2]), make_example([])]
    second = [make_example([box] * 2, [3, 4], crowds=[1, 0])]
    files = [str(write_records(tmp_path / str(i), part)) for i, part in enumerate((first, second))]
    scan = scan_classes(files, ClassLookup(LabelMap.from_names("abcd")))
    assert scan.num_records == (2, 1)
    assert [ids.tolist() for ids in scan.class_ids] == [[1, 2], [], [4]]


def test_the_record_key_is_source_id_or_file_name_or_empty(make_example):
    assert ExampleFeatures(make_example(name="img_7")).record_key == "img_7"
    example = tf.train.Example.FromString(make_example(name=""))
    assert ExampleFeatures(example.SerializeToString()).record_key == ""
    example.features.feature["image/filename"].bytes_list.value.append(b"a.jpg")
    assert ExampleFeatures(example.SerializeToString()).record_key == "a.jpg"
