"""Every notebook of docs/notebooks/ runs from its first to its last cell, with fewer images and training steps."""

import html
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
MAX_BYTES = 200_000
SHORTER = (  # not fewer images: the share of those that are broken on purpose would be too large
    (r"\bNUM_STEPS = \d+", "NUM_STEPS = 2"),
    (r"num_train=\d+, num_eval=\d+, num_test=\d+", "num_train=120, num_eval=16, num_test=24"),
)


def run(name, folder, monkeypatch):
    """Execute a notebook in a folder and return the titles of the pages that it shows, and its last output."""
    nbformat = pytest.importorskip("nbformat", reason="TFX 1.21 does not install Jupyter")
    nbclient = pytest.importorskip("nbclient", reason="TFX 1.21 does not install Jupyter")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    sources = "".join(cell.source for cell in notebook.cells)
    for pattern, shorter in SHORTER:
        assert len(re.findall(pattern, sources)) == 1, pattern
        for cell in notebook.cells:
            cell.source = re.sub(pattern, shorter, cell.source)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pages = re.findall('srcdoc="([^"]*)"', "".join(output.get("data", {}).get("text/html", "") for output in outputs))
    titles = [re.search("<title>(.*?)</title>", html.unescape(page))[1] for page in pages]
    return titles, outputs[-1]


@pytest.mark.nightly  # trains a detector
def test_first_model(tmp_path, monkeypatch):
    titles, last = run("first_model", tmp_path, monkeypatch)
    assert titles == [
        "Examples",
        "The data set passed validation – data set report",
        "Not blessed – detector evaluation",  # two steps train nothing
        "digits – model card",
    ]
    assert "image/png" in last["data"]


@pytest.mark.nightly  # trains two detectors
def test_compare_models(tmp_path, monkeypatch):
    titles, last = run("compare_models", tmp_path, monkeypatch)
    assert titles == ["Examples", "Not blessed – detector evaluation"]
    assert last["name"] == "stdout"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    content = path.read_text("utf-8")
    assert len(content) < MAX_BYTES
    assert not re.search(r'"outputs": \[\s*\{|"execution_count": \d', content)


def test_every_notebook_is_run_and_linked():
    names = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert names == {"first_model", "compare_models"}
    page = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
    assert [name for name in names if f"(notebooks/{name}.ipynb)" not in page] == []
