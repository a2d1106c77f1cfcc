"""Write the chosen settings as a run file with a comment on each choice."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.read_config import read_sections
from detloom.schemas.run_file.run_file import RunFile

_INLINE_WIDTH = 100
_LINE_WIDTH = 118


@dataclass
class Choices:
    """A run file as a tree, and the reason for each choice by its key ("data.splits", "model.image_resizer", ...)."""

    settings: dict[str, Any]
    reasons: dict[str, str] = field(default_factory=dict)


def check_no_variable(root: str) -> None:
    """Raise InputError for a path of a data folder that a run file would expand."""
    if "{" in root:
        raise InputError(f"{root}: got a path with '{{', which a run file would expand; rename the folder.")


def make_pipeline_name(text: str) -> str:
    """Return a name of a pipeline that is like a text, such as the name of a folder, and valid on every platform."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-") or "detector"


@contextlib.contextmanager
def written_run_file(choices: Choices, header: str, path: Path) -> Iterator[RunFile]:
    """Write and check a run file, and yield its content; it replaces `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(format_run_file(choices, header), encoding="utf-8")
        yield read_sections(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def format_run_file(choices: Choices, header: str) -> str:
    """Return the run file as YAML.

    Args:
        header: first lines, without comment signs.
    """
    lines = [comment for line in header.splitlines() for comment in _comment(line, "")]
    for key, value in choices.settings.items():
        if isinstance(value, Mapping):
            lines += ["", f"{key}:"]
            for name, each in value.items():
                lines += _format_entry(name, each, choices.reasons, (key,))
        else:
            lines += _format_entry(key, value, choices.reasons, ())
    return "\n".join(lines) + "\n"


def _format_entry(key: str, value: Any, reasons: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    reason = reasons.get(".".join((*path, key)), "")
    if reason:
        yield from _comment(reason, indent)
    inline = f"{indent}{key}: {_inline(value)}"
    if len(inline) <= _INLINE_WIDTH or not isinstance(value, Mapping | list):
        yield inline
    elif isinstance(value, Mapping):
        yield f"{indent}{key}:"
        for name, each in value.items():
            yield from _format_entry(name, each, reasons, (*path, key))
    else:
        yield f"{indent}{key}:"
        yield from (f"{indent}  - {_inline(each)}" for each in value)


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(text: str, indent: str) -> Iterator[str]:
    """Yield comment lines; a line break in the name of a class or file must not end the comment."""
    line = f"{indent}#"
    for word in re.sub(r"[^\S ]|[\x00-\x1f\x7f\x85\u2028\u2029]", " ", text).split(" "):
        if len(line) + 1 + len(word) > _LINE_WIDTH and line != f"{indent}#":
            yield line
            line = f"{indent}#"
        line += f" {word}"
    yield line
