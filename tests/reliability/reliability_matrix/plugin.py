"""A pytest plugin: checks the marker `reliability`, and writes the page of the matrix after a complete run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from reliability_matrix.marked_tests import MARKER, CellError, find_marked_tests, parse_cell
from reliability_matrix.page import CaseResult, format_page

_OPTION = "--reliability-page"
_TIERS = ("proof", "slow")  # a test with neither marker is in the default tier


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, metavar="FILE", help="write the reliability matrix if all of its tests were run")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption(_OPTION):
        if config.getoption("numprocesses", None):
            raise pytest.UsageError(f"{_OPTION}: allowed: a run in one process (-n0).")
        config.pluginmanager.register(_PageWriter(Path(path), config))


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Refuse an unknown fault or stage."""
    for item in items:
        for marker in item.iter_markers(MARKER):
            try:
                parse_cell(marker.args, item.nodeid)
            except CellError as error:
                raise pytest.UsageError(str(error)) from None


class _PageWriter:
    """Collects the results of the marked tests; nothing is written if one of them was not run."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path, self._config = path, config
        self._items: dict[str, pytest.Item] = {}
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._deselected: list[str] = []

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self._deselected += [item.nodeid for item in items if item.get_closest_marker(MARKER)]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items = {item.nodeid: item for item in session.items if item.get_closest_marker(MARKER)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self._items:
            self._reports.setdefault(report.nodeid, []).append(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(self._write_page())

    def _write_page(self) -> str:
        """Write the page if it would be complete; return what was done."""
        missing = self._find_missing()
        if missing:
            return f"{self._path}: unchanged, because {len(missing)} tests were not run, such as {missing[0]}"
        results = [_result_of(item, self._reports[nodeid]) for nodeid, item in self._items.items()]
        self._path.write_text(format_page(results), encoding="utf-8")
        return f"{self._path}: written with {len(results)} cases"

    def _find_missing(self) -> list[str]:
        """Return the marked tests that this run left out."""
        functions = {nodeid.partition("[")[0] for nodeid in self._items}
        names = [f"{test.file}::{test.function}" for test in find_marked_tests()]
        not_collected = [name for name in names if name not in functions]
        not_run = [
            nodeid for nodeid in self._items if "teardown" not in {r.when for r in self._reports.get(nodeid, ())}
        ]
        selected = [argument for argument in self._config.args if "::" in argument]  # may select a part of the cases
        return [*not_collected, *self._deselected, *not_run, *selected]


def _result_of(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> CaseResult:
    file, _, function = item.nodeid.partition("[")[0].partition("::")
    tier = next((name for name in _TIERS if item.get_closest_marker(name)), "default")
    cells = frozenset(parse_cell(marker.args, item.nodeid) for marker in item.iter_markers(MARKER))
    if any(report.failed for report in reports):
        return CaseResult(file, function, tier, cells, "failed")
    skipped = next((report for report in reports if report.skipped), None)
    if skipped is None:
        return CaseResult(file, function, tier, cells, "passed")
    reason = skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else str(skipped.longrepr)
    return CaseResult(file, function, tier, cells, "skipped", reason.removeprefix("Skipped: "))
