"""Make a command whose help ends with its exit codes and examples."""

from collections.abc import Callable
from typing import Any

import click

from detloom.pipelines.command_line.exit_codes import OF_COMMANDS


def command(
    *examples: str, name: str | None = None, group: click.Group | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like `click.command`.

    Args:
        examples: lines to copy.
        name: default: the name of the function, without `_command`.
        group: the group that the command belongs to, if any.
        attributes: further arguments of `click.command`.
    """

    def make_command(function: Callable[..., Any]) -> click.Command:
        own_name = name or function.__name__.removesuffix("_command").replace("_", "-")
        words = f"{group.name} {own_name}" if group else own_name
        made: click.Command = click.command(own_name, epilog=end_of_help(words, *examples), **attributes)(function)
        if group is not None:
            group.add_command(made)
        return made

    return make_command


def end_of_help(words: str, *examples: str) -> str:
    """Return the last part of a command's --help, as an `epilog` of click.

    Args:
        words: the command's words after `detloom`.
    """
    codes = [f"  {code:<3}  {meaning}" for code, meaning in OF_COMMANDS.get(words, {}).items()]
    parts = [["Exit codes:", *codes]] if codes else []
    parts.append(["Examples:" if len(examples) > 1 else "Example:", *(f"  {line}" for line in examples)])
    return "\n\n".join("\n".join(("\b", *part)) for part in parts)  # \b: click keeps the line breaks
