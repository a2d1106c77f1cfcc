"""The `detloom` command line."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from detloom import __version__
from detloom.components.storage.local_copy import with_addresses
from detloom.pipelines.command_line.command import end_of_help
from detloom.pipelines.commands.compile import compile_command
from detloom.pipelines.commands.completion import VARIABLE as COMPLETION_VARIABLE
from detloom.pipelines.commands.completion import completion
from detloom.pipelines.commands.config import config
from detloom.pipelines.commands.data_service import data_service
from detloom.pipelines.commands.doctor import doctor
from detloom.pipelines.commands.evaluate import evaluate_command
from detloom.pipelines.commands.export import export
from detloom.pipelines.commands.export_data import export_coco, export_yolo
from detloom.pipelines.commands.image_check import image_check
from detloom.pipelines.commands.ingest import ingest_command
from detloom.pipelines.commands.init import init
from detloom.pipelines.commands.inspect import inspect
from detloom.pipelines.commands.lineage import lineage
from detloom.pipelines.commands.manifest import manifest
from detloom.pipelines.commands.predict import predict
from detloom.pipelines.commands.presets import presets
from detloom.pipelines.commands.push import push, rollback, verify, versions
from detloom.pipelines.commands.restore_report import restore_report
from detloom.pipelines.commands.run import demo, run_command
from detloom.pipelines.commands.schedule import schedule
from detloom.pipelines.commands.serve import serve
from detloom.pipelines.commands.status import status
from detloom.pipelines.commands.submit import submit
from detloom.pipelines.commands.timer import timer
from detloom.pipelines.commands.train import train_command
from detloom.pipelines.commands.validate import validate
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.reading.redact import escape_lines
from detloom.trainer_module.files.system_errors import describe_system_error
from detloom.trainer_module.runtime.native_log import hide_native_log

# The commands of --help by task, in the order in which they are usually needed.
SECTIONS: Mapping[str, Sequence[click.Command]] = {
    "Start": (init, run_command, demo, doctor, completion),
    "Data": (ingest_command, validate, inspect, export_coco, export_yolo),
    "Train": (presets, config, restore_report, train_command, data_service),
    "Evaluate": (evaluate_command, predict),
    "Deploy": (export, push, versions, verify, rollback, serve),
    "Operate": (timer, compile_command, image_check, submit, status, schedule, manifest, lineage),
}


class _SectionedGroup(click.Group):
    """A group whose help lists its commands in sections; Ctrl-C ends it with the exit code of an interruption."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(f"{each.name or '':<{width}}", each.get_short_help_str(formatter.width)) for each in commands]
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would end with 1
            click.echo("Interrupted.", err=True)
            sys.exit(ExitCode.INTERRUPTED)


@click.group(
    cls=_SectionedGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=end_of_help("", "detloom run photos/cells --budget 20m", "detloom run cells.yaml"),
)
@click.version_option(__version__)
def cli() -> None:
    """Retrain object detectors in production with TFX."""


for command in (each for commands in SECTIONS.values() for each in commands):
    cli.add_command(command)


def main() -> None:
    """Run the command line; print a user's mistake or an error of the system as one sentence instead of a traceback."""
    if "--verbose" not in sys.argv and COMPLETION_VARIABLE not in os.environ:
        hide_native_log()
    try:
        cli()
    except InputError as error:
        click.echo(f"error: {escape_lines(with_addresses(str(error)))}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        described = describe_system_error(error, sys.argv[1:])
        if described is None:
            raise
        click.echo(f"error: {described}", err=True)
        sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    main()
