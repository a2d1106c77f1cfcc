"""`detloom restore-report`: what of a checkpoint would be restored, without training."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from detloom.pipelines.config_cli import override_options, read_override_options
from detloom.schemas.config import FineTuneMode
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, read_label_map

if TYPE_CHECKING:
    from detloom.schemas.config import TrainEvalConfig


@click.command("restore-report")
@click.option(
    "--config", "source", metavar="SOURCE", help="A run file, a pipeline.config, a config.json or the name of a preset."
)
@click.option("--preset", metavar="NAME", help="The same for a preset.")
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Checkpoint (path without ending), model folder, Keras file, or imagenet. Default: the configuration's.",
)
@click.option(
    "--mode", type=click.Choice(get_args(FineTuneMode)), help="What to restore. Default: the configuration's."
)
@click.option("--num-classes", type=click.IntRange(1), help="Classes of the new detector.")
@click.option(
    "--label-map", type=click.Path(path_type=Path, dir_okay=False), help="Label map of the new detector instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every variable in it, instead of a table.")
@override_options
def restore_report(
    source: str | None,
    preset: str | None,
    checkpoint: str,
    mode: FineTuneMode | None,
    num_classes: int | None,
    label_map: Path | None,
    as_json: bool,
    settings: tuple[str, ...],
    hparams: str,
) -> None:
    """Say what fine-tuning would restore from a checkpoint, what it would leave fresh and why. Nothing is trained.

    \b
    detloom restore-report --preset ssd_mobilenet_v2_fpnlite_320x320 --checkpoint zoo/checkpoint/ckpt-0 --num-classes 3
    detloom restore-report --config pipeline.config --mode detection

    Exit code 1 if the checkpoint would be refused.
    """
    from detloom.pipelines.config_check import read_training_config
    from detloom.trainer_module.checkpoints.restore import find_trained, plan_restore
    from detloom.trainer_module.checkpoints.restore_report import format_report
    from detloom.trainer_module.detector import build_detector

    if (source is None) == (preset is None):
        raise InputError("restore-report: give one of --config and --preset.")
    config = read_training_config(source or preset or "", read_override_options(settings, hparams))
    train = replace(
        config.train,
        fine_tune_checkpoint=checkpoint or config.train.fine_tune_checkpoint,
        fine_tune_checkpoint_type=mode or config.train.fine_tune_checkpoint_type,
    )
    if not train.fine_tune_checkpoint:
        raise InputError("restore-report: the configuration names no train.fine_tune_checkpoint; give --checkpoint.")
    classes = _label_map(config, num_classes, label_map)
    detector = build_detector(replace(config.model, num_classes=classes.num_classes), classes)
    report = plan_restore(train, detector, find_trained(train, detector)).report
    click.echo(json.dumps(report.to_dict(), indent=1) if as_json else format_report(report))
    sys.exit(bool(report.refusal))


def _label_map(config: "TrainEvalConfig", num_classes: int | None, path: Path | None) -> LabelMap:
    """The label map given, or one of invented names: only how many there are counts here."""
    if path is not None:
        return read_label_map(path)
    count = num_classes or config.model.num_classes
    if count is None:
        raise InputError(
            "restore-report: the configuration leaves the number of classes to the label map; give --num-classes or "
            "--label-map."
        )
    return LabelMap.from_names([f"class {i}" for i in range(1, count + 1)])
