"""The table of images: order, places, bounds."""

import pickle

import pytest

from detloom.components.dataset_validator.statistics.duplicates import ImageRows, RowBuilder
from detloom.components.dataset_validator.statistics.image_sample import RecordPlace


def make_part(split, path, *rows):
    builder = RowBuilder(split, path)
    for number, (key, content_hash, perceptual_hash) in enumerate(rows):
        builder.add(RecordPlace(split, key, path, number, 100 * number), content_hash, perceptual_hash)
    return builder.build()


def test_rows_are_sorted_by_split_and_key():
    parts = [
        make_part("train", "/t/1", ("b", 2, 20), ("d", 4, None)),
        make_part("train", "/t/0", ("c", 3, 30), ("a", 1, 10)),
        make_part("eval", "/e/0", ("a", 9, 90)),
    ]
    for order in (parts, parts[::-1]):
        rows = ImageRows.of_shards(order, ["train", "eval"])
        assert rows.rows_N["content_hash"].tolist() == [1, 2, 3, 4, 9]
        assert rows.rows_N["perceptual_hash"].tolist() == [10, 20, 30, 0, 90]
        assert rows.rows_N["has_perceptual_hash"].tolist() == [True, True, True, False, True]
        assert rows.split_indices_N.tolist() == [0, 0, 0, 0, 1]
        assert rows.place(1) == RecordPlace("train", "b", "/t/1", 0, 0)
        assert rows.place(3) == RecordPlace("train", "d", "/t/1", 1, 100)


def test_hashes_keep_all_64_bits_and_keys_are_cut_or_replaced():
    largest = 2**64 - 1
    part = make_part("train", "/t", ("é" * 1000, largest, largest), ("\ud800", 2, 2))
    rows = ImageRows.of_shards([part], ["train"])
    assert rows.rows_N[["content_hash", "perceptual_hash"]].tolist() == [(2, 2), (largest, largest)]
    assert [rows.place(row).record_key for row in (0, 1)] == ["?", "é" * 60]


@pytest.mark.parametrize("parts", [[], [make_part("train", "/t")]])
def test_an_empty_table_has_no_rows(parts):
    rows = ImageRows.of_shards(parts, ["train"])
    assert (len(rows.rows_N), len(rows.split_indices_N), len(rows.path_indices_N)) == (0, 0, 0)


def test_a_row_costs_less_than_a_hundred_bytes():
    part = make_part("train", "/t", *((f"images/{number:012d}", number, number) for number in range(1000)))
    assert len(pickle.dumps(part)) < 100 * 1000
