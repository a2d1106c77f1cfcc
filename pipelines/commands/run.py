"""`detloom run` and `detloom demo`: run a pipeline on this machine."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.init import recipe_options
from detloom.pipelines.commands.options import FOLDER, PATH, override_options, read_override_options
from detloom.pipelines.first_run.wishes import Wishes
from detloom.schemas.errors import InputError
from detloom.schemas.presets.recipes import Quality
from detloom.schemas.reading.overrides import Located

if TYPE_CHECKING:
    from detloom.schemas.run_file.run_file import RunFile

_LOGGER = logging.getLogger("detloom")
_FIRST_RUN_FILE = "run.yaml"  # in the workspace of a folder
_WORKSPACE = click.option(
    "--workspace",
    type=FOLDER,
    help="Folder for metadata, artifacts and pushed models; overrides the run file's. Default: detloom_runs/<name>.",
)
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of TFX, Beam and TensorFlow too.")


@click.command(
    epilog=end_of_help(
        "run",
        "detloom run photos/cells --budget 20m",
        "detloom run cells.yaml --set train.seed=1",
    )
)
@click.argument("source", type=PATH)
@override_options
@_WORKSPACE
@recipe_options
@_VERBOSE
@click.option("--explain", is_flag=True, help="Run nothing; print for each step whether it would run, and why.")
def run(
    source: Path,
    settings: tuple[str, ...],
    workspace: Path | None,
    budget: float | None,
    quality: Quality | None,
    data_format: str | None,
    verbose: bool,
    explain: bool,
) -> None:
    """Run the whole pipeline on this machine.

    Data in, blessed and pushed model out. SOURCE is a run file, or a folder of labelled images. For a folder, the
    settings are chosen as `detloom init` does, and written to run.yaml in the workspace. A later run of the folder uses
    this file, unless --budget, --quality or --format is given.

    Steps that have not changed since the last run in the same workspace are cached.
    """
    from detloom.pipelines.local.run_local import run_locally

    is_any_given = any(each is not None for each in (budget, quality, data_format))
    wishes = Wishes.of_options(budget, quality, data_format) if is_any_given else None
    read = read_source(source, workspace, read_override_options(settings), wishes)
    if explain:
        from detloom.pipelines.local.console import show_log
        from detloom.pipelines.local.explain import explain_run, format_explanations
        from detloom.schemas.model.config_checks import warnings_before_run

        show_log()
        for warning in warnings_before_run(read.config):
            _LOGGER.warning("%s", warning)
        click.echo(format_explanations(explain_run(read)))
    else:
        click.echo(run_locally(read, verbose=verbose))


def read_source(
    source: Path, workspace: Path | None, overrides: Sequence[Located], wishes: Wishes | None = None
) -> "RunFile":
    """Read a run file, or that of a folder of images, which is written first.

    Args:
        wishes: only for a folder; None keeps the settings of an earlier run of the folder.

    Raises:
        InputError: the run file is invalid, or no settings fit the folder.
    """
    from detloom.schemas.run_file.read_run_file import read_run_file

    if source.is_dir():
        keeps_file = wishes is None
        source, workspace = _prepare_first_run(source, workspace, wishes or Wishes(), keeps_file=keeps_file)
    elif wishes is not None:
        raise InputError(
            f"{source}: got --budget, --quality or --format with a run file, allowed: with a folder of images."
        )
    return read_run_file(source, workspace, overrides)


def _prepare_first_run(folder: Path, workspace: Path | None, wishes: Wishes, *, keeps_file: bool) -> tuple[Path, Path]:
    """Return the run file and the workspace of a folder; write the file unless an earlier one is kept."""
    from detloom.pipelines.first_run.write_run_file import name_of_folder, write_run_file
    from detloom.pipelines.local.console import show_log

    started = time.monotonic()
    show_log()
    name = name_of_folder(folder)
    workspace = workspace or Path("detloom_runs", name)
    run_file = workspace / _FIRST_RUN_FILE
    exists = run_file.exists()
    if exists and (other := _data_folder(run_file)) != folder.resolve():
        raise InputError(f"{run_file}: its data is {other}, not {folder}; choose another folder with --workspace.")
    if exists and keeps_file:
        _LOGGER.info("Using the settings in %s; give --budget, --quality or --format to choose again.", run_file)
    else:
        write_run_file(folder, run_file, name, wishes, started)
        _LOGGER.info("Wrote %s; its comments explain the settings.", run_file)
    return run_file, workspace


def _data_folder(run_file: Path) -> Path:
    from detloom.schemas.run_file.read_run_file import build_run, load_run_tree

    return (run_file.parent / build_run(load_run_tree(run_file)[0]).data.path).resolve()


@click.command(epilog=end_of_help("demo", "detloom demo"))
@override_options
@_WORKSPACE
@_VERBOSE
def demo(settings: tuple[str, ...], workspace: Path | None, verbose: bool) -> None:
    """Run the whole pipeline on an embedded data set.

    The data set is handwritten digits on photographs. Needs no download; takes five to ten minutes on two cores.
    """
    from detloom.pipelines.local.run_local import run_locally
    from detloom.pipelines.samples.sample_run_file import sample_run_file
    from detloom.schemas.run_file.read_run_file import read_run_file

    overrides = read_override_options(settings)
    click.echo(run_locally(read_run_file(sample_run_file("demo"), workspace, overrides), verbose=verbose))
