"""`detloom validate`: check examples before training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.components.storage.local_copy import local_output
from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.ingest import REJECTS_DIR, pipeline_maker
from detloom.pipelines.commands.options import PATH, STORED_FOLDER, complete_config, copied, json_option
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.schemas.model.config import TrainEvalConfig
    from detloom.schemas.run_file.data_checks import DataChecks

_REPORT_FOLDER = "validation"  # in the folder of the examples
_EXAMPLE_PRESET = "efficientdet_lite0"
_VERBOSE = click.option("--verbose", is_flag=True, help="Show the log of Beam and TensorFlow too.")


@click.command(
    epilog=end_of_help(
        "validate", "detloom validate data/examples", "detloom validate data/examples --config cells.yaml --json"
    )
)
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
@click.option("--workers", "num_workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@_VERBOSE
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


def validate_folder(
    examples: Path,
    output: Path,
    *,
    config: str = "",
    checks_file: Path | None = None,
    previous: Path | None = None,
    train_split: str = "",
    num_workers: int = 1,
) -> dict[str, Any]:
    """Validate a folder of examples with the model and the checks of a configuration; write and return the report.

    Args:
        config: as for the option; empty uses the default checks, without those that need a model.

    Raises:
        InputError: a file or a split is missing, or a setting is wrong; not for a check that fails.
    """
    from detloom.components.dataset_validator.validate import validate_examples
    from detloom.schemas.model.config import InputReader

    settings, checks = _read_validation(config, checks_file)
    return validate_examples(
        examples,
        output,
        checks=checks,
        model=settings.model if settings else None,
        max_boxes=(settings.train_input if settings else InputReader()).max_number_of_boxes,
        train_split=train_split,
        previous_report=previous,
        make_pipeline=pipeline_maker(num_workers, ()),
    )


def format_checks(report: Mapping[str, Any]) -> str:
    """Format the checks of a report as a table, and the verdict."""
    from detloom.pipelines.local.console import format_table

    rows = [(check["status"], check["check"], check["sentence"]) for check in report["checks"]]
    return f"{format_table(rows)}\n{report['sentence']}"


def _read_validation(config: str, checks_file: Path | None) -> "tuple[TrainEvalConfig | None, DataChecks]":
    """Return the configuration of `--config`, and the checks of `--checks`, the run file or the defaults."""
    from detloom.pipelines.commands.config_check import is_run_file, read_config
    from detloom.schemas.reading.typed_dict import from_dict
    from detloom.schemas.reading.yaml_file import read_yaml
    from detloom.schemas.run_file.data_checks import DataChecks
    from detloom.schemas.run_file.read_run_file import build_run, load_run_tree

    settings = read_config(config) if config else None
    if checks_file is not None:
        data, locate = read_yaml(checks_file)
        return settings, from_dict(DataChecks, data or {}, locate=locate)
    if config and is_run_file(config):
        return settings, build_run(load_run_tree(Path(config))[0]).checks
    return settings, DataChecks()
