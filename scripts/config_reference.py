"""Writes docs/config_reference.md: every key of the run file, from the docs under the dataclasses' fields."""

import dataclasses
import sys
import types
import typing
from pathlib import Path

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "config_reference.md"
HEADER = """\
<!-- Made by `make docs` from the docstrings in schemas/. Do not edit. -->

# All keys of the run file

`RunFile` is the file itself; every other heading is the value of some key. A key whose type lists several headings
takes a mapping with a `type` key that names one of them; `Ssd` alone goes without. A key without a default must be
written, except below `model`, `train`, `eval`, `train_input` and `eval_input`, whose values start from those of
`detector`.
"""


def format_reference() -> str:
    from detloom.schemas.field_docs import class_doc, field_docs, nested_dataclasses
    from detloom.schemas.run_file import RunFile

    lines = [HEADER]
    for cls in nested_dataclasses(RunFile):
        lines += [f"## {cls.__name__}", "", class_doc(cls), ""]
        fields, hints = dataclasses.fields(cls), typing.get_type_hints(cls)
        if fields:
            lines += ["| key | type | default | effect |", "|---|---|---|---|"]
        for field in fields:
            default = "" if field.default is dataclasses.MISSING else _format_default(field.default)
            effect = field_docs(cls)[field.name].replace("<", "&lt;")
            lines.append(f"| `{field.name}` | {_format_type(hints[field.name])} | {default} | {effect} |")
        lines += [""] if fields else []
    return "\n".join(lines).rstrip() + "\n"


def _format_type(annotation: object) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return ", ".join("null" if arg is type(None) else _format_type(arg) for arg in args)
    if origin is tuple:
        return f"list of {_format_type(args[0])}"
    if origin is dict:
        return f"mapping to {_format_type(args[1])}"
    if origin is typing.Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    assert isinstance(annotation, type)
    return names[annotation]


def _format_default(value: object) -> str:
    if value is None:
        return "null"
    if dataclasses.is_dataclass(value):
        return "its defaults"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" else '`""`'


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # also without an installed detloom
    REFERENCE.write_text(format_reference(), encoding="utf-8")
    print(f"wrote {REFERENCE.relative_to(ROOT)}")
