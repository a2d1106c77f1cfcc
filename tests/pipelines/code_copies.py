"""Copies of the package with changed code, for tests of what a change runs again."""

import ast
import shutil
from pathlib import Path

import detloom
from detloom.components.fingerprints import LAYERS

ROOT = Path(detloom.__file__).parents[1]
LOSS = "trainer_module/detectors/one_stage/losses.py"
NOTIFIER = "components/notifier/component.py"


def copy_package(folder: Path) -> Path:
    """Copy what a checkout needs to be imported."""
    for name in ("detloom", *LAYERS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.py", folder)
    return folder


def reformat_and_comment(package: Path) -> None:
    """Format all modules as `ast` does, without comments and with other docstrings, and add a comment."""
    for path in [path for name in LAYERS for path in (package / name).rglob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                node.body[0] = ast.Expr(ast.Constant("Another docstring."))
        path.write_text(f"{ast.unparse(tree)}\n# a comment\n")


def add_line(package: Path, module: str) -> None:
    """Add a statement to the first function of a module."""
    path = package / module
    tree = ast.parse(path.read_text())
    function = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    function.body.insert(1, ast.parse("assert True").body[0])  # after the docstring
    path.write_text(ast.unparse(tree))
