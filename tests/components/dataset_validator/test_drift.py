"""Distances of distributions, and what becomes of an earlier report."""

import json
import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from detloom.components.dataset_validator.drift import (
    PreviousReport,
    chance_distance,
    describe_drift,
    jensen_shannon_distance,
    read_previous_report,
)
from detloom.schemas.errors import InputError


def make_split(classes, sizes):
    return {"boxes_by_class": classes, "distributions": {"box_areas_rel": {"bins": ["a", "b"], "counts": sizes}}}


def test_equal_shares_have_no_distance_whatever_the_counts():
    assert jensen_shannon_distance([1, 3], [10, 30]) == 0.0


def test_shares_with_nothing_in_common_have_distance_one():
    assert jensen_shannon_distance([5, 0], [0, 7]) == 1.0


def test_the_distance_is_the_root_of_the_divergence_to_base_two():
    # P = (1, 0), Q = (1/2, 1/2), M = (3/4, 1/4): KL(P, M) = log2(4/3) = 0.41504,
    # KL(Q, M) = log2(2/3) / 2 + log2(2) / 2 = 0.20752; the root of half of their sum is 0.55792.
    assert jensen_shannon_distance([4, 0], [3, 3]) == pytest.approx(0.55792, abs=1e-5)


def test_the_distance_is_that_of_scipy_and_symmetric():
    random = np.random.default_rng(0)
    for _ in range(20):
        p, q = random.integers(0, 20, 8).tolist(), random.integers(0, 20, 8).tolist()
        assert jensen_shannon_distance(p, q) == pytest.approx(jensenshannon(p, q, base=2), abs=1e-9)
        assert jensen_shannon_distance(p, q) == pytest.approx(jensen_shannon_distance(q, p), abs=1e-12)


def test_nothing_has_no_distance():
    assert jensen_shannon_distance([0, 0], [1, 2]) is None
    assert chance_distance([1, 2], [0, 0]) is None


def test_chance_is_what_two_draws_from_one_distribution_give():
    random = np.random.default_rng(1)
    draws = [random.multinomial(1000, [0.1] * 10).tolist() for _ in range(400)]
    measured = [jensen_shannon_distance(p, q) for p, q in zip(draws[::2], draws[1::2], strict=True)]
    # (10 - 1) / (8 ln 2) * (1/1000 + 1/1000) = 0.003246, its root 0.05697
    assert chance_distance(draws[0], draws[1]) == pytest.approx(0.05697, abs=1e-5)
    assert math.sqrt(np.mean(np.square(measured))) == pytest.approx(0.057, abs=0.003)


def test_drift_is_described_for_splits_that_both_reports_have():
    now = {"train": make_split({"cat": 1, "dog": 1}, [2, 0]), "new": make_split({"cat": 1}, [1, 0])}
    before = PreviousReport(3, {"train": make_split({"cat": 4}, [0, 4]), "old": make_split({"cat": 1}, [1, 0])})
    drift = describe_drift(now, "train", before)
    assert list(drift["splits"]) == ["train"]
    assert drift["splits"]["train"]["size_distance"] == 1.0
    assert drift["classes"] == [
        {"name": "cat", "share": 0.5, "previous_share": 1.0},
        {"name": "dog", "share": 0.5, "previous_share": 0.0},
    ]
    assert drift["sizes"] == {"bins": ["a", "b"], "shares": [1.0, 0.0], "previous_shares": [0.0, 1.0]}
    assert (drift["previous_span"], drift["reason"]) == (3, "")


def test_a_class_that_is_gone_is_a_drift():
    now, before = make_split({"cat": 1}, [1, 0]), make_split({"cat": 1, "dog": 1}, [1, 0])
    drift = describe_drift({"train": now}, "train", PreviousReport(1, {"train": before}))
    assert [each["name"] for each in drift["classes"]] == ["cat", "dog"]
    assert drift["splits"]["train"]["class_distance"] > 0.5


def test_without_an_earlier_report_the_reason_is_told():
    drift = describe_drift({}, "train", "no earlier span")
    assert drift == {"previous_span": None, "reason": "no earlier span", "splits": {}, "classes": [], "sizes": None}


def test_a_report_is_found_by_its_folder_or_its_name(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"format": 2, "span": 4, "splits": {}}))
    assert read_previous_report(tmp_path) == read_previous_report(path) == PreviousReport(4, {})


def test_a_report_of_another_version_is_not_compared(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"splits": {"train": {}}}))
    assert read_previous_report(tmp_path) == "the earlier report is of another version"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"splits": 3}',
        '{"format": 2, "splits": {"train": {}}}',
        '{"format": 2, "splits": {"train": 1}}',
    ],
)
def test_what_is_no_report_is_refused_by_name(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=r"report\.json: "):
        read_previous_report(tmp_path)


def test_a_missing_report_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.json: the earlier report cannot be read"):
        read_previous_report(tmp_path / "nowhere.json")
