"""Find the tests that are marked with a cell of the reliability matrix, without importing them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reliability_matrix.matrix import FAULTS, STAGES

MARKER = "reliability"
TESTS = Path(__file__).parents[2]
Cell = tuple[str, str]


class CellError(ValueError):
    """A marker does not name a cell."""


@dataclass(frozen=True, order=True)
class MarkedTest:
    """A test function.

    Attributes:
        file: path in the repository.
        cells: (fault, stage) of each marker, sorted.
    """

    file: str
    function: str
    cells: tuple[Cell, ...]


def parse_cell(arguments: tuple[object, ...], where: str) -> Cell:
    """Return fault and stage of a marker; raise CellError if the matrix does not have them."""
    match arguments:
        case (str(fault), str(stage)) if fault in FAULTS and stage in STAGES:
            return fault, stage
    raise CellError(
        f"{where}: {MARKER}{arguments}: allowed: a fault of {', '.join(FAULTS)}, and a stage of {', '.join(STAGES)}."
    )


def find_marked_tests(folder: Path = TESTS) -> list[MarkedTest]:
    """Return the marked tests in the files of a folder, sorted by file and function.

    Raises:
        CellError: a marker has another fault or stage, or is not a decorator of a function or in `pytestmark`.
    """
    return sorted(test for file in sorted(folder.rglob("test_*.py")) for test in _tests_in(file, folder.parent))


def _tests_in(file: Path, root: Path) -> Iterator[MarkedTest]:
    source = file.read_text("utf-8")
    if f"mark.{MARKER}" not in source:
        return
    name, tree = file.relative_to(root).as_posix(), ast.parse(source)
    common = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    of_module = [cell for node in common for cell in _cells_in(node.value, name)]
    num_found = len(of_module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            own = [cell for decorator in node.decorator_list for cell in _cells_in(decorator, f"{name}::{node.name}")]
            num_found += len(own)
            if cells := {*of_module, *own}:
                yield MarkedTest(name, node.name, tuple(sorted(cells)))
    if num_found != len(list(_cells_in(tree, name))):
        raise CellError(f"{name}: allowed: the marker {MARKER} as a decorator of a test function or in pytestmark.")


def _cells_in(tree: ast.AST, where: str) -> Iterator[Cell]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{MARKER}":
            arguments = (argument.value if isinstance(argument, ast.Constant) else None for argument in node.args)
            yield parse_cell(tuple(arguments), where)
