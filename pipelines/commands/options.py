"""Options that several commands share."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from detloom.components.storage.storage import is_address
from detloom.schemas.reading.overrides import Located, read_setting
from detloom.schemas.reading.redact import redact


class LocalPath(click.Path):
    """A path on this machine; an address such as gs://bucket/name would become the folder `gs:`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_address(str(value)):
            self.fail(f"got the address {redact(str(value))!r}, allowed: a path on this machine.", param, ctx)
        return super().convert(value, param, ctx)


PATH = LocalPath(path_type=Path)
FILE = LocalPath(path_type=Path, dir_okay=False)
FOLDER = LocalPath(path_type=Path, file_okay=False)


def complete_folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a folder, for a parameter that may also be an address."""
    return [CompletionItem(incomplete, type="dir")]


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a file or folder, for a parameter that is no path only, such as a pattern of files."""
    return [CompletionItem(incomplete, type="file")]


def complete_preset(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a preset."""
    from detloom.schemas.presets.presets import list_presets

    return [CompletionItem(preset.name) for preset in list_presets() if preset.name.startswith(incomplete)]


def complete_config(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a configuration: a preset, or else a file. Shells take the files only if no preset matches."""
    return [*complete_file(context, parameter, incomplete), *complete_preset(context, parameter, incomplete)]


class NumberRange(click.FloatRange):
    """`click.FloatRange` that also rejects "nan", which passes every comparison with a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


_Command = TypeVar("_Command", bound=Callable[..., Any])


def override_options(command: _Command) -> _Command:
    """Add --set to a command; `read_override_options` parses them."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE|FILE",
        help="Override one setting, such as train.batch_size=8, or several in a YAML file; can be repeated.",
    )(command)


def read_override_options(settings: Sequence[str]) -> list[Located]:
    return [read_setting(text) for text in settings]


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
