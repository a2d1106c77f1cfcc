"""The reliability matrix is complete, and its page lists its tests."""

import subprocess
import sys
from pathlib import Path

import pytest
from reliability_matrix.marked_tests import TESTS, CellError, MarkedTest, find_marked_tests
from reliability_matrix.matrix import FAULTS, REASONS, STAGES
from reliability_matrix.page import CaseResult, format_page, listed_tests

PAGE = TESTS.parent / "docs" / "reliability.md"
CELLS = [(fault, stage) for fault in FAULTS for stage in STAGES]


@pytest.fixture(scope="module")
def marked():
    return find_marked_tests()


def test_every_cell_has_a_test_or_a_reason(marked):
    tested = {cell for test in marked for cell in test.cells}
    assert [cell for cell in CELLS if cell not in tested and cell not in REASONS] == []


def test_no_cell_has_both_a_test_and_a_reason(marked):
    tested = {cell for test in marked for cell in test.cells}
    assert sorted(tested & REASONS.keys()) == []
    assert set(REASONS) <= set(CELLS)


def test_page_lists_the_marked_tests(marked):
    expected = {(test.file, test.function, cell) for test in marked for cell in test.cells}
    found = listed_tests(PAGE.read_text("utf-8"))
    assert found == expected, 'run `make proof ARGS="-m reliability"`'


def test_page_has_the_current_reasons_and_definitions():
    page = PAGE.read_text("utf-8")
    texts = [*FAULTS.values(), *STAGES.values(), *REASONS.values()]
    assert [text for text in texts if text not in page] == [], 'run `make proof ARGS="-m reliability"`'


MODULE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.reliability("kill", "push")]

@pytest.mark.reliability("full disk", "train")
def test_two_cells():
    pass

def test_one_cell():
    pass
"""


def write_module(folder: Path, text: str) -> Path:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_a.py").write_text(text)
    return folder / "tests"


def test_markers_of_functions_and_modules_are_found(tmp_path):
    kill, full = ("kill", "push"), ("full disk", "train")
    assert find_marked_tests(write_module(tmp_path, MODULE)) == [
        MarkedTest("tests/test_a.py", "test_one_cell", (kill,)),
        MarkedTest("tests/test_a.py", "test_two_cells", (full, kill)),
    ]


@pytest.mark.parametrize(
    "marker",
    ['reliability("earthquake", "push")', 'reliability("kill", "sleep")', 'reliability("kill")', "reliability()"],
)
def test_unknown_cell_is_an_error(tmp_path, marker):
    folder = write_module(tmp_path, f"import pytest\n@pytest.mark.{marker}\ndef test_a():\n    pass\n")
    with pytest.raises(CellError, match=r"test_a\.py::test_a: reliability\("):
        find_marked_tests(folder)


def test_marker_in_another_place_is_an_error(tmp_path):
    text = MODULE + 'CASES = [pytest.param(1, marks=pytest.mark.reliability("kill", "push"))]\n'
    with pytest.raises(CellError, match="pytestmark"):
        find_marked_tests(write_module(tmp_path, text))


def result_of(function, outcome="passed", tier="default", reason=""):
    return CaseResult("tests/test_a.py", function, tier, frozenset({("kill", "push")}), outcome, reason)


@pytest.fixture
def all_reasons(monkeypatch):
    for cell in CELLS:
        monkeypatch.setitem(REASONS, cell, "It cannot occur.")


@pytest.mark.usefixtures("all_reasons")
def test_page_counts_cases_and_links_to_tests():
    results = [result_of("test_b"), result_of("test_b", "failed"), result_of("test_a", "skipped", "slow", "no GPU")]
    page = format_page(results)
    assert "| [1 failed, 1 passed, 1 skipped](#kill-push) |" in page
    assert "| [no test](#lost-lease-serve) |" in page
    assert "## lost lease: serve\n\nNo test: It cannot occur.\n" in page
    rows = page.partition("## kill: push\n")[2].splitlines()
    assert rows[3:5] == [
        "| `tests/test_a.py::test_a` | slow | 1 | skipped (no GPU) |",
        "| `tests/test_a.py::test_b` | default | 2 | 1 failed, 1 passed |",
    ]
    assert format_page(results[::-1]) == page
    assert listed_tests(page) == {("tests/test_a.py", name, ("kill", "push")) for name in ("test_a", "test_b")}


CONFTEST = """
import sys
sys.path.append({folder!r})
from reliability_matrix import marked_tests, matrix, plugin
for fault in matrix.FAULTS:
    for stage in matrix.STAGES:
        matrix.REASONS.setdefault((fault, stage), "It cannot occur.")
tests = marked_tests.find_marked_tests
plugin.find_marked_tests = lambda: tests(marked_tests.Path(__file__).parent)
pytest_plugins = ["reliability_matrix.plugin"]
"""


@pytest.fixture
def run_pytest(tmp_path):
    """Return a function that runs pytest on two marked tests in a process of its own, and returns its output."""
    folder = write_module(tmp_path, MODULE)
    (folder / "conftest.py").write_text(CONFTEST.format(folder=str(TESTS / "reliability")))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: s\n    reliability: r\n")

    def run(*arguments):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            "--reliability-page=page.md",
            *arguments,
        ]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    return run


def test_complete_run_writes_the_page(run_pytest, tmp_path):
    assert "page.md: written with 2 cases" in run_pytest("tests")
    assert len(listed_tests((tmp_path / "page.md").read_text())) == 3


@pytest.mark.parametrize(
    "arguments", [("-k", "one"), ("--maxfail=1", "-k", "two"), ("tests/test_a.py::test_one_cell",)]
)
def test_partial_run_leaves_the_page_unchanged(run_pytest, tmp_path, arguments):
    (tmp_path / "page.md").write_text("before")
    assert "page.md: unchanged, because " in run_pytest(*arguments)
    assert (tmp_path / "page.md").read_text() == "before"
