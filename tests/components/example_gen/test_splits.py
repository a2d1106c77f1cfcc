"""Splits by ratio: stable, near the ratios, groups together, classes mixed alike."""

from collections import Counter, defaultdict

import pytest

from detloom.components.example_gen.splits import hash_fraction, split_by_hash, split_stratified

RATIOS = {"train": 0.8, "eval": 0.1, "test": 0.1}


def test_the_fraction_of_a_name_never_changes():
    # sha256("0\\0img_1") begins with febd5f4061ae; over 2^48
    assert hash_fraction("img_1", 0) == pytest.approx(0.995077088564, abs=1e-12)
    assert hash_fraction("img_1", 1) != hash_fraction("img_1", 0)


def test_ratios_are_met_nearly():
    counts = Counter(split_by_hash(f"img_{index}", RATIOS, seed=0) for index in range(20_000))
    # standard deviation of a share of 0.1 among 20,000: 0.0021
    assert counts["eval"] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts["test"] / 20_000 == pytest.approx(0.1, abs=0.01)


def test_every_fraction_has_a_split_though_ratios_add_up_to_less_than_one_by_rounding():
    thirds = {"a": 0.1, "b": 0.2, "c": 0.7 - 1e-9}
    assert {split_by_hash(str(index), thirds, seed=3) for index in range(200)} == {"a", "b", "c"}


def test_each_stratum_is_divided_by_the_ratios():
    groups = [(f"{stratum}-{index}", stratum, 1) for stratum in range(3) for index in range(50)]
    found = defaultdict(Counter)
    for (_, stratum, _), (_, split) in zip(groups, split_stratified(groups, RATIOS), strict=True):
        found[stratum][split] += 1
    assert all(counts == {"train": 40, "eval": 5, "test": 5} for counts in found.values())


def test_strata_of_one_group_do_not_all_go_to_the_largest_split():
    groups = [(str(stratum), stratum, 1) for stratum in range(40)]
    counts = Counter(split for _, split in split_stratified(groups, RATIOS))
    assert counts == {"train": 32, "eval": 4, "test": 4}


def test_large_groups_are_weighed():
    groups = [("big", 0, 80), *((str(index), 0, 1) for index in range(20))]
    splits = dict(split_stratified(groups, RATIOS))
    assert splits["big"] == "train"
    assert Counter(splits.values())["train"] == 1
