import json
import re

import pytest

from detloom.components.dataset_validator.report.build_report import describe_split
from detloom.components.dataset_validator.report.page_parts import DrawnImage
from detloom.components.dataset_validator.report.validation_page import REPORT_HTML, render_html, write_report
from detloom.components.dataset_validator.statistics.split_statistics import SplitStatistics
from detloom.components.properties import DATASET_REPORT_FILE
from detloom.schemas.contracts.label_map import LabelMap

HOSTILE = "<script>alert('x')</script>"


def make_check(name, status="passed", unit="share", value=0.0, threshold=0.0, keys=()):
    return {
        "check": name,
        "title": f"Title of {name}",
        "severity": "fail",
        "status": status,
        "value": value,
        "threshold": threshold,
        "bound": "at most",
        "unit": unit,
        "sentence": f"sentence of {name}",
        "record_keys": list(keys),
    }


def make_split(boxes_by_class, num_examples=10):
    described = describe_split(SplitStatistics(), LabelMap.from_names(["cat"]), has_model=False, decodes_images=True)
    return {
        **described,
        "num_examples": num_examples,
        "num_boxes": sum(boxes_by_class.values()),
        "boxes_by_class": boxes_by_class,
        "images_by_class": {name: min(count, 1) for name, count in boxes_by_class.items()},
        "image_hw": {"min": [480, 640], "max": [480, 640]},
        "positions": {"rows": 2, "columns": 2, "counts": [[3, 0], [0, 1]]},
    }


@pytest.fixture
def report():
    """A report without a model, a previous span or duplicates."""
    return {
        "format": 2,
        "verdict": "failed",
        "sentence": "Of 2 checks, 1 failed (boxes).",
        "span": 3,
        "train_split": "train",
        "classes": [{"id": 1, "name": "cat"}],
        "model_input": None,
        "checks": [make_check("records"), make_check("boxes", "failed", value=0.25, keys=["train/img_7"])],
        "splits": {"train": make_split({"cat": 3, "dog": 1}), "eval": make_split({"cat": 4, "dog": 0})},
        "drift": {"previous_span": None, "reason": "no earlier span", "splits": {}, "classes": [], "sizes": None},
        "anchors": None,
        "duplicates": {"exact": None, "near": None},
        "images": [],
    }


def make_image(split="train", record_key="img_1"):
    return DrawnImage(
        split=split, record_key=record_key, image_hw=(480, 640), num_boxes=2, data_uri="data:image/jpeg;base64,QUJD"
    )


def make_duplicates(*groups):
    return {
        "max_distance": 5,
        "num_compared": 20,
        "is_complete": True,
        "num_flat": 2,
        "num_across": 1,
        "across_by_split": {"eval": 1},
        "num_within": 0,
        "within_by_split": {},
        "num_groups": len(groups),
        "groups": [
            {
                "size": len(members),
                "size_by_split": {split: 1 for split, _ in members},
                "members": [{"split": split, "record_key": key} for split, key in members],
            }
            for members in groups
        ],
    }


SETTINGS = {"anchor_scale": 2.0, "aspect_ratios": [0.7], "scales_per_octave": 3, "min_level": 3, "max_level": 7}
ANCHORS = {
    "num_boxes": 100,
    "recall_at_50": 0.5,
    "mean_best_iou": 0.4567,
    "histogram": {"bins": ["0.00-0.50", "0.50-1.00"], "counts": [50, 50], "unit": "IoU"},
    "by_class": [
        {"name": "cat", "num_boxes": 90, "recall_at_50": 0.9, "mean_best_iou": 0.6},
        {"name": "dog", "num_boxes": 10, "recall_at_50": 0.1, "mean_best_iou": 0.2},
    ],
    "by_size": [{"size_px": "8-16", "num_boxes": 100, "recall_at_50": 0.5, "mean_best_iou": 0.4567}],
    "configured": SETTINGS | {"anchor_scale": 4.0},
    "suggestion": {
        **SETTINGS,
        "recall_at_50": 0.97,
        "mean_best_iou": 0.7,
        "configured_recall_at_50": 0.51,
        "configured_mean_best_iou": 0.46,
    },
}


def test_the_page_starts_with_the_verdict_and_its_sentence(report):
    page = render_html(report, {})
    assert "no earlier span" in page
    assert page.index("<h1>The data set failed") < page.index("Of 2 checks, 1 failed") < page.index("<table>")


@pytest.mark.parametrize(
    ("verdict", "headline"), [("passed", "passed validation"), ("warned", "with warnings"), ("failed", "failed")]
)
def test_each_verdict_has_its_headline(report, verdict, headline):
    page = render_html({**report, "verdict": verdict}, {}, "cells & co")
    assert f"{headline}</h1>" in page.replace("failed validation", "failed")
    assert "<title>cells &amp; co: The data set " in page


def test_a_failed_check_comes_first_with_all_details(report):
    page = render_html(report, {})
    row = page[page.index("Title of boxes") : page.index("Title of records")]
    assert all(text in row for text in ("25 %", "at most 0 %", "✗ failed", "Sentence of boxes", "train/img_7"))


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ({"value": 0.012}, ("1.2 %", "at most 0 %")),
        ({"value": 0.0017612, "threshold": 0.00176}, ("0.1761 %", "at most 0.176 %")),
        ({"unit": "count", "value": 1234.0}, ("1234", "at most 0")),
        ({"unit": "distance", "value": 0.0512}, ("0.051", "at most 0.000")),
        ({"unit": "distance", "value": None, "status": "skipped"}, ("–", "at most 0.000")),
    ],
)
def test_values_are_shown_in_their_unit(report, values, texts):
    page = render_html({**report, "checks": [make_check("one", **values)]}, {})
    assert re.search(rf'<td class="n">{texts[0]}</td><td class="n wide-only">{texts[1]}</td>', page)


def test_the_page_is_self_contained(report):
    entry = {"topic": "sample", "split": "train", "record_key": "img_1"}
    page = render_html({**report, "images": [entry]}, {("train", "img_1"): make_image()})
    addresses = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)|url\(([^)]*)\)|@import""", page)
    assert addresses == [("data:image/jpeg;base64,QUJD", "")]
    assert page.count("<script") == 2  # filters and zoom


@pytest.mark.reliability("hostile input", "validate")
def test_names_from_the_data_are_escaped_everywhere(report):
    hostile = {
        **report,
        "sentence": HOSTILE,
        "checks": [{**make_check("one", "failed", keys=[HOSTILE]), "sentence": HOSTILE}],
        "splits": {HOSTILE: make_split({HOSTILE: 1})},
        "train_split": HOSTILE,
        "duplicates": {"exact": make_duplicates([(HOSTILE, HOSTILE), (HOSTILE, "b")]), "near": None},
        "anchors": {**ANCHORS, "by_class": [{**ANCHORS["by_class"][0], "name": HOSTILE}]},
        "images": [
            {"topic": topic, "split": HOSTILE, "record_key": HOSTILE}
            for topic in ("sample", f"class:{HOSTILE}", f"problem:{HOSTILE}")
        ],
    }
    page = render_html(hostile, {(HOSTILE, HOSTILE): make_image(HOSTILE, HOSTILE)})
    assert page.count("<script") == 2
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;") > 10


def test_classes_have_counts_and_shares_by_split(report):
    page = render_html(report, {})
    rows = re.findall(r"<tr><td class=\"name\">(cat|dog)</td>(.*?)</tr>", page, re.DOTALL)
    cells = {name: re.findall(r">([^<>]+)</td>", row) for name, row in rows}
    assert cells == {"cat": ["3", "75 %", "1", "4", "100 %", "1"], "dog": ["1", "25 %", "1", "0", "0 %", "0"]}


def test_drift_shows_distance_chance_and_threshold(report):
    distances = {"class_distance": 0.2, "class_chance": 0.03, "size_distance": None, "size_chance": None}
    drift = {
        "previous_span": 2,
        "reason": "",
        "splits": {"train": distances},
        "classes": [{"name": "cat", "share": 0.75, "previous_share": 0.5}],
        "sizes": {"bins": ["a", "b"], "shares": [0.5, 0.5], "previous_shares": [1.0, 0.0]},
    }
    checks = [make_check("class_drift", "warned", "distance", 0.2, 0.1)]
    page = render_html({**report, "drift": drift, "checks": checks}, {})
    row = page[page.index("<tr><td>train</td><td>classes</td>") :].partition("</tr>")[0]
    assert re.findall(r">([\d.]+)</td>", row) == ["0.200", "0.030", "0.100"]
    assert "span 2" in page
    assert "75 / 50 %" in page


def test_suggested_anchors_are_shown_in_pipeline_config_syntax_and_the_worst_class_first(report):
    page = render_html({**report, "anchors": ANCHORS}, {})
    assert "50 % of 100 boxes" in page
    assert "97 % instead of 51 %" in page
    settings = "  anchor_scale: 2\n  aspect_ratios: 0.7\n  scales_per_octave: 3\n"
    assert f"multiscale_anchor_generator {{\n  min_level: 3\n  max_level: 7\n{settings}}}" in page
    table = page[page.index("By class") :]
    assert table.index(">dog<") < table.index(">cat<")


def test_the_anchor_section_works_without_boxes(report):
    nothing = {"num_boxes": 0, "recall_at_50": None, "mean_best_iou": None, "by_class": [], "by_size": []}
    page = render_html({**report, "anchors": {**ANCHORS, **nothing, "suggestion": None}}, {})
    assert "no boxes" in page


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_search_that_left_out_pairs_says_so(report, is_complete):
    near = {**make_duplicates(), "is_complete": is_complete}
    page = render_html({**report, "duplicates": {"exact": None, "near": near}}, {})
    assert ("More than 512 images" in page) == (not is_complete)


def test_duplicates_are_shown_side_by_side(report):
    exact = make_duplicates([("train", "a"), ("eval", "b")])
    images = {("train", "a"): make_image("train", "a"), ("eval", "b"): make_image("eval", "b")}
    page = render_html({**report, "duplicates": {"exact": exact, "near": None}}, images)
    group = page[page.index('<div class="group">') :]
    assert re.findall(r"<figcaption>([^:]*):", group)[:2] == ["train/a", "eval/b"]
    assert "eval 1" in page


def test_identical_images_are_not_shown_again_as_near_duplicates(report):
    group = [("train", "a"), ("eval", "b")]
    other = [("train", "c"), ("eval", "d")]
    duplicates = {"exact": make_duplicates(group), "near": make_duplicates(group, other)}
    page = render_html({**report, "duplicates": duplicates}, {})
    assert page.count('<div class="group">') == 2
    assert "1 more group" in page


def test_a_problem_image_that_could_not_be_drawn_has_one_placeholder(report):
    entry = {"topic": "problem:boxes", "split": "train", "record_key": "img_7"}
    page = render_html({**report, "images": [entry, entry]}, {})
    assert "no image" in page
    assert "train/img_7; Title of boxes" in page
    assert page.count("<figure") == 1


def test_a_report_without_splits_is_rendered(report):
    assert "</html>" in render_html({**report, "splits": {}}, {})


def test_the_page_stays_small_with_thousands_of_classes(report):
    many = {f"class {i} {'x' * 100}": 1 for i in range(20_000)}
    page = render_html({**report, "splits": {"train": make_split(many)}}, {})
    assert len(page) < 1_000_000
    assert "x" * 80 not in page  # long names are cut


def test_both_files_are_written_and_the_json_is_complete(report, tmp_path):
    write_report(tmp_path / "new", report, {})
    assert json.loads((tmp_path / "new" / DATASET_REPORT_FILE).read_text("utf-8")) == report
    assert (tmp_path / "new" / REPORT_HTML).read_text("utf-8") == render_html(report, {})
