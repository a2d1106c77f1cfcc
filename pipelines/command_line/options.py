"""Options that several commands share."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from detloom.components.storage.local_copy import local_folder
from detloom.components.storage.storage import is_address
from detloom.schemas.contracts.runtime_names import RUNTIME_NAMES
from detloom.schemas.errors import InputError
from detloom.schemas.reading.overrides import Located, read_setting
from detloom.schemas.reading.redact import redact


class LocalPath(click.Path):
    """A path on this machine; an address such as gs://bucket/name would become the folder `gs:`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_address(str(value)):
            self.fail(f"got the address {redact(str(value))!r}, allowed: a path on this machine.", param, ctx)
        return super().convert(value, param, ctx)


class StoredPath(LocalPath):
    """A path on this machine, or an address at gs:// as a text; `copied` makes a local copy of it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        address = str(value).rstrip("/")
        if address.startswith("gs://"):
            return address
        if is_address(str(value)):
            shown = redact(str(value))
            self.fail(f"got the address {shown!r}, allowed: a path on this machine or an address at gs://.", param, ctx)
        return super().convert(value, param, ctx)


def copied(folder: Path | str, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Return a local folder as it is, and a copy of one at an address, which is deleted when the command ends.

    Args:
        wanted: says for each file's path in the folder whether it is copied.

    Raises:
        InputError: the address cannot be read, or the copy does not fit on the disk.
    """
    return _entered(folder, lambda address: local_folder(address, wanted))


def copied_model(folder: Path | str) -> Path:
    """Return a local model as it is, and a copy as `copied`; of versions at an address, the highest complete one."""
    from detloom.components.pusher.versions import local_model

    return _entered(folder, local_model)


def copied_examples(texts: Iterable[str]) -> Iterator[str]:
    """Yield evaluation sets, `[NAME=]WHERE`, with a local copy in place of an address.

    The address is that of a split, or of a folder of splits, of which the evaluation split is copied.
    """
    from detloom.components.examples_folder import SPLIT_PREFIX
    from detloom.pipelines.find_examples import split_name, wanted_splits

    for text in texts:
        name, where = split_name(text)
        if not is_address(where) or "*" in where:
            yield text
            continue
        parent, _, split_folder = where.rstrip("/").rpartition("/")
        if split_folder.startswith(SPLIT_PREFIX):
            split = split_folder.removeprefix(SPLIT_PREFIX)
            copy = copied(parent, wanted_splits(split)) / split_folder
        else:
            copy = copied(where.rstrip("/"), wanted_splits(""))
        yield f"{name}={copy}" if name else str(copy)


def _entered(folder: Path | str, copy: Callable[[str], contextlib.AbstractContextManager[Path]]) -> Path:
    address = str(folder)
    if not is_address(address):
        return Path(folder)
    try:
        return click.get_current_context().with_resource(copy(address))
    except OSError as error:
        raise InputError(f"{redact(address)}: cannot be read ({error.strerror or error}).") from None


PATH = LocalPath(path_type=Path)
FILE = LocalPath(path_type=Path, dir_okay=False)
FOLDER = LocalPath(path_type=Path, file_okay=False)
STORED_PATH = StoredPath(path_type=Path)
STORED_FOLDER = StoredPath(path_type=Path, file_okay=False)


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
verbose_option = click.option("--verbose", is_flag=True, help="Show the log of TFX, Beam and TensorFlow too.")
runtime_option = click.option(
    "--runtime",
    type=click.Choice(RUNTIME_NAMES),
    default="auto",
    show_default=True,
    help="What runs the model: auto takes onnxruntime if the version has a model.onnx that was evaluated and the "
    "machine has no GPU of NVIDIA, else tensorflow.",
)
workers_option = click.option(
    "--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes."
)
