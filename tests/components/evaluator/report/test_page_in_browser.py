"""The report page in a real browser, if one is installed."""

import numpy as np
import pytest
from PIL import Image

from detloom.components.evaluator.evaluation_result import assess, measure_model
from detloom.components.evaluator.measurements import Split
from detloom.components.evaluator.report.example_images import draw_image, plan_images
from detloom.components.evaluator.report.render_page import format_page
from detloom.components.pages.formats import format_number, format_signed
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.run_file.evaluator import EvaluatorSettings
from detloom.schemas.run_file.gates import BaselineGate, Gates

NAMES = ["</script><script>window.hacked = 1</script>", "\"><img src=x onerror='window.hacked = 1'>", 'o\'wl & "co"']
SLIDER = "document.querySelector('#by-score input[data-model=\"{}\"]')"
TABLE = "Array.from(document.querySelectorAll('#by-score tbody tr'), row => Array.from(row.cells, c => c.textContent))"
IS_ENLARGED = "Boolean(document.querySelector('dialog[open] .zoom-stage .picture')?.style.width)"
# The classes of the boxes that are drawn, in the order of the page.
DRAWN = """Array.from(document.querySelectorAll(".boxes g")).filter(box => getComputedStyle(box).display !== "none")
    .map(({classList}) => [...classList].filter(name => name !== "plain" && name !== "subject").join(" "))"""


@pytest.fixture(scope="module")
def evaluation(make_good_split):
    truth, found, before = make_good_split(3, num_images=12)
    label_map = LabelMap(((1, NAMES[0]), (3, NAMES[1]), (4, NAMES[2])))
    split = Split(ground_truth=truth, features=[{}] * len(truth), label_map=label_map)
    candidate, baseline = (measure_model(split, each, EvaluatorSettings()) for each in (found, before))
    names = [f"{NAMES[0]}{number}.jpg" for number in range(len(truth))]
    return assess(split, names, candidate, baseline, Gates(baseline=BaselineGate(num_resamples=100)))


@pytest.fixture(scope="module")
def plans(evaluation):
    return plan_images(evaluation, 2)


@pytest.fixture(scope="module")
def address(evaluation, plans, tmp_path_factory):
    image = np.asarray(Image.linear_gradient("L").resize((300, 300)).convert("RGB"))
    images = [
        draw_image(plan, image, evaluation.file_names[plan.image_index], evaluation.split.label_map) for plan in plans
    ]
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(format_page(evaluation, images), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def tab(browser, address):
    tab = browser.open(address)
    yield tab
    assert tab.problems() == []
    assert tab.requests() == []
    assert tab.evaluate("window.hacked") is None
    tab.close()


def rates_of(measured, class_id, score):
    """Count matches at IoU 0.50 from the detections themselves."""
    matches, ids = measured.matches, np.array([1, 3, 4])
    is_used = (matches.scores >= score) & ((class_id is None) | (ids[matches.found.class_index] == class_id))
    is_truth = ~matches.is_crowd & ((class_id is None) | (ids[matches.truth.class_index] == class_id))
    num_true, num_truth = int((is_used & matches.is_true(0)).sum()), int(is_truth.sum())
    num_found = int((is_used & ~matches.is_ignored(0)).sum())
    precision = num_true / num_found if num_found else None
    return precision, num_true / num_truth, 2 * num_true / (num_found + num_truth)


def rows_of(evaluation, candidate_score, baseline_score):
    rows = []
    for name, class_id in (("All classes", None), (NAMES[0], 1), (NAMES[1], 3), (NAMES[2], 4)):
        first = rates_of(evaluation.candidate, class_id, candidate_score)
        second = rates_of(evaluation.baseline, class_id, baseline_score)
        rates = [format_number(value) for value in (*first, *second)]
        rows.append([name, *rates, format_signed(first[2] - second[2])])
    return rows


def test_the_slider_shows_the_numbers_that_python_computes_and_their_boxes(tab, evaluation, plans):
    best, of_baseline = evaluation.candidate.best_f1.min_score, evaluation.baseline.best_f1.min_score
    table = [[row[0], *row[2:]] for row in tab.evaluate(TABLE)]
    assert table == rows_of(evaluation, best, of_baseline)
    labels = tab.evaluate("document.querySelector('[data-labels]').dataset.labels").split(",")
    found = [each for plan in plans for each in plan.objects if each.layer == "candidate"]
    for step in (0, 7, 30, 55, 83, len(labels) - 1):
        slider = SLIDER.format(0)
        tab.evaluate(f"{slider}.value = {step}, {slider}.dispatchEvent(new Event('input'))")
        score = best if step == labels.index(f"{best:.3f}") else float(labels[step])
        drawn = [each for each in tab.evaluate(DRAWN) if each.startswith("candidate")]
        assert drawn == [f"candidate {each.outcome}" for each in found if each.is_subject or each.score >= score]
        assert [[row[0], *row[2:]] for row in tab.evaluate(TABLE)] == rows_of(evaluation, score, of_baseline)


def test_the_slider_moves_by_keys_and_its_copy_and_the_boxes_follow(tab):
    before = tab.evaluate(DRAWN)
    tab.evaluate(f"{SLIDER.format(0)}.focus()")
    tab.press("ArrowRight")
    values = tab.evaluate("Array.from(document.querySelectorAll('input[data-model=\"0\"]'), each => each.value)")
    assert len(values) == 2
    assert values[0] == values[1]
    tab.press("Home")  # every detection is used
    after = tab.evaluate(DRAWN)
    assert after.count("candidate false") > before.count("candidate false")
    tab.evaluate("document.querySelector('#by-score .slider button').click()")
    assert tab.evaluate(DRAWN) == before


def test_exact_ties_are_rounded_as_in_python(browser, make_image, label_map, tmp_path):
    boxes = [(1, 0, 6 * k, 5, 6 * k + 5) for k in range(16)]
    truth, found = make_image(1, truth=boxes, found=[(*boxes[0], 0.9)])
    split = Split(ground_truth=[truth], features=[{}], label_map=label_map)
    evaluation = assess(split, ["a.jpg"], measure_model(split, [found], EvaluatorSettings()), None, Gates())
    (tmp_path / "report.html").write_text(format_page(evaluation, []), encoding="utf-8")
    tab = browser.open((tmp_path / "report.html").as_uri())
    slider = SLIDER.format(0)
    tab.evaluate(f"{slider}.value = 0, {slider}.dispatchEvent(new Event('input'))")
    # Recall is 1 / 16 = 0.0625 exactly; toFixed alone would give 0.063. F1 is 2 / 17.
    assert tab.evaluate(TABLE)[0] == ["All classes", "16", "1.000", "0.062", "0.118"]
    tab.close()


def test_each_layer_can_be_hidden(tab):
    boxes = DRAWN
    everything = tab.evaluate(boxes)
    assert {"truth", "truth missed", "candidate true", "candidate false"} == set(everything)

    def without(layer):
        check = f"document.querySelector('input[data-layer={layer}]')"
        tab.evaluate(f"{check}.click()")
        found = tab.evaluate(boxes)
        tab.evaluate(f"{check}.click()")
        return found

    assert without("true") == [each for each in everything if each != "candidate true"]
    assert without("false") == [each for each in everything if each != "candidate false"]
    assert without("truth") == [each for each in everything if each != "truth"]
    assert without("missed") == ["truth" if each == "truth missed" else each for each in everything]
    assert tab.evaluate(boxes) == everything


def test_ground_truth_has_labels_where_no_detection_has_one(tab):
    labelled = """Array.from(new Set(Array.from(document.querySelectorAll(".boxes g text"))
        .filter(text => text.getBoundingClientRect().width > 0)
        .map(text => text.parentElement.classList)
        .map(list => ["missed", "truth", "candidate"].find(name => list.contains(name)))))
        .sort()"""
    assert tab.evaluate(labelled) == ["candidate", "missed"]
    tab.evaluate("document.querySelector('input[data-layer=true]').click()")
    assert tab.evaluate(labelled) == ["candidate", "missed", "truth"]
    tab.evaluate("document.querySelector('input[data-layer=labels]').click()")
    assert tab.evaluate(labelled) == []


def test_the_baseline_is_a_layer(tab):
    layers = f"Array.from(new Set({DRAWN}.map(each => each.split(' ')[0])))"
    assert tab.evaluate(layers) == ["truth", "candidate"]
    tab.evaluate("document.querySelector('input[name=shown][value=\"1\"]').click()")
    assert tab.evaluate(layers) == ["truth", "baseline"]
    tab.evaluate("document.querySelector('input[name=shown][value=both]').click()")
    assert tab.evaluate(layers) == ["truth", "baseline", "candidate"]


def test_an_image_is_enlarged_moved_and_closed_by_keys(tab):
    tab.evaluate("document.querySelector('.zoomable').focus()")
    tab.press("Enter")
    tab.wait_for(IS_ENLARGED)
    assert tab.evaluate("document.querySelector('dialog strong').textContent").startswith(NAMES[0])
    assert tab.evaluate("document.querySelector('dialog [data-zoom-tools]') !== null")
    picture = "document.querySelector('.zoom-stage .picture')"
    width, left = tab.evaluate(f"[{picture}.offsetWidth, {picture}.offsetLeft]")
    tab.press("+")
    assert tab.evaluate(f"{picture}.offsetWidth") == pytest.approx(1.25 * width, abs=1)
    at = tab.evaluate(f"{picture}.offsetLeft")
    tab.press("ArrowRight")
    assert tab.evaluate(f"{picture}.offsetLeft") == at - 60
    tab.press("0")
    assert tab.evaluate(f"[{picture}.offsetWidth, {picture}.offsetLeft]") == [width, left]
    tab.drag((600, 300), (640, 330))
    assert tab.evaluate(f"{picture}.offsetLeft") == left + 40
    tab.press("Escape")
    assert tab.evaluate("document.querySelector('dialog[open]')") is None
    assert tab.evaluate("document.activeElement.matches('.zoomable')")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.wait_for("document.querySelector('main [data-zoom-tools]') !== null")


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_a_phone_in_light_and_dark(tab, is_dark):
    tab.emulate(width=390, height=844, is_dark=is_dark)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    red, green, blue = map(int, tab.evaluate("getComputedStyle(document.body).backgroundColor")[4:-1].split(","))
    assert (max(red, green, blue) < 60) == is_dark
    tab.evaluate("document.querySelector('.zoomable').click()")
    tab.wait_for(IS_ENLARGED)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_without_javascript_tables_and_boxes_are_shown_and_controls_are_not(browser, address, evaluation):
    tab = browser.open(address, has_scripts=False)
    tables = rows_of(evaluation, evaluation.candidate.best_f1.min_score, evaluation.baseline.best_f1.min_score)
    assert [[row[0], *row[2:]] for row in tab.evaluate(TABLE)] == tables
    assert {"truth", "candidate true"} < set(tab.evaluate(DRAWN))
    assert tab.evaluate("getComputedStyle(document.querySelector('[data-zoom-tools]')).display") == "none"
    tab.close()
