"""Show the artifacts of this package in notebooks, with `show` of TFX's InteractiveContext."""

import html
from typing import Any

from tfx.orchestration.experimental.interactive import standard_visualizations, visualizations
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.artifact import Artifact

from detloom.components.artifact_types import DatasetReport, ModelCard
from detloom.components.dataset_validator.report.examples_page import render_examples_page
from detloom.components.dataset_validator.report.validation_page import REPORT_HTML
from detloom.components.evaluator.report.output_files import PAGE_FILE
from detloom.components.storage.storage import open_storage
from detloom.schemas.run_file.model_card import CARD_PAGE

_MAX_PAGE_BYTES = 50_000_000  # a page is stored in the notebook
# Scripts of the page run, but in an origin of their own: they cannot reach the notebook, its cookies or its server.
_FRAME = """<div><iframe sandbox="allow-scripts" srcdoc="{page}"
 style="width: 100%; height: {height_px}px; border: 1px solid #bbb; resize: vertical"></iframe></div>"""


class _ExamplesVisualization(visualizations.ArtifactVisualization):
    """Shows a few images of each split with their boxes."""

    ARTIFACT_TYPE = standard_artifacts.Examples

    def display(self, artifact: Artifact) -> None:
        names = artifact_utils.decode_split_names(artifact.split_names) if artifact.split_names else []
        splits = {name: artifact_utils.get_split_uri([artifact], name) for name in names}
        page = render_examples_page(artifact.uri, splits)
        if page is None:
            _display_text("No record at the beginning of a split has an image that can be decoded.")
        else:
            _display_page(page, height_px=540)


class _DatasetReportVisualization(visualizations.ArtifactVisualization):
    """Shows the report of DatasetValidator."""

    ARTIFACT_TYPE = DatasetReport

    def display(self, artifact: Artifact) -> None:
        _display_file(artifact, REPORT_HTML)


class _ModelEvaluationVisualization(visualizations.ArtifactVisualization):
    """Shows the report of DetectionEvaluator, and what TFX shows for its own Evaluator."""

    ARTIFACT_TYPE = standard_artifacts.ModelEvaluation

    def display(self, artifact: Artifact) -> None:
        if open_storage(artifact.uri).exists(PAGE_FILE):
            _display_file(artifact, PAGE_FILE)
        else:
            standard_visualizations.ModelEvaluationVisualization().display(artifact)


class _ModelCardVisualization(visualizations.ArtifactVisualization):
    """Shows the card of a model."""

    ARTIFACT_TYPE = ModelCard

    def display(self, artifact: Artifact) -> None:
        _display_file(artifact, CARD_PAGE)


_VISUALIZATIONS = (
    _ExamplesVisualization,
    _DatasetReportVisualization,
    _ModelEvaluationVisualization,
    _ModelCardVisualization,
)


def show_in_notebooks() -> None:
    """Let `InteractiveContext.show` show examples with their boxes, data reports, evaluations and model cards.

    One call is enough for a notebook, before or after an InteractiveContext is made; another call changes nothing.
    """
    registry, ours = visualizations.get_registry(), {each.ARTIFACT_TYPE for each in _VISUALIZATIONS}
    # The constructor of InteractiveContext registers these, and would replace the one of evaluations.
    others = (each for each in standard_visualizations.STANDARD_VISUALIZATIONS if each.ARTIFACT_TYPE not in ours)
    standard_visualizations.STANDARD_VISUALIZATIONS = frozenset((*others, *_VISUALIZATIONS))
    for each in _VISUALIZATIONS:
        registry.register(each)


def _display_file(artifact: Artifact, name: str) -> None:
    path = f"{artifact.uri}/{name}"
    content = open_storage(artifact.uri).read(name, _MAX_PAGE_BYTES)
    if content is None:
        _display_text(f"{path} does not exist; run the component, and look at its error if it failed.")
    elif len(content) > _MAX_PAGE_BYTES:
        _display_text(f"{path} is larger than {_MAX_PAGE_BYTES // 10**6} MB; open it in a browser.")
    else:
        _display_page(content.decode("utf-8", "replace"), height_px=640)


def _display_page(page: str, height_px: int) -> None:
    _display_html(_FRAME.format(page=html.escape(page), height_px=height_px))


def _display_text(text: str) -> None:
    _display_html(f"<p>{html.escape(text)}</p>")


def _display_html(content: str) -> None:
    from IPython.display import HTML, display

    shown: Any = HTML(content)
    display(shown)
