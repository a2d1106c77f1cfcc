"""Distances between distributions, and reports of earlier spans."""

import json
import math

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from detloom.components.dataset_validator.drift import (
    PreviousReport,
    chance_distance,
    describe_drift,
    find_earlier_report,
    jensen_shannon_distance,
    keep_report,
    read_previous_report,
)
from detloom.schemas.errors import InputError


def make_split(classes, sizes):
    return {"boxes_by_class": classes, "distributions": {"box_areas_rel": {"bins": ["a", "b"], "counts": sizes}}}


@pytest.mark.parametrize(
    ("counts", "other", "distance"),
    [
        ([1, 3], [10, 30], 0.0),
        ([5, 0], [0, 7], 1.0),
        # P = (1, 0), Q = (1/2, 1/2), M = (3/4, 1/4): KL(P, M) = log2(4/3) = 0.41504,
        # KL(Q, M) = log2(2/3) / 2 + log2(2) / 2 = 0.20752; the root of half of their sum is 0.55792.
        ([4, 0], [3, 3], pytest.approx(0.55792, abs=1e-5)),
        ([0, 0], [1, 2], None),
    ],
)
def test_the_distance_matches_values_by_hand(counts, other, distance):
    assert jensen_shannon_distance(counts, other) == jensen_shannon_distance(other, counts) == distance


def test_the_distance_matches_scipy():
    random = np.random.default_rng(0)
    for _ in range(20):
        p, q = random.integers(0, 20, 8).tolist(), random.integers(0, 20, 8).tolist()
        assert jensen_shannon_distance(p, q) == pytest.approx(jensenshannon(p, q, base=2), abs=1e-9)


def test_the_chance_distance_matches_simulated_samples():
    random = np.random.default_rng(1)
    draws = [random.multinomial(1000, [0.1] * 10).tolist() for _ in range(200)]
    measured = [jensen_shannon_distance(p, q) for p, q in zip(draws[::2], draws[1::2], strict=True)]
    # (10 - 1) / (8 ln 2) * (1/1000 + 1/1000) = 0.003246, its root 0.05697
    assert chance_distance(draws[0], draws[1]) == pytest.approx(0.05697, abs=1e-5)
    assert math.sqrt(np.mean(np.square(measured))) == pytest.approx(0.057, abs=0.003)
    assert chance_distance([1, 2], [0, 0]) is None


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


def test_a_class_that_disappeared_and_other_bins_are_compared():
    now, before = make_split({"cat": 1}, [1, 0]), make_split({"cat": 1, "dog": 1}, [1, 0])
    drift = describe_drift({"train": now}, "train", PreviousReport(1, {"train": before}))
    assert [each["name"] for each in drift["classes"]] == ["cat", "dog"]
    assert drift["splits"]["train"]["class_distance"] > 0.5
    before["distributions"]["box_areas_rel"]["bins"] = ["a", "c"]
    drift = describe_drift({"train": now}, "train", PreviousReport(1, {"train": before}))
    assert (drift["splits"]["train"]["size_distance"], drift["sizes"], drift["classes"]) == (None, None, [])


def test_without_an_earlier_report_the_reason_is_given():
    drift = describe_drift({}, "train", "no earlier span")
    assert drift == {"previous_span": None, "reason": "no earlier span", "splits": {}, "classes": [], "sizes": None}


def test_a_report_is_found_by_folder_or_file_name(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"format": 2, "span": 4, "splits": {}}))
    assert read_previous_report(tmp_path) == read_previous_report(path) == PreviousReport(4, {})
    path.write_text(json.dumps({"splits": {"train": {}}}))
    assert "another version" in read_previous_report(tmp_path)
    with pytest.raises(InputError, match=r"nowhere\.json"):
        read_previous_report(tmp_path / "nowhere.json")


@pytest.mark.reliability("torn file", "validate")
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
def test_an_invalid_report_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=r"report\.json: "):
        read_previous_report(tmp_path)


@pytest.fixture
def history(tmp_path):
    """Reports of spans 3, 5 and 11."""
    folder = tmp_path / "history"
    for span in (5, 3, 11):
        keep_report(str(folder), span, json.dumps({"format": 2, "span": span, "splits": {}}).encode())
    return folder


@pytest.mark.parametrize(
    ("span", "earlier"), [(12, "11"), (11, "05"), (10, "05"), (4, "03"), (3, None), (0, None), (None, None)]
)
def test_the_latest_earlier_span_is_selected_and_other_files_are_ignored(history, span, earlier):
    for name in ("span-00000009.json.bak", "notes.txt"):
        (history / name).write_text("{}")
    expected = earlier and f"{history}/span-000000{earlier}.json"
    assert find_earlier_report(str(history), span) == expected


def test_without_a_history_nothing_is_read_or_written(tmp_path):
    keep_report("", 3, b"{}")
    assert find_earlier_report("", 4) is None
    assert find_earlier_report(str(tmp_path / "nothing"), 4) is None


@pytest.mark.reliability("torn file", "validate")
def test_a_truncated_report_is_skipped_for_the_one_before(history):
    (history / "span-00000011.json").write_text('{"format": 2, "sp')
    assert find_earlier_report(f"{history}/", 12) == f"{history}/span-00000005.json"
