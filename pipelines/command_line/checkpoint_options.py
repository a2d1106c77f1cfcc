"""Options that name a checkpoint of any origin with its configuration, instead of a trained or exported model."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.pipelines.command_line.options import FILE, complete_config, complete_file
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.schemas.model.config import TrainEvalConfig
    from detloom.trainer_module.detectors.detector import Detector

NAMES = ("checkpoint", "config", "label_map")


def checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --checkpoint, --config and --label-map to a command."""
    for option in (
        click.option(
            "--label-map", type=FILE, metavar="FILE", help="With --checkpoint. Default: the one that SOURCE names."
        ),
        click.option(
            "--config",
            metavar="SOURCE",
            shell_complete=complete_config,
            help="With --checkpoint: its pipeline.config, config.json, run file or preset.",
        ),
        click.option(
            "--checkpoint",
            metavar="PATH",
            shell_complete=complete_file,
            help="A whole detector of any origin that training can start from, such as zoo/checkpoint/ckpt-0.",
        ),
    ):
        command = option(command)
    return command


def load_from_options(
    checkpoint: str, config: str | None, label_map: Path | None
) -> "tuple[Detector, TrainEvalConfig]":
    """Load the detector that the options name.

    Raises:
        InputError: an option is missing, or the checkpoint does not fit.
    """
    from detloom.pipelines.find_examples import label_map_of_config
    from detloom.schemas.contracts.label_map import read_label_map
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.export.load_trained import load_restored

    if not config:
        raise InputError("--checkpoint: needs --config, the configuration that the checkpoint was trained with.")
    parsed = read_training_config(config, [])
    path = label_map or label_map_of_config(parsed)
    if path is None:
        raise InputError(f"--checkpoint: {config} names no label map; set --label-map.")
    return load_restored(parsed, checkpoint, read_label_map(path))
