"""The `detloom` command."""

import os
import sys
from pathlib import Path

import click

from detloom import __version__
from detloom.pipelines.compile_cli import COMMANDS as COMPILE_COMMANDS
from detloom.pipelines.config_cli import config, doctor, override_options, presets, read_override_options
from detloom.pipelines.data_cli import COMMANDS as DATA_COMMANDS
from detloom.pipelines.evaluate_cli import evaluate
from detloom.pipelines.export_cli import export
from detloom.pipelines.image_cli import COMMANDS as IMAGE_COMMANDS
from detloom.pipelines.lineage_cli import lineage
from detloom.pipelines.manifests_cli import COMMANDS as MANIFEST_COMMANDS
from detloom.pipelines.predict_cli import predict
from detloom.pipelines.push_cli import COMMANDS as PUSH_COMMANDS
from detloom.pipelines.restore_cli import restore_report
from detloom.pipelines.schedule_cli import COMMANDS as SCHEDULE_COMMANDS
from detloom.pipelines.serve_cli import serve
from detloom.pipelines.submit_cli import COMMANDS as SUBMIT_COMMANDS
from detloom.pipelines.timer_cli import COMMANDS as TIMER_COMMANDS
from detloom.pipelines.train_cli import train
from detloom.schemas.errors import InputError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported; its C++ notes help nobody here

_WORKSPACE = click.option(
    "--workspace",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for metadata, artifacts and pushed models; overrides the run file's. Default: detloom_runs/<name>.",
)
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of TFX, Beam and TensorFlow too.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__)
def cli() -> None:
    """Retrain object detectors in production with TFX."""


for command in (
    config,
    presets,
    doctor,
    train,
    evaluate,
    export,
    predict,
    serve,
    restore_report,
    lineage,
    *DATA_COMMANDS,
    *IMAGE_COMMANDS,
    *PUSH_COMMANDS,
    *COMPILE_COMMANDS,
    *SUBMIT_COMMANDS,
    *SCHEDULE_COMMANDS,
    *TIMER_COMMANDS,
    *MANIFEST_COMMANDS,
):
    cli.add_command(command)


@cli.command()
@click.argument("run_file", type=click.Path(path_type=Path))
@override_options
@_WORKSPACE
@_VERBOSE
def run(run_file: Path, settings: tuple[str, ...], hparams: str, workspace: Path | None, verbose: bool) -> None:
    """Run the pipeline of RUN_FILE on this machine: data in, blessed and pushed model out.

    What has not changed since the last run in the same workspace is answered from the cache. While another run is in
    the workspace, nothing is run and the exit code is 75.
    """
    from detloom.pipelines.run_local import run_locally
    from detloom.schemas.read_run_file import read_run_file

    overrides = read_override_options(settings, hparams)
    click.echo(run_locally(read_run_file(run_file, workspace, overrides), verbose=verbose))


@cli.command()
@override_options
@_WORKSPACE
@_VERBOSE
def demo(settings: tuple[str, ...], hparams: str, workspace: Path | None, verbose: bool) -> None:
    """Run the whole pipeline on an embedded data set: handwritten digits on photographs. Needs no download."""
    from detloom.pipelines.run_local import run_locally, sample_run_file
    from detloom.schemas.read_run_file import read_run_file

    overrides = read_override_options(settings, hparams)
    click.echo(run_locally(read_run_file(sample_run_file("demo"), workspace, overrides), verbose=verbose))


def main() -> None:
    """Entry point: a user's mistake is one sentence, without a traceback."""
    try:
        cli()
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", 1))  # of a workspace that another run has


if __name__ == "__main__":
    main()
