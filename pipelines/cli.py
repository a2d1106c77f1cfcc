"""The `detloom` command line."""

import sys

import click

from detloom import __version__
from detloom.pipelines.commands.compile import compile_command
from detloom.pipelines.commands.config import config
from detloom.pipelines.commands.doctor import doctor
from detloom.pipelines.commands.evaluate import evaluate
from detloom.pipelines.commands.export import export
from detloom.pipelines.commands.export_data import export_coco, export_yolo
from detloom.pipelines.commands.image_check import image_check
from detloom.pipelines.commands.ingest import ingest
from detloom.pipelines.commands.init import init
from detloom.pipelines.commands.inspect import inspect
from detloom.pipelines.commands.lineage import lineage
from detloom.pipelines.commands.manifest import COMMANDS as MANIFEST_COMMANDS
from detloom.pipelines.commands.native_log import hide_native_log
from detloom.pipelines.commands.predict import predict
from detloom.pipelines.commands.presets import presets
from detloom.pipelines.commands.push import COMMANDS as PUSH_COMMANDS
from detloom.pipelines.commands.restore_report import restore_report
from detloom.pipelines.commands.run import demo, run
from detloom.pipelines.commands.schedule import schedule
from detloom.pipelines.commands.serve import serve
from detloom.pipelines.commands.status import status
from detloom.pipelines.commands.submit import submit
from detloom.pipelines.commands.system_errors import describe_system_error
from detloom.pipelines.commands.timer import COMMANDS as TIMER_COMMANDS
from detloom.pipelines.commands.train import train
from detloom.pipelines.commands.validate import validate
from detloom.schemas.errors import InputError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__)
def cli() -> None:
    """Retrain object detectors in production with TFX."""


for command in (
    run,
    init,
    demo,
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
    ingest,
    inspect,
    validate,
    export_coco,
    export_yolo,
    image_check,
    *PUSH_COMMANDS,
    compile_command,
    submit,
    status,
    schedule,
    *TIMER_COMMANDS,
    *MANIFEST_COMMANDS,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line; print a user's mistake or an error of the system as one sentence instead of a traceback."""
    if "--verbose" not in sys.argv:
        hide_native_log()
    try:
        cli()
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", 1))  # WorkspaceBusyError has its own exit code
    except Exception as error:
        described = describe_system_error(error, sys.argv[1:])
        if described is None:
            raise
        click.echo(f"error: {described}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
