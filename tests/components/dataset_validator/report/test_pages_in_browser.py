"""The data report and the page of `detloom inspect` in a real browser, if one is installed."""

import pytest

from detloom.components.dataset_validator.report.inspect_page import write_inspect_page
from detloom.components.dataset_validator.validate import validate_examples
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\""
SMALL, LARGE, INVERTED = (0.1, 0.1, 0.2, 0.2), (0.1, 0.1, 0.9, 0.9), (0.9, 0.9, 0.1, 0.1)  # of 200 x 200 pixels
SHOWN = """Array.from(document.querySelectorAll("#grid figure")).filter(each => each.offsetParent !== null)
    .map(each => each.querySelector("figcaption").textContent.split(":")[0])"""


@pytest.fixture(scope="module")
def pages(make_example, write_records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    records = {
        "cat": ([SMALL], [1]),
        "dog": ([LARGE], [2]),
        "both": ([LARGE, SMALL], [1, 2]),
        "broken": ([INVERTED, LARGE], [1, 1]),
    }
    for split in ("train", "eval"):
        examples = [
            make_example(boxes, ids, image_hw=(200, 200), name=f"{name}{HOSTILE}" if name == "dog" else name)
            for name, (boxes, ids) in records.items()
        ]
        write_records(folder / f"Split-{split}" / "data_tfrecord-00000-of-00001", examples)
    write_label_map(folder / LABEL_MAP_FILE, LabelMap.from_names(["cat", HOSTILE]))
    validate_examples(folder, folder / "report")
    return {
        "inspect": write_inspect_page(folder, folder / "inspect.html").as_uri(),
        "report": (folder / "report" / "report.html").as_uri(),
    }


@pytest.fixture(params=["inspect", "report"])
def tab(request, browser, pages):
    tab = browser.open(pages[request.param])
    yield tab
    assert tab.problems() == []
    assert tab.requests() == []
    assert tab.evaluate("window.hacked") is None
    tab.close()


def choose(tab, key, text):
    """Select the option that starts with `text`, as the keyboard does, and return the images that are shown."""
    select = f"document.querySelector('select[name={key}]')"
    option = f"Array.from({select}.options).find(each => each.text.startsWith({text!r}))"
    tab.evaluate(f"{select}.value = {option}.value, {select}.dispatchEvent(new Event('change')), null")
    return sorted(tab.evaluate(SHOWN))


def test_the_grid_is_filtered_by_class_size_problem_and_split(tab):
    keys = ["both", "broken", "cat", f"dog{HOSTILE}"[:70]]
    everything = sorted(tab.evaluate(SHOWN))
    assert len(everything) == 8
    assert [name[: len("train/") + 70] for name in everything if name.startswith("train")] == [
        f"train/{k}" for k in keys
    ]
    assert choose(tab, "problem", "Invalid boxes") == ["eval/broken", "train/broken"]
    assert choose(tab, "split", "train") == ["train/broken"]
    assert tab.evaluate("document.querySelector('#filters output').textContent") == "1 of 8 images"
    tab.evaluate("document.querySelector('#filters button').click()")
    assert sorted(tab.evaluate(SHOWN)) == everything
    assert choose(tab, "box-size", "small") == ["eval/both", "eval/cat", "train/both", "train/cat"]
    assert len(choose(tab, "class", "</script>")) == 2  # and small: both


def test_a_filter_is_changed_and_an_image_enlarged_by_keys(tab):
    tab.evaluate("document.querySelector('select[name=split]').focus()")
    tab.press("ArrowDown")
    tab.wait_for("document.querySelector('#filters output').textContent === '4 of 8 images'")
    tab.evaluate("document.querySelector('#grid figure:not([hidden]) .zoomable').focus()")
    tab.press("Enter")
    tab.wait_for("Boolean(document.querySelector('dialog[open] .zoom-stage > *')?.style.width)")
    tab.press("Escape")
    assert tab.evaluate("document.querySelector('dialog[open]')") is None


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_a_phone_in_light_and_dark(tab, is_dark):
    tab.emulate(width=390, height=844, is_dark=is_dark)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    red, green, blue = map(int, tab.evaluate("getComputedStyle(document.body).backgroundColor")[4:-1].split(","))
    assert (max(red, green, blue) < 60) == is_dark


def test_without_javascript_all_images_are_shown_and_filters_are_not(browser, pages):
    tab = browser.open(pages["report"], has_scripts=False)
    assert len(tab.evaluate(SHOWN)) == 8
    assert tab.evaluate("getComputedStyle(document.querySelector('#filters')).display") == "none"
    tab.close()
