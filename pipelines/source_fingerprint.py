"""A hash of the source that a node runs, so that TFX's cache sees an edited loop (it looks at parameters alone)."""

import ast
import functools
import hashlib
from pathlib import Path

import detloom

_PACKAGE = detloom.__name__


def source_fingerprint(*modules: str) -> str:
    """16 hex digits over these modules and every detloom module that they import, directly or not.

    Imports are read from the source, those inside functions too; nothing is executed. A data file counts (a template)
    if a module beside it names it.
    """
    closure: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in closure:
            closure.add(module)
            waiting.extend(_imports_of(module))
    digest = hashlib.sha256()
    for module in sorted(closure):
        for file in _files_of(module):
            digest.update(f"{module}/{file.name}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


@functools.cache
def _origin(module: str) -> Path | None:
    """The file of a detloom module; None if there is none. Looks at files only: a lookup must not import TensorFlow."""
    relative = Path(*module.split(".")[1:])
    for folder in detloom.__path__:
        for file in (Path(folder) / relative / "__init__.py", (Path(folder) / relative).with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _files_of(module: str) -> list[Path]:
    origin = _origin(module)
    assert origin is not None, module
    source = origin.read_text(encoding="utf-8")
    data = (file for file in origin.parent.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))
    return [origin, *sorted(file for file in data if file.name in source)]


def _imports_of(module: str) -> set[str]:
    origin = _origin(module)
    assert origin is not None, module
    names: set[str] = set()
    for node in ast.walk(ast.parse(origin.read_bytes())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = {name for name in names if name.split(".")[0] == _PACKAGE}
    parents = {
        ".".join(parts[:i]) for parts in (name.split(".") for name in (*ours, module)) for i in range(2, len(parts))
    }
    return {name for name in ours | parents if name != _PACKAGE and _origin(name) is not None}
