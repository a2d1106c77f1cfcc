"""`detloom init`: write a run file for a folder of labelled images."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detloom.components.example_gen.sources.formats import FORMATS
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FILE, FOLDER, PATH
from detloom.schemas.errors import InputError
from detloom.schemas.presets.recipes import DEFAULT_QUALITY, QUALITIES, Quality

if TYPE_CHECKING:
    from detloom.pipelines.init.write_run_file import InitOptions

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Duration(click.ParamType):
    """A duration such as 20m or 1h30m, converted to seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.fullmatch(str(value))
        parts = match.groups() if match else ("", "", "")
        hours, minutes, seconds = (int(part or 0) for part in parts)
        total = 3600 * hours + 60 * minutes + seconds
        if not 0 < total <= 30 * 24 * 3600:
            self.fail(f"{value!r} is not a duration such as 20m, 90s or 1h30m, of at most 720h.", param, ctx)
        return float(total)


def recipe_options(command: _Command) -> _Command:
    """Add --budget, --quality and --format to a command."""
    for option in (
        click.option(
            "--format", "data_format", type=click.Choice(list(FORMATS)), help="Format of the labels. Default: detected."
        ),
        click.option(
            "--quality",
            type=click.Choice(QUALITIES),
            help=f"Size of the network and of its input. Default: {DEFAULT_QUALITY}.",
        ),
        click.option(
            "--budget",
            type=Duration(),
            metavar="DURATION",
            help="Time limit of the run, such as 20m; the step time is measured, and the schedule planned for it.",
        ),
    ):
        command = option(command)
    return command


@command(
    "detloom init photos/cells -o cells.yaml --budget 20m",
    "detloom init --from-odapi models/pets/pipeline.config -o pets.yaml",
)
@click.argument("folder", type=PATH, required=False)
@click.option(
    "--from-odapi",
    "config",
    type=FILE,
    metavar="FILE",
    help="A pipeline.config of the Object Detection API, instead of FOLDER.",
)
@click.option(
    "--records",
    type=FOLDER,
    help="With --from-odapi: folder of the TFRecord files. Default: from the configuration.",
)
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="With --from-odapi: initial weights, as train.fine_tune_checkpoint; '' for random weights. Default: from "
    "the configuration.",
)
@click.option("-o", "--output", type=FILE, help="The run file. Default: the name of the pipeline, with .yaml.")
@click.option("--name", default="", help="Name of the pipeline. Default: from the name of FOLDER or of the file.")
@recipe_options
@click.option("--force", is_flag=True, help="Replace an existing run file.")
def init(
    folder: Path | None,
    config: Path | None,
    records: Path | None,
    checkpoint: str | None,
    output: Path | None,
    name: str,
    budget: float | None,
    quality: Quality | None,
    data_format: str | None,
    force: bool,
) -> None:
    """Write a run file for a folder of labelled images.

    Format, splits, input size, anchors, network, schedule and augmentation are chosen from the data in FOLDER, and the
    reason for each choice is a comment. Edit the file as you like, then run it.

    With --from-odapi, write a run file that reads a pipeline.config of the Object Detection API with its TFRecord files
    and its checkpoint, and print what you have to decide.
    """
    from detloom.pipelines.init.write_run_file import InitOptions
    from detloom.pipelines.local.console import format_next

    options = InitOptions(quality=quality, seconds=budget, data_format=data_format)
    if (folder is None) == (config is None):
        raise InputError("detloom init: needs either FOLDER, with labelled images, or --from-odapi.")
    if folder is not None and folder.is_file():
        raise InputError(
            f"{folder}: is a file; give the folder of the data set, such as '{folder.parent}'. --from-odapi reads a "
            "pipeline.config."
        )
    if config is not None and options != InitOptions():
        raise InputError("--budget, --quality and --format need FOLDER; with --from-odapi, the configuration decides.")
    if folder is not None and (records is not None or checkpoint is not None):
        raise InputError("--records and --checkpoint need --from-odapi.")
    if folder is not None:
        output = _init_from_folder(folder, output, name, options, force)
    elif config is not None:
        output = _init_from_odapi(config, records, checkpoint, output, name, force)
    click.echo(format_next("detloom", "run", output))


def _init_from_folder(folder: Path, output: Path | None, name: str, options: "InitOptions", force: bool) -> Path:
    from detloom.pipelines.init.run_file_text import make_pipeline_name
    from detloom.pipelines.init.write_run_file import write_run_file
    from detloom.pipelines.local.console import show_log

    started = time.monotonic()
    show_log()
    name = name or make_pipeline_name(folder.resolve().name)
    output = output or Path(f"{name}.yaml")
    _check_absent(output, force)
    write_run_file(folder, output, name, options, started)
    click.echo(f"Wrote {output}.")
    return output


def _init_from_odapi(
    config: Path, records: Path | None, checkpoint: str | None, output: Path | None, name: str, force: bool
) -> Path:
    from detloom.pipelines.init.from_pipeline_config import name_of_config, write_migration

    name = name or name_of_config(config)
    output = output or Path(f"{name}.yaml")
    _check_absent(output, force)
    decisions = write_migration(config, output, name, records, checkpoint)
    click.echo(f"Wrote {output}. To decide:")
    click.echo("\n".join(f"- {each}" for each in decisions))
    return output


def _check_absent(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise InputError(f"{path}: exists already; give another name with -o, or replace it with --force.")
