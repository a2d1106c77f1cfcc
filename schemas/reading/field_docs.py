"""Read the documentation of a dataclass's fields, for references, JSON schemas, options and parameters."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
from typing import Any, NamedTuple

from detloom.schemas.reading.typed_dict import type_hints


def class_doc(cls: type) -> str:
    """Return the docstring of a class as one line."""
    return " ".join((cls.__doc__ or "").split())


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Map field names to the string literals below them, each as one line; fields without one inherit it."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                docs[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return docs


class Setting(NamedTuple):
    """A field; `default` is None for a mapping that is empty by default."""

    name: str
    annotation: Any
    default: Any
    doc: str


def settings_of(cls: type, *, leave_out: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return the fields of a dataclass by name."""
    hints, docs = type_hints(cls), field_docs(cls)
    settings = {}
    for item in dataclasses.fields(cls):
        if item.name not in leave_out:
            default = None if item.default is dataclasses.MISSING else item.default
            settings[item.name] = Setting(item.name, hints[item.name], default, docs[item.name])
    return settings
