"""What stands under the fields of the configuration's dataclasses: read from the source, so that it is written once."""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import typing
from collections.abc import Iterator

from detloom.schemas.typed_dict import dataclass_members


def class_doc(cls: type) -> str:
    """The docstring as one line."""
    return " ".join((cls.__doc__ or "").split())


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the string literal under it, as one line; a field without one is absent."""
    tree = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    docs = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docs[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return docs


def nested_dataclasses(cls: type) -> Iterator[type]:
    """`cls` and all dataclasses below it, each once, in the order of the fields."""
    seen: dict[type, None] = {}

    def visit(each: type) -> None:
        if each in seen:
            return
        seen[each] = None
        hints = typing.get_type_hints(each)
        for field in dataclasses.fields(each):
            for member in _members(hints[field.name]):
                visit(member)

    visit(cls)
    yield from seen


def _members(annotation: object) -> Iterator[type]:
    """The dataclasses that an annotation mentions."""
    yield from dataclass_members(annotation)
    if typing.get_origin(annotation) is tuple:
        yield from _members(typing.get_args(annotation)[0])
