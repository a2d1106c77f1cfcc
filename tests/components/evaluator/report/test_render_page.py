import base64
import hashlib
import re
from dataclasses import replace

import evaluations
import pytest

from detloom.components.evaluator.report.render_page import format_page, summary_markdown
from detloom.components.pages.formats import escape_markdown
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import Gates, MetricFloor, Override

make_evaluation, make_image, make_object = evaluations.make_evaluation, evaluations.make_image, evaluations.make_object

HEADINGS = [
    "Gates",
    "COCO metrics",
    "Candidate against baseline",
    "Classes",
    "Precision and recall by score",
    "Curves",
    "Errors",
    "Confusion",
    "Slices",
    "Example images",
    "Training and data",
    "This evaluation",
]


def headings_of(page):
    return re.findall(r"<h2>(.*?)</h2>", page)


@pytest.fixture(scope="module")
def evaluation():
    training = {"loss": [(0, 2.0), (100, 1.0)]}
    return make_evaluation(training=training, data_health=[("Duplicates", "0 %", "passed")])


@pytest.fixture(scope="module")
def page(evaluation):
    return format_page(evaluation, [make_image()])


def test_the_reason_follows_the_verdict(page, evaluation):
    body = re.sub(r"<[^>]+>", " ", page[page.index("<section") :]).split()
    assert " ".join(body).startswith(f"Blessed {evaluation.decision.reason.replace(chr(39), '&#39;')}")


def test_the_title_names_the_pipeline_if_it_is_known(evaluation):
    titles = [format_page(replace(evaluation, pipeline=name), ()).partition("</title>")[0] for name in ("cells", "")]
    headline = titles[1].rpartition("<title>")[2]
    assert titles[0].endswith(f"<title>cells: {headline}")
    assert headline.endswith("– detector evaluation")
    hostile = format_page(replace(evaluation, pipeline="blood <cells>"), ())
    assert "<title>blood &lt;cells&gt;: " in hostile


def test_the_page_is_self_contained_and_runs_only_its_own_scripts(page):
    addresses = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']?([^"'\s>]+)""", page)
    assert addresses == ["data:image/jpeg;base64,AAAA"]
    assert "url(" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\s\"]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == page.count("<script") == 3
    assert "script-src " + " ".join(f"'sha256-{digest}'" for digest in digests) + '">' in page


@pytest.mark.reliability("hostile input", "evaluate")
def test_names_from_the_data_are_escaped():
    drawn = make_object(label='"><i>', mask_uri="data:image/png;base64,AAAA", points_xy_px=((1.0, 2.0),))
    image = make_image(name="<i>a.jpg", text="<i>text", objects=(drawn,))
    training = {"<i>loss": [(0, 2.0), (100, 1.0)]}
    evaluation = make_evaluation(
        training=training, data_health=[("<i>n", "<i>v", "<i>x")], lines=[("<i>line", "<i>text")]
    )
    page = format_page(evaluation, [image])
    assert "<b>dog" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;dog&lt;/b&gt;" in page


def test_all_sections_are_in_order_and_those_without_data_are_omitted(page):
    assert headings_of(page) == HEADINGS
    plain = format_page(make_evaluation(has_baseline=False, options=EvaluatorSettings()), [])
    gone = {"Candidate against baseline", "Slices", "Example images", "Training and data"}
    assert headings_of(plain) == [title for title in HEADINGS if title not in gone]
    assert not [text for text in ("Baseline", ">Change<", "AP change") if text in plain]


def test_with_one_class_the_comparison_has_one_row():
    page = format_page(make_evaluation(names=("cat",)), [])
    part = page[page.index("<h2>Candidate against baseline") : page.index("<h2>Classes")]
    assert part.count("<tr>") == 2  # the header and the row of all classes


def test_a_split_without_images_has_no_curves():
    split = evaluations.Split(ground_truth=[], features=[], label_map=LabelMap.from_names(["cat"]))
    page = format_page(make_evaluation(split=split, models=([], []), options=EvaluatorSettings()), [])
    assert "Curves" not in headings_of(page)
    assert "nan" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).lower().split()
    assert "-1.000" not in page


def test_numbers_have_sortable_values_and_a_dash_is_explained(page):
    part = page[page.index("<h2>Classes") : page.index("<h2>Precision and recall by score")]
    # The cat: one true positive with score 0.9, one false positive with 0.2.
    row = re.findall(r"<tr>(.*?)</tr>", part)[1]
    assert re.findall(r'data-value="([^"]*)"', row)[:3] == ["1", "1.0", "1.0"]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", row)[:3] == ["cat", "1", "1.000"]
    assert "small, below 32 × 32 px: no ground truth of this size" in page
    assert "A dash means not measured" in page
    assert "-1.000" not in page


def test_an_override_is_shown_in_the_headline_with_name_and_reason():
    override = Override(reason="The old one crashes on <b>", by="Ada", until="2026-12-31")
    gates = Gates(
        floors=(MetricFloor(metric="AP50/cat", min=1.0), MetricFloor(metric="APs", min=0.1)), override=override
    )
    page = format_page(make_evaluation(gates=gates), [])
    assert '<section class="warned">\n  <h1>Blessed by override</h1>' in page
    assert "Overridden by Ada until 2026-12-31: The old one crashes on &lt;b&gt;" in page


def test_example_images_are_grouped_by_kind_and_surplus_ones_omitted_and_counted(evaluation):
    images = [make_image(kind, size=870_000) for kind in ("first", "false") for _ in range(4)]
    page = format_page(evaluation, images)
    assert len(page) < 5_000_000
    part = page[page.index("<h2>Example images") : page.index("<h2>Training and data")]
    titles = ["Wrong detections with the highest scores", "First images of the split"]
    assert re.findall(r"<h3>(.*?)</h3>", part) == titles
    assert part.count("<figure>") == part.count("<img") == 4
    assert "4 more images" in page


def test_the_summary_contains_verdict_reason_and_tables(evaluation):
    lines = summary_markdown(evaluation).splitlines()
    assert lines[0] == "# Blessed"
    assert "AP50 1.000 is at least 0.500" in lines[2]
    assert "| AP50, at least | 0.500 | 1.000 | ✓ passed |" in lines
    # AP50 of the baseline: cat 1 (its box has the highest score), dog 0 (one confused with a cat, one missed).
    assert "| AP50 | 1.000 | 0.500 | +0.500 |" in lines
    assert "| APs | – | – | – |" in lines


@pytest.mark.reliability("hostile input", "evaluate")
def test_markdown_and_html_are_escaped_in_the_summary():
    assert escape_markdown("a|b\n<c> & [x](y) `d` *e*") == r"a\|b &lt;c&gt; &amp; \[x\](y) \`d\` \*e\*"
    gates = Gates(floors=(MetricFloor(metric="AP50/<b>dog</b>", min=0.5),))
    assert "<b>" not in summary_markdown(make_evaluation(gates=gates))
