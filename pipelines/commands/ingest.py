"""`detloom ingest`: read a labelled data set and write checked tf.Examples, without TFX."""

import time
from collections.abc import Mapping
from typing import Any

import click

from detloom.components.example_gen.command_settings import command_settings
from detloom.components.example_gen.params import ExampleGenParams
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import complete_folder, verbose_option, workers_option
from detloom.pipelines.command_line.setting_options import build_settings, setting_options
from detloom.schemas.contracts.rejects import NO_SPLIT, REJECTS_FILE, REPORT_FILE
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape, redact

REJECTS_DIR = "rejects"  # inside the output folder


@command(
    "detloom ingest --input data/cells --output data/examples",
    "detloom ingest --input data/cells --output data/examples --split-by-ratio train=0.8,eval=0.1,test=0.1",
)
@click.option(
    "--input",
    "data_folder",
    type=str,
    required=True,
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
@setting_options(command_settings())
@workers_option
@verbose_option
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED)
def ingest_command(**options: Any) -> None:
    """Read a labelled data set and write checked tf.Examples.

    Records that cannot be used go to DIR/rejects with a reason. Arguments after -- are Apache Beam pipeline options;
    they choose the runner, for example `-- --runner=FlinkRunner --flink_master=host:8081`.
    """
    from detloom.pipelines.local.console import format_next, log_nodes

    if options["output"].startswith(("s3://", "az://")):
        shown = redact(options["output"])
        raise InputError(f"--output: got '{shown}', allowed: a folder, or an address at gs://.")
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
    from detloom.pipelines.local.beam_pipelines import pipeline_maker

    out = IngestFolders(options["output"], f"{options['output']}/{REJECTS_DIR}")
    make_pipeline = pipeline_maker(options["num_workers"], options["beam_args"])
    params = build_settings(ExampleGenParams, {name: options[name] for name in command_settings()})
    return ingest(options["data_folder"], params, out, make_pipeline)


def format_summary(report: Mapping[str, Any], output: str, seconds: float) -> str:
    """Format the counts, rejects and output paths of an ingestion as a table."""
    from detloom.pipelines.local.console import format_table

    def count(records: int, boxes: int) -> str:
        return f"{records} images, {boxes} boxes"

    def reasons(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{escape(name)} {number}" for name, number in counts.items()) or "none"

    num_boxes_refused = report["num_boxes_rejected"]
    num_bytes = sum(split["num_bytes"] for split in report["splits"].values())
    written = {name: split["num_written"] for name, split in report["splits"].items() if name != NO_SPLIT}
    splits = ", ".join(f"{name} {number}" for name, number in written.items())
    rows = [
        ("format", f"{report['data_format']}: {report['evidence']}"),
        ("in", count(report["num_in"], report["num_boxes_in"])),
        ("written", f"{count(report['num_written'], report['num_boxes_written'])} ({splits})"),
        ("quarantined", count(report["num_quarantined"], report["num_boxes_quarantined"])),
        ("dropped boxes", f"{num_boxes_refused}, of images that were written or are missing"),
        ("reasons", reasons(report["rejects_by_reason"])),
        ("repairs", reasons(report["repairs"])),
        ("left out", reasons(report["left_out"])),
        (
            "without label",
            ", ".join([f"{report['num_unlisted_images']} images", *map(escape, report["unlisted_images"])]),
        ),
        ("time", f"{seconds:.1f} s, {report['num_in'] / seconds:.0f} images/s, {num_bytes / 1e6 / seconds:.1f} MB/s"),
        ("examples", output),
        ("rejects", f"{output}/{REJECTS_DIR}/{REJECTS_FILE}"),
        ("report", f"{output}/{REJECTS_DIR}/{REPORT_FILE}"),
    ]
    return format_table(rows)
