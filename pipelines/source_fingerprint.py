"""A hash of the source that a node runs, so that TFX's cache sees an edited loop (it looks at parameters alone)."""

import ast
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import detloom

_PACKAGE = detloom.__name__


def source_fingerprint(*modules: str) -> str:
    """16 hex digits over these modules and every detloom module that they import, directly or not.

    Imports are read from the source, those inside functions too; nothing is executed. A data file beside one of these
    modules counts (a template, a script) if a file that counts names it.
    """
    origins = _reach(*modules)
    digest = hashlib.sha256()
    for name, file in sorted({**origins, **_named_data_files(origins)}.items()):
        digest.update(f"{name}\0".encode())
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


def _reach(*modules: str) -> dict[str, Path]:
    """The files of these modules and of all that they import, directly or not."""
    origins: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in origins:
            origin = _origin(module)
            assert origin is not None, module
            origins[module] = origin
            waiting.extend(_imports_of(module))
    return origins


def _named_data_files(origins: Mapping[str, Path]) -> dict[str, Path]:
    """By `module/file`: what the modules name, what those files name (templates extend each other), and so on."""
    unnamed = {
        f"{module}/{file.name}": file
        for module, origin in origins.items()
        if origin.name == "__init__.py"  # a module's folder is that of its package, which is in the closure with it
        for file in origin.parent.iterdir()
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    found: dict[str, Path] = {}
    waiting = list(origins.values())
    while waiting:
        source = waiting.pop().read_text(encoding="utf-8", errors="replace")
        named = {name: file for name, file in unnamed.items() if file.name in source}
        unnamed = {name: file for name, file in unnamed.items() if name not in named}
        found |= named
        waiting.extend(named.values())
    return found


def _imports_of(module: str) -> frozenset[str]:
    origin = _origin(module)
    assert origin is not None, module
    return _imports_in(module, origin.read_bytes())


@functools.cache
def _imports_in(module: str, source: bytes) -> frozenset[str]:
    """Parsed once: most modules are reached from most nodes."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = {name for name in names if name.split(".")[0] == _PACKAGE}
    parents = {
        ".".join(parts[:i]) for parts in (name.split(".") for name in (*ours, module)) for i in range(2, len(parts))
    }
    return frozenset(name for name in ours | parents if name != _PACKAGE and _origin(name) is not None)
