"""`detloom run` and `detloom demo`: run a pipeline on this machine."""

from pathlib import Path

import click

from detloom.pipelines.commands.options import FOLDER, PATH, override_options, read_override_options

_WORKSPACE = click.option(
    "--workspace",
    type=FOLDER,
    help="Folder for metadata, artifacts and pushed models; overrides the run file's. Default: detloom_runs/<name>.",
)
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of TFX, Beam and TensorFlow too.")


@click.command()
@click.argument("run_file", type=PATH)
@override_options
@_WORKSPACE
@_VERBOSE
@click.option("--explain", is_flag=True, help="Run nothing; print for each step whether it would run, and why.")
def run(run_file: Path, settings: tuple[str, ...], workspace: Path | None, verbose: bool, explain: bool) -> None:
    """Run the pipeline of RUN_FILE on this machine: data in, blessed and pushed model out.

    Steps that have not changed since the last run in the same workspace are cached. The exit code is 0 if the run ends
    with a decision, even if the model is not blessed, and 1 if it fails. If another run uses the workspace, nothing is
    run and the exit code is 75.
    """
    from detloom.pipelines.local.run_local import run_locally
    from detloom.schemas.run_file.read_run_file import read_run_file

    read = read_run_file(run_file, workspace, read_override_options(settings))
    if explain:
        from detloom.pipelines.local.console import show_log
        from detloom.pipelines.local.explain import explain_run, format_explanations

        show_log()
        click.echo(format_explanations(explain_run(read)))
    else:
        click.echo(run_locally(read, verbose=verbose))


@click.command()
@override_options
@_WORKSPACE
@_VERBOSE
def demo(settings: tuple[str, ...], workspace: Path | None, verbose: bool) -> None:
    """Run the whole pipeline on an embedded data set: handwritten digits on photographs. Needs no download."""
    from detloom.pipelines.local.run_local import run_locally
    from detloom.pipelines.samples.sample_run_file import sample_run_file
    from detloom.schemas.run_file.read_run_file import read_run_file

    overrides = read_override_options(settings)
    click.echo(run_locally(read_run_file(sample_run_file("demo"), workspace, overrides), verbose=verbose))
