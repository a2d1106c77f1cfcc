"""`detloom validate`: check examples before training."""

import json
from pathlib import Path

import click

from detloom.components.storage.local_copy import local_output
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    PATH,
    STORED_FOLDER,
    complete_config,
    copied,
    json_option,
    verbose_option,
    workers_option,
)
from detloom.pipelines.commands.ingest import REJECTS_DIR
from detloom.schemas.errors import InputError

_REPORT_FOLDER = "validation"  # in the folder of the examples
_EXAMPLE_PRESET = "efficientdet_lite0"


@command("detloom validate data/examples", "detloom validate data/examples --config cells.yaml --json")
@click.argument("examples", metavar="DIR", type=STORED_FOLDER)
@click.option("--output", type=STORED_FOLDER, help="Folder for report.json and report.html; default: DIR/validation.")
@click.option(
    "--previous",
    type=PATH,
    metavar="REPORT.json",
    help="Report of earlier data, for drift checks.",
)
@click.option(
    "--checks",
    "checks_file",
    type=PATH,
    metavar="FILE.yaml",
    help="File with severities and limits.",
)
@click.option(
    "--config",
    metavar="CONFIG",
    shell_complete=complete_config,
    help="pipeline.config, run file or preset: use its input size and anchors; of a run file, its checks too.",
)
@click.option("--train-split", default="", metavar="NAME", help="Default: train, else the first.")
@workers_option
@verbose_option
@json_option
def validate(
    examples: Path | str,
    output: Path | str | None,
    previous: Path | None,
    checks_file: Path | None,
    config: str | None,
    train_split: str,
    num_workers: int,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check examples before training.

    Checks boxes, classes, leakage between splits, drift and anchors of the examples in DIR.
    """
    from detloom.components.dataset_validator.validate import describe_failures
    from detloom.pipelines.local.console import format_next, log_nodes
    from detloom.pipelines.validate_folder import format_checks, validate_folder

    log_nodes(verbose)
    folder = str(output or f"{examples}/{_REPORT_FOLDER}")
    source = copied(examples, lambda name: not name.startswith((f"{REJECTS_DIR}/", f"{_REPORT_FOLDER}/")))
    with local_output(folder) as report_folder:
        report = validate_folder(
            source,
            report_folder,
            config=config or "",
            checks_file=checks_file,
            previous=previous,
            train_split=train_split,
            num_workers=num_workers,
        )
    page = f"{folder}/report.html"
    click.echo(f"{format_checks(report)}\nWrote {page} and report.json in the same folder", err=as_json)
    if as_json:
        shown = {name: report[name] for name in ("verdict", "sentence", "checks")}
        click.echo(json.dumps({**shown, "report": page}, indent=1, ensure_ascii=False))
    if report["verdict"] == "failed":
        raise InputError(f"{examples}: {describe_failures(report)}")
    train = ("detloom", "train", config or _EXAMPLE_PRESET, "--examples", examples)
    click.echo(format_next(*train, *(("--out", "runs/1") if config else ("--self-test",))), err=as_json)
