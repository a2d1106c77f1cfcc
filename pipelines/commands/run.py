"""`detloom run` and `detloom demo`: run a pipeline on this machine."""

import logging
from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, PATH, override_options, read_override_options, verbose_option
from detloom.pipelines.commands.init import recipe_options
from detloom.schemas.presets.recipes import Quality

_LOGGER = logging.getLogger("detloom")
_WORKSPACE = click.option(
    "--workspace",
    type=FOLDER,
    help="Folder for metadata, artifacts and pushed models; overrides the run file's. Default: detloom_runs/<name>.",
)


@command("detloom run photos/cells --budget 20m", "detloom run cells.yaml --set train.seed=1")
@click.argument("source", type=PATH)
@override_options
@_WORKSPACE
@recipe_options
@verbose_option
@click.option("--explain", is_flag=True, help="Run nothing; print for each step whether it would run, and why.")
def run_command(
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
    from detloom.pipelines.init.write_run_file import InitOptions, read_run_source
    from detloom.pipelines.local.run_local import run_locally, warnings_of

    options = InitOptions(quality=quality, seconds=budget, data_format=data_format)
    new_settings = options if options != InitOptions() else None
    read = read_run_source(source, workspace, read_override_options(settings), new_settings)
    if explain:
        from detloom.pipelines.local.console import show_log
        from detloom.pipelines.local.explain import explain_run, format_explanations

        show_log()
        for warning in warnings_of(read):
            _LOGGER.warning("%s", warning)
        click.echo(format_explanations(explain_run(read)))
    else:
        click.echo(run_locally(read, verbose=verbose))


@command("detloom demo")
@override_options
@_WORKSPACE
@verbose_option
def demo(settings: tuple[str, ...], workspace: Path | None, verbose: bool) -> None:
    """Run the whole pipeline on an embedded data set.

    The data set is handwritten digits on photographs. Needs no download; takes five to ten minutes on two cores.
    """
    from detloom.pipelines.local.run_local import run_locally
    from detloom.pipelines.samples.sample_run_file import sample_run_file
    from detloom.schemas.run_file.read_run_file import read_run_file

    overrides = read_override_options(settings)
    click.echo(run_locally(read_run_file(sample_run_file("demo"), workspace, overrides), verbose=verbose))
