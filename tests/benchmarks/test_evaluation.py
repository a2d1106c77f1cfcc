import dataclasses
import mmap

import numpy as np
import pytest
from evaluation import (
    EVALUATED,
    KINDS,
    MEASURED,
    Parts,
    compute_numbers,
    differing_numbers,
    find_claims,
    measure_parts,
    medians_of,
    print_table,
)
from tools.made_detections import Size, make_detections, make_split

from detloom.components.evaluator import measurements

SMALL = Size(images=6, detections=30, classes=2, node_images=0)


def make_row(seconds, cpu_seconds=1.0):
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "held_mb": 100.0, "peak_mb": 200.0}


def test_the_generated_split_is_deterministic():
    first, second = make_split(SMALL), make_split(SMALL)
    models = [make_detections(first, SMALL, 0), make_detections(second, SMALL, 0), make_detections(first, SMALL, 1)]
    for one, other in zip(models[0], models[1], strict=True):
        assert all(
            np.array_equal(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one)
        )
    assert not np.array_equal(models[0][0].scores, models[2][0].scores)


def test_generated_objects_and_detections_have_the_requested_properties():
    size = Size(images=300, detections=20, classes=5, node_images=0)
    split = make_split(size)
    found = make_detections(split, size, 0)
    assert np.mean([len(image.class_ids) for image in split.ground_truth]) == pytest.approx(7, abs=1)
    assert any(len(image.class_ids) == 0 for image in split.ground_truth)
    assert {len(image.scores) for image in found} == {20}
    for image in (*split.ground_truth, *found):
        assert set(image.class_ids) <= {1, 2, 3, 4, 5}
        assert image.boxes_yxyx_rel.min(initial=0) >= 0
        assert image.boxes_yxyx_rel.max(initial=1) <= 1
        assert (image.boxes_yxyx_rel[:, 2:] >= image.boxes_yxyx_rel[:, :2]).all()
    scores = np.concatenate([image.scores for image in found])
    assert len(set(scores)) == len(scores)  # no ties
    assert all((np.diff(image.scores) < 0).all() for image in found)


def test_nested_parts_have_paths_and_calls_add_up():
    parts = Parts()

    def outer():
        return [parts.call("inner", len, "ab"), parts.call("inner", len, "abc")]

    assert parts.call("outer", outer) == [2, 3]
    assert list(parts.rows) == ["outer", "outer/inner"]
    assert parts.rows["outer"]["seconds"] >= parts.rows["outer/inner"]["seconds"]
    assert parts.rows["outer"]["peak_mb"] >= parts.rows["outer/inner"]["held_mb"] > 0


def test_the_peak_of_a_part_counts_for_its_enclosing_part():
    parts = Parts()

    def hold_and_let_go():  # new pages: memory freed by an earlier test may still be held and be reused
        pages = mmap.mmap(-1, 160_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        np.frombuffer(pages, np.uint8)[:] = 1

    parts.call("outer", lambda: (parts.call("large", hold_and_let_go), parts.call("small", len, "")))
    large, small = parts.rows["outer/large"], parts.rows["outer/small"]
    assert large["peak_mb"] - large["held_mb"] > 150
    assert parts.rows["outer"]["peak_mb"] >= large["peak_mb"]
    assert small["peak_mb"] < large["peak_mb"] or small["peak_mb"] == parts.rows["outer"]["peak_mb"]  # may not reset


def test_a_part_that_fails_is_closed():
    parts = Parts()
    with pytest.raises(ZeroDivisionError):
        parts.call("one", lambda: 1 / 0)
    parts.call("two", len, "")
    assert list(parts.rows) == ["one", "two"]


def test_watched_functions_become_parts_and_are_restored():
    parts, before = Parts(), measurements.measure_calibration
    with parts.watching(measurements, {"measure_calibration": "calibration"}):
        assert measurements.measure_calibration is not before
    assert measurements.measure_calibration is before


def test_the_parts_of_a_node_exist_as_functions():
    from detloom.components.evaluator import evaluate_exported as evaluate

    assert all(callable(getattr(evaluate, name)) for name in EVALUATED)


def test_both_backends_give_the_same_numbers():
    parts = Parts()
    results = {kind: [compute_numbers(kind, SMALL, parts)] for kind in ("pycocotools", "ours")}
    assert list(parts.rows) == ["pycocotools", "ours"]
    assert differing_numbers(results) == []
    assert 0.1 < results["ours"][0]["numbers"]["AP"] < 0.9
    results["ours"].append({"numbers": {**results["ours"][0]["numbers"], "AP50": 0.0}})
    assert differing_numbers(results) == ["AP50"]


def test_every_part_of_the_evaluation_is_measured():
    parts = Parts()
    more = measure_parts(SMALL, parts)
    assert more["num_resamples"] == 1000
    assert {path for path in parts.rows if path.count("/") < 2} == {
        "measure",
        "compare",
        *(f"measure/{name}" for name in MEASURED.values()),
    }


def test_claims_are_ratios_of_medians(capsys):
    results = {
        "pycocotools": [{"rows": {"pycocotools": make_row(120.0, 110.0)}}],
        "ours": [{"rows": {"ours": make_row(seconds, 5.0)}} for seconds in (8.0, 30.0, 10.0)],
        "inference": [{"rows": {"inference": make_row(20.0), "inference/model calls": make_row(16.0)}}],
        "node": [{"rows": {"node": make_row(22.0), "node/inference": make_row(20.5)}}],
    }
    medians = medians_of(results)
    claims = find_claims(medians)
    assert claims["pycocotools / ours"] == {"seconds": 12.0, "cpu_seconds": 22.0}  # 120 / 10, 110 / 5
    assert claims["node / inference - 1"]["seconds"] == pytest.approx(0.1)  # 22 / 20 - 1
    assert claims["node / its calls of the model - 1"]["seconds"] == pytest.approx(0.375)  # 22 / 16 - 1
    print_table(medians, claims)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["(rest)", "1.50", "0.00"] in lines  # 22 - 20.5
    assert ["pycocotools", "/", "ours", "12.00", "22.00", "goal", "at", "least", "10"] in lines


def test_an_unmeasured_kind_makes_no_claim():
    assert find_claims(medians_of({kind: [] for kind in KINDS["metrics"]})) == {}
