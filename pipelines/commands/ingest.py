"""`detloom ingest`: read a labelled data set and write checked tf.Examples, without TFX."""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import click

from detloom.components.example_gen.command_settings import Setting, command_settings
from detloom.components.example_gen.params import ExampleGenParams
from detloom.components.storage.s3_storage import S3Storage
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, complete_folder
from detloom.schemas.contracts.rejects import REJECTS_FILE, REPORT_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact

REJECTS_DIR = "rejects"  # inside the output folder
_REPLAYABLE_OPTIONS = {"data_folder", "output", "num_workers", "replay_folder", "beam_args", "verbose"}
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of Beam and TensorFlow too.")


class _Pairs(click.ParamType):
    """NAME=VALUE,... as a dictionary."""

    name = "pairs"

    def __init__(self, value_type: type) -> None:
        self._value_type = value_type

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        pairs: dict[str, Any] = {}
        for text in _split_list(value) if isinstance(value, str) else ():
            name, equals, right = text.partition("=")
            if not (name and equals) or name in pairs:
                self.fail(f"got {text!r}, allowed: NAME=VALUE, each name once", param, ctx)
            try:
                pairs[name] = self._value_type(right)
            except ValueError:
                self.fail(f"{name}: got {right!r}, allowed: a number", param, ctx)
        return pairs


def _setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting of the ingestion, named and documented by its field."""
    settings = command_settings()
    for setting in reversed(settings.values()):
        help_text = re.sub(
            r"`(\w+)`", lambda match: _option_name(match[1]) if match[1] in settings else match[0], setting.doc
        )
        command = click.option(_option_name(setting.name), help=help_text, **_option_type(setting))(command)
    return command


def _option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _option_type(setting: Setting) -> dict[str, Any]:
    """Return the arguments of `click.option` for the type of a setting."""
    origin, arguments = get_origin(setting.annotation), get_args(setting.annotation)
    if origin is Literal:
        return {"type": click.Choice(arguments), "default": setting.default, "show_default": True}
    if origin is dict:
        value_type = arguments[1]
        metavar = "NAME=SHARE,..." if value_type is float else "NAME=SOURCE,..."
        return {"type": _Pairs(value_type), "default": "", "metavar": metavar}
    if origin is tuple:
        return {"default": "", "metavar": "A,B", "callback": lambda ctx, param, value: tuple(_split_list(value))}
    if setting.annotation is bool:
        return {"is_flag": True}
    return {"type": setting.annotation, "default": setting.default, "show_default": setting.default != ""}


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@command(
    "detloom ingest --input data/cells --output data/examples",
    "detloom ingest --input data/cells --output data/examples --split-by-ratio train=0.8,eval=0.1,test=0.1",
)
@click.option(
    "--input",
    "data_folder",
    type=str,
    shell_complete=complete_folder,
    help="Folder of the data set, or its address (gs://..., s3://...).",
)
@click.option(
    "--output",
    type=str,
    required=True,
    metavar="DIR",
    shell_complete=complete_folder,
    help="Folder for shards, label map, rejects and report.",
)
@_setting_options
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--replay",
    "replay_folder",
    type=FOLDER,
    metavar="REJECTS",
    help="Read the quarantined records of an earlier run again.",
)
@_VERBOSE
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def ingest(context: click.Context, /, **options: Any) -> None:
    """Read a labelled data set and write checked tf.Examples.

    Records that cannot be used go to DIR/rejects with a reason. Arguments after -- are Apache Beam pipeline options;
    they choose the runner, for example `-- --runner=FlinkRunner --flink_master=host:8081`.
    """
    from detloom.pipelines.local.console import format_next, log_nodes

    if options["replay_folder"] is not None:
        _check_replay_options(context)
    elif not options["data_folder"]:
        raise click.UsageError("Missing option '--input' (or '--replay').")
    if options["output"].startswith(S3Storage.scheme):
        shown = redact(options["output"])
        raise InputError(f"--output: got '{shown}', allowed: a folder, or an address at gs:// or hdfs://.")
    log_nodes(options["verbose"])
    # late: imports Beam, whose import time does not belong to the ingestion time
    from detloom.components.example_gen.ingest import RefusedDataError

    started = time.monotonic()
    try:
        report = _ingest(options)
    except RefusedDataError as error:
        click.echo(format_summary(error.report, options["output"], time.monotonic() - started))
        raise
    click.echo(format_summary(report, options["output"], time.monotonic() - started))
    click.echo(format_next("detloom", "validate", options["output"]))


def _ingest(options: Mapping[str, Any]) -> dict[str, Any]:
    from detloom.components.example_gen.ingest import IngestFolders, ingest
    from detloom.components.example_gen.replay import replay
    from detloom.pipelines.local.beam_pipelines import pipeline_maker

    out = IngestFolders(options["output"], f"{options['output']}/{REJECTS_DIR}")
    make_pipeline = pipeline_maker(options["num_workers"], options["beam_args"])
    if options["replay_folder"] is not None:
        return replay(options["replay_folder"], out, make_pipeline, root=options["data_folder"] or "")
    params = ExampleGenParams(**{name: options[name] for name in command_settings()})
    return ingest(options["data_folder"], params, out, make_pipeline)


def format_summary(report: Mapping[str, Any], output: str, seconds: float) -> str:
    """Format the counts, rejects and output paths of an ingestion as a table."""
    from detloom.pipelines.local.console import format_table

    def count(records: int, boxes: int) -> str:
        return f"{records} images, {boxes} boxes"

    def reasons(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"

    num_boxes_refused = report["num_boxes_rejected"]
    num_bytes = sum(split["num_bytes"] for split in report["splits"].values())
    splits = ", ".join(f"{name} {split['num_written']}" for name, split in report["splits"].items())
    rows = [
        ("format", f"{report['data_format']}: {report['evidence']}"),
        ("in", count(report["num_in"], report["num_boxes_in"])),
        ("written", f"{count(report['num_written'], report['num_boxes_written'])} ({splits})"),
        ("quarantined", count(report["num_quarantined"], report["num_boxes_quarantined"])),
        ("dropped boxes", f"{num_boxes_refused}, whose images were written"),
        ("reasons", reasons(report["rejects_by_reason"])),
        ("repairs", reasons(report["repairs"])),
        ("left out", reasons(report["left_out"])),
        ("time", f"{seconds:.1f} s, {report['num_in'] / seconds:.0f} images/s, {num_bytes / 1e6 / seconds:.1f} MB/s"),
        ("examples", output),
        ("rejects", f"{output}/{REJECTS_DIR}/{REJECTS_FILE}"),
        ("report", f"{output}/{REJECTS_DIR}/{REPORT_FILE}"),
    ]
    if "num_asked" in report:
        rows.insert(1, ("asked for", f"{report['num_asked']} quarantined images"))
    return format_table(rows)


def _check_replay_options(context: click.Context) -> None:
    for name in context.params:
        if name in _REPLAYABLE_OPTIONS:
            continue
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--replay uses the settings of the earlier run; got '{name}' as well.")
