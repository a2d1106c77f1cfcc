"""Fingerprints of code: of modules with all that they import, and of the whole package.

TFX's cache compares only parameters, so the fingerprint of a node's source is one of them. A task of a compiled job
names its modules and their fingerprint in its command, which the backends' caches compare; a container refuses the task
if its image has another one. Fingerprints cover what is executed: comments, docstrings and formatting change none of
them. They are the same in all versions of Python. This module imports nothing heavy.
"""

import ast
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import detloom
from detloom.schemas.errors import InputError

_PACKAGE = detloom.__name__


def source_fingerprint(*modules: str) -> str:
    """Return 16 hex digits over these modules and all detloom modules that they import, directly or indirectly.

    Imports are read from the source, including those inside functions; nothing is executed. A data file next to one of
    these modules (such as a template) is included if an included file contains its name.
    """
    origins = _reach(*modules)
    digests = {
        name: _digest(file.read_bytes(), file.suffix)
        for name, file in {**origins, **_named_data_files(origins)}.items()
    }
    fingerprint = _digest_of_all(digests)
    _DIGESTS[fingerprint] = digests
    return fingerprint


_DIGESTS: dict[str, dict[str, bytes]] = {}  # of the fingerprints that this process has computed


def digests_of(fingerprint: str) -> dict[str, str] | None:
    """Return the digests of the modules and data files of a `source_fingerprint` by name.

    Returns:
        None if this process did not compute the fingerprint.
    """
    digests = _DIGESTS.get(fingerprint)
    return None if digests is None else {name: digest.hex()[:16] for name, digest in digests.items()}


def _digest_of_all(digests: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(digests):
        digest.update(f"{name}\0".encode())
        digest.update(digests[name])
    return digest.hexdigest()[:16]


@functools.cache
def _digest(content: bytes, suffix: str) -> bytes:
    """Return a digest of a file's content; of Python source, of its syntax tree without docstrings."""
    code = "".join(_dump(ast.parse(content))).encode("utf-8", "surrogatepass") if suffix == ".py" else content
    return hashlib.sha256(code).digest()


def _dump(value: object) -> Iterator[str]:
    """Yield the text of a part of a syntax tree. Unlike that of `ast.dump`, it leaves out what a version may lack."""
    if isinstance(value, ast.AST):
        yield f"{type(value).__name__}("
        for name, field in ast.iter_fields(value):
            if isinstance(value, ast.JoinedStr):  # Python 3.12.1 adds empty strings
                field = [each for each in field if not (isinstance(each, ast.Constant) and each.value == "")]
            if field is not None and field != []:
                yield f"{name}="
                yield from _dump(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for each in value:
            if not _is_text(each):
                yield from _dump(each)
        yield "]"
    else:
        yield f"{value!r},"


def _is_text(node: object) -> bool:
    """Return whether a statement is only a string: a docstring, or the documentation of an attribute."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@functools.cache
def _origin(module: str) -> Path | None:
    """Return the file of a detloom module, or None. Only searches files: a lookup must not import TensorFlow."""
    relative = Path(*module.split(".")[1:])
    for folder in detloom.__path__:
        for file in (Path(folder) / relative / "__init__.py", (Path(folder) / relative).with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _file_of(module: str) -> Path:
    origin = _origin(module)
    assert origin is not None, module
    return origin


def _reach(*modules: str) -> dict[str, Path]:
    """Return the files of these modules and of all modules that they import, directly or indirectly.

    The packages that contain them are included, but not what their `__init__.py` imports, which they only re-export.
    """
    origins: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in origins:
            continue
        origins[module] = _file_of(module)
        names = _imports_in(origins[module].read_bytes())
        imported = (name if _origin(name) else name.rpartition(".")[0] for name in names)
        waiting += [name for name in imported if _origin(name)]
    parents = {parent for module in origins for parent in _parents(module)}
    return {**origins, **{parent: _file_of(parent) for parent in parents - origins.keys()}}


def _parents(module: str) -> list[str]:
    """Return the packages that contain a module, without `detloom` itself."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(2, len(parts))]


def _named_data_files(origins: Mapping[str, Path]) -> dict[str, Path]:
    """Return data files by `module/file`: those named in the modules or in other included data files (templates)."""
    unnamed = {
        f"{module}/{file.name}": file
        for module, origin in origins.items()
        if origin.name == "__init__.py"  # the folder of a module belongs to its package, which is included as well
        for file in origin.parent.iterdir()
        if file.is_file() and file.suffix in DATA_SUFFIXES  # not stubs, which do not change what a node computes
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


@functools.cache
def _imports_in(source: bytes) -> frozenset[str]:
    """Return the names that a source imports from detloom: `package.module` or `package.module.name`.

    Cached, because nodes share modules.
    """
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))
    return frozenset(name for name in names if name.startswith(f"{_PACKAGE}."))


LAYERS = ("components", "pipelines", "schemas", "trainer_module")  # as in setup.py's ROOTS
DATA_SUFFIXES = (".pbtxt", ".tsv", ".yaml", ".j2", ".css", ".js")  # as in setup.py's package_data
_TYPED = "py.typed"


def package_fingerprint(folders: Sequence[str | Path] | None = None) -> str:
    """Return 16 hex digits over all files that a wheel contains: the same in a checkout and in its installed wheel.

    Args:
        folders: default to those of `detloom.__path__`.
    """
    files = package_files(folders).items()
    return _digest_of_all({name: _digest(file.read_bytes(), file.suffix) for name, file in files})


def source_folders() -> tuple[str, ...]:
    """Return the folders of detloom's layers, with a slash at the end."""
    return tuple(os.path.join(folder, layer) + os.sep for folder in detloom.__path__ for layer in LAYERS)


def package_files(folders: Sequence[str | Path] | None = None) -> dict[str, Path]:
    """Return files by path within the package. In a checkout, `detloom/` and the layers beside it are one package."""
    found: dict[str, Path] = {}
    for folder in (Path(folder) for folder in (detloom.__path__ if folders is None else folders)):
        # false for the root of a checkout, whose setup.py is not part of the package
        if (folder / "__init__.py").is_file():
            found |= {
                name: folder / name for name in ("__init__.py", "__init__.pyi", _TYPED) if (folder / name).is_file()
            }
        for layer in LAYERS:
            found |= {file.relative_to(folder).as_posix(): file for file in _files_of_layer(folder / layer)}
    return found


def _files_of_layer(layer: Path) -> Iterator[Path]:
    """Yield the files that setup.py packages: modules of folders with an __init__.py, data files of all folders."""
    for parent, folders, files in os.walk(layer):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        is_package = "__init__.py" in files
        for name in files:
            suffix = os.path.splitext(name)[1]
            if suffix in DATA_SUFFIXES or (is_package and (suffix in (".py", ".pyi") or name == _TYPED)):
                yield Path(parent, name)


CODE_FLAG = "--code"  # an option of the container's entrypoint
MAX_JOB_BYTES = 64 << 20  # far more than either backend accepts
_MODULES, _IS = "+", "="
_CODE = re.compile(rb"detloom(?:\.\w+)+(?:\+detloom(?:\.\w+)+)*=[0-9a-f]{16}\b")


def describe_code(*modules: str) -> str:
    """Return modules with the fingerprint of all that they import, such as detloom.a.b+detloom.c=0123456789abcdef."""
    return _MODULES.join(modules) + _IS + source_fingerprint(*modules)


def check_code(wanted: str) -> None:
    """Raise InputError unless the modules in a text of `describe_code` have the same fingerprint here."""
    names, _, fingerprint = wanted.rpartition(_IS)
    modules = names.split(_MODULES)
    missing = [module for module in modules if not module.startswith(f"{_PACKAGE}.") or _origin(module) is None]
    found = f"has no {', '.join(missing)}" if missing else f"contains {source_fingerprint(*modules)}"
    if missing or describe_code(*modules) != wanted:
        raise InputError(
            f"the task was compiled with the code {fingerprint or wanted} of {names}, this image {found}: build the "
            "image again from the version that compiles, or compile with the version in the image."
        )


def read_job_code(job: bytes, name: str) -> tuple[str, ...]:
    """Return the distinct texts of `describe_code` in a compiled job, sorted.

    The job is searched as text: on one line, in JSON, in YAML, or in JSON inside a JSON string (custom jobs).

    Args:
        job: a compiled job for either backend, JSON or YAML.
        name: the name of the job in error messages.

    Raises:
        InputError: if the job contains none or is larger than `MAX_JOB_BYTES`.
    """
    if len(job) > MAX_JOB_BYTES:
        raise InputError(f"{name}: got more than {MAX_JOB_BYTES >> 20} MiB, allowed: a job that detloom compiled.")
    found = sorted({value.decode() for value in _CODE.findall(job)})
    if not found:
        raise InputError(
            f"{name}: found no {CODE_FLAG} with modules and 16 hex digits, allowed: a job that `detloom compile` wrote "
            "for Kubeflow or Vertex; compile the run file and pass the output."
        )
    return tuple(found)
