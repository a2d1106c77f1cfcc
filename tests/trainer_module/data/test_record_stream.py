"""Records are named by a letter for their file and their number in it: `b2` is the third of the second file."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import InputReader
from detloom.trainer_module.data.class_lookup import ClassLookup
from detloom.trainer_module.data.record_stream import build_record_stream, elements_per_step, repeat_factors

UNSHUFFLED = InputReader(shuffle=False)
LABEL_MAP = LabelMap.from_names(["one", "two"])


@pytest.fixture
def files(tmp_path, write_records):
    """Three files of 3, 2 and 4 records."""
    counts = {"a": 3, "b": 2, "c": 4}
    names = {letter: [f"{letter}{i}".encode() for i in range(count)] for letter, count in counts.items()}
    return [str(write_records(tmp_path / letter, records)) for letter, records in names.items()]


def read(reader, files, count, *, first=0, seed=5, pipeline=0, num_pipelines=1):
    context = tf.distribute.InputContext(num_pipelines, pipeline, num_pipelines)
    stream = build_record_stream(reader, files, ClassLookup(LABEL_MAP), seed=seed, context=context, first_element=first)
    pairs = list(stream.take(count).as_numpy_iterator())
    assert [number for number, _ in pairs] == list(range(first, first + count))
    return [record.decode() for _, record in pairs]


def test_without_shuffling_each_epoch_reads_the_files_in_turn(files):
    assert read(UNSHUFFLED, files, 12) == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "c2", "c3", "a0", "b0", "c0"]


def test_each_epoch_reads_every_record_once_in_an_order_of_the_configured_seed_only(files):
    tf.random.set_seed(1)
    names = read(InputReader(), files, 27)
    epochs = [names[:9], names[9:18], names[18:]]
    assert [sorted(epoch) for epoch in epochs] == [["a0", "a1", "a2", "b0", "b1", "c0", "c1", "c2", "c3"]] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    tf.random.set_seed(2)
    assert read(InputReader(), files, 9) == epochs[0]
    assert read(InputReader(), files, 9, seed=6) != epochs[0]


@pytest.mark.parametrize(
    ("reader", "num_pipelines", "pipeline"),
    [
        (UNSHUFFLED, 1, 0),
        (InputReader(), 2, 1),
        (InputReader(shuffle_buffer_size=2), 4, 3),  # more pipelines than files
        (InputReader(sample_1_of_n_examples=2), 4, 0),
        (InputReader(sample_1_of_n_examples=2), 1, 0),
    ],
)
def test_a_stream_that_starts_later_equals_the_rest_of_a_whole_stream(files, reader, num_pipelines, pipeline):
    """An epoch of a pipeline has at most 9 elements, so 20 cross its borders."""
    where = {"pipeline": pipeline, "num_pipelines": num_pipelines}
    whole = read(reader, files, 20, **where)
    assert read(reader, files, 7, first=13, **where) == whole[13:]


def test_a_batch_mixes_as_many_files_as_in_the_object_detection_api(tmp_path, write_records):
    """There, 40.1 of 100 files share a batch of 64, on average, with 64 readers and blocks of 32."""
    files = [str(write_records(tmp_path / f"{i:02}", [f"{i:02}".encode()] * 100)) for i in range(100)]
    reader = InputReader(num_readers=64, read_block_length=32)
    names = read(reader, files, 2048)
    assert 38 <= np.mean([len(set(names[i : i + 64])) for i in range(0, 2048, 64)]) <= 48
    assert read(reader, files, 8, first=1500) == names[1500:1508]


def test_blocks_of_records_are_read_in_turn(files):
    reader = InputReader(shuffle=False, num_readers=2, read_block_length=2)
    assert read(reader, files, 9) == ["a0", "a1", "b0", "b1", "a2", "c0", "c1", "c2", "c3"]


def test_a_stream_that_starts_later_does_not_read_files_that_it_has_passed(files):
    """With one reader and no shuffling, the first file's three records are the first three."""
    reader = InputReader(shuffle=False, num_readers=1)
    assert read(reader, files, 9, first=3) == ["b0", "b1", "c0", "c1", "c2", "c3", "a0", "a1", "a2"]
    first = bytearray(Path(files[0]).read_bytes())
    first[30] ^= 1  # in the second of three records of 18 bytes
    Path(files[0]).write_bytes(first)
    assert read(reader, files, 6, first=3) == ["b0", "b1", "c0", "c1", "c2", "c3"]


def test_pipelines_read_different_files(files):
    first = read(InputReader(), files, 7, pipeline=0, num_pipelines=2)
    assert sorted(first) == ["a0", "a1", "a2", "c0", "c1", "c2", "c3"]
    assert sorted(read(InputReader(), files, 2, pipeline=1, num_pipelines=2)) == ["b0", "b1"]


def test_with_fewer_files_than_pipelines_each_reads_some_records_and_a_warning_is_logged(files, caplog):
    with caplog.at_level(logging.WARNING, "detloom"):
        parts = [read(InputReader(), files, count, pipeline=i, num_pipelines=4) for i, count in enumerate((3, 2, 2, 2))]
    assert sorted(name for part in parts for name in part) == ["a0", "a1", "a2", "b0", "b1", "c0", "c1", "c2", "c3"]
    assert "4 workers read 3 training files" in caplog.text


def test_the_shuffle_buffer_holds_no_more_bytes_than_allowed(tmp_path, write_records, caplog):
    """10 records of 100 bytes: 250 bytes hold two, so the first of an epoch is one of its first two."""
    path = str(write_records(tmp_path / "data", [f"{i:0100}".encode() for i in range(10)]))
    with caplog.at_level(logging.INFO, "detloom"):
        names = read(InputReader(shuffle_buffer_bytes=250), [path], 100)
    assert {int(name) for name in names[::10]} == {0, 1}
    assert "Shuffle buffer: 2 records instead of 2048" in caplog.text


def test_the_rarest_class_of_an_image_decides_its_repetitions():
    """Share 0.5; class 1 is in all of 8 images, 2 in two of them: sqrt(0.5 / 0.25) = 1.414."""
    images = [np.array(ids) for ids in [[1], [1, 2], [1], [1, 2], [1], [1], [1], [1]]]
    expected = [1, 2**0.5, 1, 2**0.5, 1, 1, 1, 1]
    np.testing.assert_allclose(repeat_factors(images, 0.5), expected)
    np.testing.assert_array_equal(repeat_factors([np.array([], int)], 0.5), [1.0])


@pytest.fixture
def unbalanced(tmp_path, make_example, write_records):
    """Two files with 8 images of class 1; in the second and the seventh is class 2 too."""
    box = (0.0, 0.0, 0.5, 0.5)
    examples = [make_example([box] * 2, [1, 2 if i in (1, 6) else 1], name=f"{i}") for i in range(8)]
    return [str(write_records(tmp_path / f"{i}", examples[4 * i : 4 * i + 4])) for i in range(2)]


def names_of(records):
    parsed = (tf.train.Example.FromString(record) for record in records)
    return [example.features.feature["image/source_id"].bytes_list.value[0].decode() for example in parsed]


def balanced(files, count, first=0, **changes):
    reader = InputReader(class_balance=0.5, **changes)
    stream = build_record_stream(
        reader, files, ClassLookup(LABEL_MAP), seed=3, context=tf.distribute.InputContext(), first_element=first
    )
    return names_of(record for _, record in stream.take(count).as_numpy_iterator())


def test_rare_classes_are_repeated_at_the_expected_rate_over_the_epochs(unbalanced):
    """The two rare images are read 5 * 1.414 = 7.07 times in 5 epochs, 7 or 8 depending on the phase, the others 5."""
    counts = Counter(balanced(unbalanced, 44, shuffle=False))
    assert {name: counts[name] for name in "023457"} == dict.fromkeys("023457", 5)
    assert {counts["1"], counts["6"]} <= {7, 8}


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_balanced_stream_that_starts_later_equals_the_rest_of_a_whole_stream(unbalanced, shuffle):
    whole = balanced(unbalanced, 50, shuffle=shuffle)
    for first in (9, 40):
        assert balanced(unbalanced, 5, first, shuffle=shuffle) == whole[first : first + 5]


def test_files_without_records_are_refused(tmp_path, write_records, files):
    empty = str(write_records(tmp_path / "empty" / "data", []))
    with pytest.raises(InputError, match=r"empty: no record for worker 0 of 1"):
        read(UNSHUFFLED, [empty], 1)
    with pytest.raises(InputError, match=r"no record for worker 1 of 2"):
        read(UNSHUFFLED, [files[0], empty], 1, pipeline=1, num_pipelines=2)
    with pytest.raises(InputError, match=r"no record for worker 9 of 10; train with fewer workers"):
        read(UNSHUFFLED, files, 1, pipeline=9, num_pipelines=10)


def test_a_batch_that_cannot_be_divided_among_the_workers_is_refused(tiny_config):
    assert elements_per_step(tiny_config.train, tf.distribute.InputContext(2, 0, 2)) == 1
    with pytest.raises(InputError, match=r"train\.batch_size: got 2\b.*3, the number of workers"):
        elements_per_step(tiny_config.train, tf.distribute.InputContext(3, 0, 3))
