"""The output of `InteractiveContext.show` for artifacts; IPython's `display` is replaced by a list."""

import html
import re

import pytest
from tfx.orchestration.experimental.interactive import standard_visualizations, visualizations
from tfx.types import artifact_utils, standard_artifacts

from detloom.components import show_in_notebooks
from detloom.components.artifact_types import DatasetReport, ModelCard
from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, write_label_map

PAGES = [
    (DatasetReport, "report.html"),
    (standard_artifacts.ModelEvaluation, "report.html"),
    (ModelCard, "model_card.html"),
]
HOSTILE = """<style>body { color: red }</style><body>"></iframe><script>window.hacked = 1</script>
<script>document.title = "ran"; try { parent.hacked = 1 } catch (error) { document.title = error.name }</script>"""


@pytest.fixture(autouse=True)
def _registry_left_as_it_was(monkeypatch):
    registry = visualizations.get_registry()
    monkeypatch.setattr(registry, "visualizations", dict(registry.visualizations))
    standard = standard_visualizations.STANDARD_VISUALIZATIONS
    monkeypatch.setattr(standard_visualizations, "STANDARD_VISUALIZATIONS", standard)


@pytest.fixture
def show(monkeypatch):
    """Return a function that shows an artifact as InteractiveContext does and returns the HTML."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda each: shown.append(each.data))

    def show_artifact(kind, uri, splits=()):
        artifact = kind()
        artifact.uri = str(uri)
        if splits:
            artifact.split_names = artifact_utils.encode_split_names(list(splits))
        shown.clear()
        visualizations.get_registry().get_visualization(artifact.type_name).display(artifact)
        return "".join(shown)

    return show_artifact


def page_of(shown):
    """Return the content of the frame."""
    (srcdoc,) = re.findall('srcdoc="([^"]*)"', shown)
    return html.unescape(srcdoc)


@pytest.mark.parametrize(("kind", "file"), PAGES, ids=lambda value: str(value))
def test_the_page_of_an_artifact_is_shown_in_a_frame(kind, file, show, tmp_path):
    (tmp_path / file).write_text(HOSTILE)
    show_in_notebooks()
    shown = show(kind, tmp_path)
    assert page_of(shown) == HOSTILE
    assert 'sandbox="allow-scripts"' in shown


@pytest.mark.parametrize("is_first", [True, False])
def test_the_order_of_the_call_and_of_the_context_does_not_matter(is_first, show, tmp_path):
    (tmp_path / "report.html").write_text("evaluation")
    if is_first:
        show_in_notebooks()
    standard_visualizations.register_standard_visualizations()  # as the constructor of InteractiveContext does
    show_in_notebooks()
    if is_first:
        standard_visualizations.register_standard_visualizations()
    assert page_of(show(standard_artifacts.ModelEvaluation, tmp_path)) == "evaluation"
    statistics = visualizations.get_registry().get_visualization("ExampleStatistics")
    assert isinstance(statistics, standard_visualizations.ExampleStatisticsVisualization)


def test_an_evaluation_of_another_evaluator_is_shown_as_tfx_does(show, tmp_path, monkeypatch):
    seen = []
    tfx_own = standard_visualizations.ModelEvaluationVisualization
    monkeypatch.setattr(tfx_own, "display", lambda self, artifact: seen.append(artifact.uri))
    show_in_notebooks()
    assert show(standard_artifacts.ModelEvaluation, tmp_path) == ""
    assert seen == [str(tmp_path)]


def test_a_missing_page_is_a_sentence_with_its_path(show, tmp_path):
    show_in_notebooks()
    assert f"{tmp_path}/report.html does not exist" in show(DatasetReport, tmp_path)


def test_a_page_that_is_too_large_for_a_notebook_is_not_shown(show, tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("x" * 11)
    monkeypatch.setattr("detloom.components.notebooks._MAX_PAGE_BYTES", 10)
    show_in_notebooks()
    shown = show(DatasetReport, tmp_path)
    assert "open it in a browser" in shown
    assert "iframe" not in shown


def test_examples_are_shown_as_images_of_each_split(make_example, write_records, show, tmp_path):
    for split in ("train", "eval"):
        records = [make_example([(0.1, 0.1, 0.5, 0.5)], [1], name=f"image{number}") for number in range(9)]
        write_records(tmp_path / f"Split-{split}" / "data_tfrecord-00000-of-00001", records)
    write_label_map(tmp_path / LABEL_MAP_FILE, LabelMap.from_names(["cat"]))
    show_in_notebooks()
    page = page_of(show(standard_artifacts.Examples, tmp_path, ["train", "eval"]))
    assert re.findall(r"<figcaption>(.*?):", page) == [f"{s}/image{i}" for s in ("train", "eval") for i in range(6)]
    assert page.count("data:image/jpeg;base64,") == 12


def test_examples_without_images_are_a_sentence(write_records, show, tmp_path):
    write_records(tmp_path / "Split-train" / "data_tfrecord-00000-of-00001", [b"no tf.Example", b""])
    show_in_notebooks()
    for splits in (["train"], ["missing"], []):
        assert "No record" in show(standard_artifacts.Examples, tmp_path, splits)


def test_a_page_reaches_neither_the_notebook_nor_its_style(show, tmp_path, browser):
    (tmp_path / "report.html").write_text(HOSTILE)
    show_in_notebooks()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><p>cell</p>{show(DatasetReport, tmp_path)}<p>next cell</p>")
    tab = browser.open(notebook.as_uri())
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("getComputedStyle(document.querySelector('p')).color") == "rgb(0, 0, 0)"
    assert tab.evaluate("document.querySelectorAll('p').length") == 2
    assert tab.evaluate("document.querySelector('iframe').contentDocument") is None
    tab.close()
