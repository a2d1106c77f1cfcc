"""Import the public names of a package when they are first used; the package's `__init__.pyi` lists them."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


def lazy_names(package: str, init_file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        init_file: its `__file__`. The stub beside it, which type checkers read, imports each public name.
    """
    stub = ast.parse(Path(init_file).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def import_name(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return import_name, list_names, sorted(modules)
