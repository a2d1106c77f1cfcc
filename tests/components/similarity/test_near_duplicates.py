import tracemalloc

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from detloom.components.similarity import near_duplicates
from detloom.components.similarity.near_duplicates import (
    MAX_GROUPS,
    MAX_MEMBERS,
    count_bits,
    find_equal,
    find_near_duplicates,
    group_near_duplicates,
)

A, B, C = 0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210, 0x0F0F_0F0F_F0F0_F0F0  # far from one another
TRAIN, EVAL, TEST = 0, 1, 2


def flip(number, *bits):
    for bit in bits:
        number ^= 1 << bit
    return number


def find(hashes, splits=None, max_distance=5, **options):
    splits = np.array(splits or [0] * len(hashes))
    return find_near_duplicates(np.array(hashes, np.uint64), splits, max_distance=max_distance, **options)


def members(report):
    return [group.members for group in report.groups]


def test_bits_are_counted():
    values = np.array([0, 1, 0x8000_0000_0000_0000, A, 2**64 - 1], np.uint64)
    assert count_bits(values).tolist() == [0, 1, 1, 32, 64]


@pytest.mark.parametrize(
    ("hashes", "max_distance", "splits", "expected"),
    [
        ([A, B, flip(A, 0, 31, 63)], 3, None, [(0, 2)]),
        ([A, flip(A, 0, 20, 40, 63)], 3, None, []),
        ([A, flip(A, 5), A], 0, None, [(0, 2)]),
        ([A, flip(A, 1, 2, 3), flip(A, 1, 2, 3, 4, 5, 6)], 3, None, [(0, 1, 2)]),  # connected through the second
        ([A] * 5, 5, [TRAIN, TRAIN, TRAIN, EVAL, TEST], [(0, 3, 4, 1, 2)]),  # one of each split first
    ],
)
def test_images_within_the_distance_are_a_group(hashes, max_distance, splits, expected):
    assert members(find(hashes, splits, max_distance=max_distance)) == expected


def test_images_with_a_duplicate_in_another_split_are_counted():
    report = find([A, A, B, flip(A, 7)], [TRAIN, EVAL, EVAL, EVAL])
    assert report.num_across_by_split == {TRAIN: 1, EVAL: 2}


def test_a_connection_through_a_third_image_does_not_count_as_across():
    # eval is near the first image of train, but 6 bits from the second, which alone would not be counted.
    report = find([flip(A, 1, 2, 3), flip(A, 1, 2, 3, 4, 5, 6), A], [TRAIN, TRAIN, EVAL], max_distance=3)
    assert report.num_across_by_split == {TRAIN: 1, EVAL: 1}


def test_with_a_train_split_only_duplicates_of_it_count_as_across():
    report = find([A, A, A, B, B], [TRAIN, EVAL, TEST, EVAL, TEST], train_index=TRAIN)
    assert report.num_across_by_split == {EVAL: 1, TEST: 1}
    assert [set(group.size_by_split) for group in report.groups] == [{TRAIN, EVAL, TEST}, {EVAL, TEST}]
    assert members(report)[0] == (0, 1, 2)  # the one with train comes first


def test_surplus_images_are_all_but_the_first_of_a_group_in_a_split():
    report = find([A, A, A, A, B, B], [TRAIN, TRAIN, TRAIN, EVAL, EVAL, EVAL])
    assert report.num_within_by_split == {TRAIN: 2, EVAL: 1}


def test_flat_images_are_skipped_and_counted():
    flat = [0, 0b111, 2**64 - 1]  # no bit set, as many as the distance, all bits set
    report = find([*flat, *flat, A], max_distance=3)
    assert (report.num_flat, report.num_compared, report.num_groups) == (6, 1, 0)


def test_groups_across_splits_come_first_then_larger_groups():
    report = find([A, A, A, B, B, C, C], [TRAIN, TRAIN, TRAIN, TRAIN, EVAL, EVAL, EVAL])
    assert members(report) == [(3, 4), (0, 1, 2), (5, 6)]
    assert [group.size_by_split for group in report.groups] == [{TRAIN: 1, EVAL: 1}, {TRAIN: 3}, {EVAL: 2}]


def around(rng, centres, count, num_flips):
    """Return hashes of which each differs from one of the centres in up to `num_flips` bits."""
    hashes = centres[rng.integers(0, len(centres), count)]
    for _ in range(num_flips):
        hashes = hashes ^ (np.uint64(1) << rng.integers(0, 64, count).astype(np.uint64))
    return hashes


def assert_equal_to_all_pairs(hashes, splits, max_distance):
    is_near = count_bits(hashes[:, np.newaxis] ^ hashes[np.newaxis]) <= max_distance
    _, groups = connected_components(is_near, directed=False)
    differs = splits[:, np.newaxis] != splits[np.newaxis]
    across = {split: int((is_near & differs).any(axis=1)[splits == split].sum()) for split in np.unique(splits)}
    report = find_near_duplicates(hashes, splits, max_distance=max_distance)
    assert (report.is_complete, report.num_flat) == (True, 0)
    assert report.num_groups == int((np.bincount(groups) > 1).sum())
    assert report.num_across_by_split == {split: count for split, count in across.items() if count}
    _, firsts = np.unique(groups, return_index=True)
    assert group_near_duplicates(hashes, max_distance=max_distance).tolist() == firsts[groups].tolist()


@pytest.mark.parametrize(
    ("num_centres", "num_flips", "max_distance"), [(2, 3, 1), (2, 6, 2), (20, 6, 5), (20, 6, 10), (150, 9, 7)]
)
def test_groups_match_a_comparison_of_all_pairs(num_centres, num_flips, max_distance):
    # Many pairs, chains and buckets of hundreds of hashes around few centres; others far from them.
    rng = np.random.default_rng(num_flips)
    near = around(rng, rng.integers(0, 2**63, num_centres, dtype=np.uint64), 500, num_flips)
    hashes = rng.permutation(np.concatenate([near, rng.integers(0, 2**63, 60, dtype=np.uint64)]))
    splits = np.where(rng.random(len(hashes)) < 0.02, EVAL, rng.choice([TRAIN, TEST], len(hashes)))
    assert_equal_to_all_pairs(hashes, splits, max_distance)


def test_edges_are_merged_in_parts(monkeypatch):
    monkeypatch.setattr(near_duplicates, "_MAX_EDGES", 10)
    rng = np.random.default_rng(0)
    hashes = around(rng, rng.integers(0, 2**63, 30, dtype=np.uint64), 300, 4)
    assert_equal_to_all_pairs(hashes, rng.integers(0, 3, 300), 5)


def test_a_bucket_of_as_many_hashes_as_allowed_is_compared_pairwise(monkeypatch, caplog):
    # 5 hashes agree in 59 bits and differ from one another in 2 bits: all are in most buckets.
    hashes = [flip(A, bit) for bit in (0, 10, 20, 30, 40)]
    monkeypatch.setattr(near_duplicates, "_NUM_NEIGHBOURS", 0)
    monkeypatch.setattr(near_duplicates, "MAX_BUCKET", 5)
    report = find(hashes, max_distance=2)
    assert (report.is_complete, report.num_groups, report.groups[0].size) == (True, 1, 5)
    assert len(set(group_near_duplicates(np.array(hashes, np.uint64), max_distance=2))) == 1
    assert caplog.messages == []
    monkeypatch.setattr(near_duplicates, "MAX_BUCKET", 4)
    assert not find(hashes, max_distance=2).is_complete
    group_near_duplicates(np.array(hashes, np.uint64), max_distance=2)
    assert [message for message in caplog.messages if "group_by" in message]


def test_more_images_around_one_centre_than_are_compared_pairwise_are_one_group(monkeypatch):
    monkeypatch.setattr(near_duplicates, "MAX_BUCKET", 100)
    hashes = around(np.random.default_rng(0), np.array([A], np.uint64), 5000, 4)
    report = find_near_duplicates(hashes, np.arange(5000) % 2, max_distance=5)
    assert (report.is_complete, report.num_groups, report.groups[0].size) == (False, 1, 5000)
    assert 4900 < sum(report.num_across_by_split.values()) <= 5000  # a lower bound


def test_a_hundred_thousand_equal_images_need_bounded_memory():
    hashes, splits = np.full(100_000, A, np.uint64), np.arange(100_000) % 2
    tracemalloc.start()
    report = find_near_duplicates(hashes, splits, max_distance=5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (report.num_groups, report.groups[0].size, len(report.groups[0].members)) == (1, 100_000, MAX_MEMBERS)
    assert peak < 64 << 20


def test_groups_beyond_the_listed_ones_are_counted():
    rng = np.random.default_rng(0)
    hashes = np.repeat(rng.integers(0, 2**63, MAX_GROUPS + 10, dtype=np.uint64), 2)
    report = find_near_duplicates(hashes, np.zeros(len(hashes), np.int64), max_distance=5)
    assert (report.num_groups, len(report.groups)) == (MAX_GROUPS + 10, MAX_GROUPS)


def test_equal_content_is_found_for_any_hash():
    report = find_equal(np.array([0, 5, 0, 5, 7], np.uint64), np.array([TRAIN, TRAIN, EVAL, TRAIN, EVAL]))
    assert members(report) == [(0, 2), (1, 3)]
    assert (report.num_across_by_split, report.num_within_by_split) == ({TRAIN: 1, EVAL: 1}, {TRAIN: 1})


@pytest.mark.parametrize("number", [0, 1])
def test_fewer_than_two_images_are_not_a_group(number):
    assert find([A] * number).num_groups == 0
    assert find_equal(np.array([A] * number, np.uint64), np.zeros(number, np.int64)).num_groups == 0
