"""`detloom restore-report`: show what a checkpoint would restore, without training."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    FILE,
    complete_config,
    complete_file,
    override_options,
    read_override_options,
)
from detloom.schemas.contracts.label_map import LabelMap, read_label_map
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import FineTuneMode

if TYPE_CHECKING:
    from detloom.schemas.model.config import TrainEvalConfig


@command(
    "detloom restore-report --config efficientdet_d0 --checkpoint zoo/checkpoint/ckpt-0 --num-classes 3",
    "detloom restore-report --config pipeline.config --mode detection",
)
@click.option(
    "--config",
    "source",
    required=True,
    metavar="SOURCE",
    shell_complete=complete_config,
    help="A run file, pipeline.config, config.json or preset.",
)
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    shell_complete=complete_file,
    help="Checkpoint (path without extension), model folder, Keras file, https address of an archive, or imagenet. "
    "Default: the configuration's.",
)
@click.option(
    "--mode", type=click.Choice(get_args(FineTuneMode)), help="What to restore. Default: the configuration's."
)
@click.option("--num-classes", type=click.IntRange(1), help="Classes of the new detector.")
@click.option("--label-map", type=FILE, help="Label map of the new detector instead.")
@click.option("--json", "as_json", is_flag=True, help="Print all variables as JSON instead of a table.")
@override_options
def restore_report(
    source: str,
    checkpoint: str,
    mode: FineTuneMode | None,
    num_classes: int | None,
    label_map: Path | None,
    as_json: bool,
    settings: tuple[str, ...],
) -> None:
    """Show which variables a checkpoint would restore.

    Also shows why fine-tuning would initialize the others. Trains nothing.
    """
    from detloom.pipelines.local.console import show_log
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.detectors.families import build_detector
    from detloom.trainer_module.weights.restore import find_trained, plan_restore
    from detloom.trainer_module.weights.restore_report import format_report

    show_log()  # the progress of a download
    config = read_training_config(source, read_override_options(settings))
    train = replace(
        config.train,
        fine_tune_checkpoint=checkpoint or config.train.fine_tune_checkpoint,
        fine_tune_checkpoint_type=mode or config.train.fine_tune_checkpoint_type,
    )
    if not train.fine_tune_checkpoint:
        raise InputError("restore-report: the configuration has no train.fine_tune_checkpoint; set --checkpoint.")
    classes = _label_map(config, num_classes, label_map)
    detector = build_detector(replace(config.model, num_classes=classes.num_classes), classes)
    report = plan_restore(train, detector, find_trained(train, detector)).report
    click.echo(json.dumps(asdict(report), indent=1) if as_json else format_report(report))
    sys.exit(bool(report.refusal))


def _label_map(config: "TrainEvalConfig", num_classes: int | None, path: Path | None) -> LabelMap:
    """Return the given label map, or one with placeholder names, because only the number of classes matters."""
    if path is not None:
        return read_label_map(path)
    count = num_classes or config.model.num_classes
    if count is None:
        raise InputError(
            "restore-report: the configuration takes the number of classes from the label map; set --num-classes or "
            "--label-map."
        )
    return LabelMap.from_names([f"class {i}" for i in range(1, count + 1)])
