"""A pytest plugin: collects the files of a tier, and marks the tests of `meta` and those that need TensorFlow or TFX.

A test needs what its file, its function and its fixtures import, and what the modules of detloom that they import load.
Imports inside functions of detloom do not count: a test that reaches one is marked `needs_tensorflow` by hand.
"""

import ast
import functools
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]
TFX = frozenset({"tfx", "tfx_bsl", "ml_metadata", "apache_beam", "kfp", "tensorflow_data_validation"})
TENSORFLOW = frozenset({"tensorflow", "keras"})
# Documentation, scripts and the tests' own tools.
META = [ROOT / "tests" / name for name in ("conformance", "docs")]


# Tiers of which only some files have tests, with the text that these files contain.
TIER_OF_FILES = {name: f"mark.{name}" for name in ("slow", "nightly")}
# Folders whose tests all need a cluster or servers, which the tier of this name has.
TIER_FOLDERS = {ROOT / "tests" / name: name for name in ("cluster", "flink", "object_stores")}
BLOCKED_MESSAGE = "the tier without TensorFlow imported {}: mark the test with needs_tensorflow"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what has no test of the tier that is run, because the imports of all files take half a minute."""
    tier = config.getoption("markexpr")
    if collection_path in TIER_FOLDERS and f"not {TIER_FOLDERS[collection_path]}" in tier:
        return True
    if not collection_path.match("test_*.py"):
        return None
    if tier.startswith("meta"):
        is_of_tier = any(collection_path.is_relative_to(folder) for folder in META)
    else:
        is_of_tier = tier not in TIER_OF_FILES or _may_mark(collection_path, TIER_OF_FILES[tier])
    return None if is_of_tier else True  # None: other plugins decide


def _may_mark(file: Path, mark: str) -> bool:
    """Return whether a file, or the conftest module of its folder, contains the text of a mark."""
    sources = [file, file.with_name("conftest.py")]
    return any(mark in source.read_text("utf-8") for source in sources if source.exists())


@pytest.hookimpl(tryfirst=True)  # before the items are selected by their markers
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(path) for path in META):
            item.add_marker("meta")
    if "needs_" not in config.getoption("markexpr"):
        return  # nobody asks; this takes seconds
    for item in items:
        loaded = _loaded_for(item)
        if loaded & TFX:
            item.add_marker("needs_tfx")
        if loaded & (TENSORFLOW | TFX):
            item.add_marker("needs_tensorflow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    is_unit = not item.get_closest_marker("needs_tensorflow")
    if is_unit and item.config.getoption("--block-tensorflow") and not isinstance(sys.meta_path[0], _Blocker):
        sys.meta_path.insert(0, _Blocker())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--block-tensorflow", action="store_true", help="fail a test that imports TensorFlow or TFX")


class _Blocker:
    """Refuses to import TensorFlow and TFX."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in TENSORFLOW | TFX:
            raise AssertionError(BLOCKED_MESSAGE.format(name))
        return None


def _loaded_for(item: pytest.Item) -> set[str]:
    """Return the packages that a test's file, function and fixtures load."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(definitions[-1].func for definitions in fixtures)]
    return set().union(*(_loaded_for_function(function.__code__) for function in functions))


@functools.cache
def _loaded_for_function(code: CodeType) -> frozenset[str]:
    file = Path(code.co_filename)
    if not file.is_relative_to(ROOT / "tests"):
        return frozenset()
    own = _names_in_functions(file).get(code.co_name, ())
    return frozenset().union(*(_loaded_by(name) for name in (*_names_imported(file), *own)))


@functools.cache
def _names_in_functions(file: Path) -> dict[str, list[str]]:
    functions = (node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))
    return {node.name: list(_names_in(node, with_functions=True)) for node in functions}


@functools.cache
def _loaded_by(name: str) -> frozenset[str]:
    """Return the top-level packages that `import name` loads, as far as detloom's own modules tell."""
    roots, seen, waiting = set(), set(), [name]
    while waiting:
        name = waiting.pop()
        roots.add(name.partition(".")[0])
        file = _file_of(name) or _file_of(name.rpartition(".")[0])
        if file and file not in seen:
            seen.add(file)
            waiting += _names_imported(file)
    return frozenset(roots)


@functools.cache
def _file_of(name: str) -> Path | None:
    """Return the file of a module of detloom, or of a test's helper on the path."""
    first, _, rest = name.partition(".")
    if not rest and first == "detloom":
        return None
    folders = [ROOT] if first == "detloom" else [Path(folder) for folder in sys.path if "tests" in folder]
    path = (rest if first == "detloom" else name).replace(".", "/")
    files = (folder / file for folder in folders for file in (f"{path}.py", f"{path}/__init__.py"))
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _names_imported(file: Path) -> frozenset[str]:
    """Return what a file imports when it is loaded, beside its packages."""
    return frozenset(_names_in(ast.parse(file.read_text("utf-8")), with_functions=False))


def _names_in(tree: ast.AST, *, with_functions: bool) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif with_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
