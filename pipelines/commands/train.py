"""`detloom train`: train without TFX, or run the self-test."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    FILE,
    FOLDER,
    STORED_FOLDER,
    complete_config,
    copied,
    override_options,
    read_override_options,
)
from detloom.schemas.errors import ExitCode
from detloom.schemas.model.strategy import StrategyKind
from detloom.schemas.reading.redact import escape

if TYPE_CHECKING:
    from detloom.pipelines.find_examples import Examples
    from detloom.schemas.model.config import TrainEvalConfig
    from detloom.trainer_module.run_state.train_result import TrainResult


@command(
    "detloom train ssd_mobilenet_v2_fpnlite_320x320 --examples data/examples --self-test",
    "detloom train cells.yaml --examples data/examples --out runs/cells --set train.num_steps=2000",
    "detloom train pipeline.config --out run",
)
@click.argument("source", shell_complete=complete_config)
@click.option(
    "--examples",
    type=STORED_FOLDER,
    metavar="DIR",
    help="Folder that detloom ingest wrote. Default: the files that the configuration names.",
)
@click.option("--train-split", default="train", show_default=True, metavar="NAME", help="Training split of --examples.")
@click.option(
    "--eval-split",
    default="",
    metavar="NAME",
    help="Evaluation split of --examples. Default: eval, val, valid or validation.",
)
@click.option(
    "--label-map",
    type=FILE,
    metavar="FILE",
    help="Default: the label map of --examples, or of the configuration.",
)
@click.option(
    "--out",
    "out_dir",
    type=FOLDER,
    metavar="DIR",
    help="Folder for checkpoints, logs and model; an interrupted run resumes from it.",
)
@override_options
@click.option(
    "--strategy",
    type=click.Choice(get_args(StrategyKind)),
    help="Devices to train on; auto uses those available. Default: DETLOOM_STRATEGY in the environment, else auto.",
)
@click.option("--no-export", is_flag=True, help="Do not export a model.")
@click.option(
    "--self-test",
    is_flag=True,
    help="Only check that the detector can overfit 16 images; exit with code 1 if it cannot.",
)
def train_command(
    source: str,
    examples: Path | str | None,
    train_split: str,
    eval_split: str,
    label_map: Path | None,
    out_dir: Path | None,
    settings: tuple[str, ...],
    strategy: StrategyKind | None,
    no_export: bool,
    self_test: bool,
) -> None:
    """Train a detector and export the best weights.

    The detector is evaluated regularly. SOURCE is a run file, a pipeline.config, the config.json of an earlier training
    run, or the name of a preset (see detloom presets).

    The same command with the same --out resumes an interrupted training run. SIGTERM and Ctrl-C save the state first.
    DIR/best holds the weights that are exported to DIR/model; DIR/train_log.jsonl and
    DIR/tensorboard hold the metrics.
    """
    from detloom.pipelines.find_examples import examples_of_config, find_examples, wanted_splits
    from detloom.pipelines.local.console import format_table, show_log
    from detloom.schemas.contracts.label_map import read_label_map
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.runtime.preemption import Preempted
    from detloom.trainer_module.train_and_export import train_and_export

    show_log()
    config = read_training_config(source, read_override_options(settings))
    if self_test:
        folder = copied(examples, wanted_splits(train_split)) if examples else None
        _run_self_test(source, config, folder, train_split, label_map)
        return
    if out_dir is None:
        raise click.UsageError("Missing option '--out'.")
    if examples is None:
        found = examples_of_config(config, label_map)
    else:
        found = find_examples(copied(examples, wanted_splits(train_split, eval_split)), train_split, eval_split)
    classes = read_label_map(label_map or found.label_map_file)
    try:
        result, model_dir = train_and_export(
            config, classes, found.train_files, found.eval_files, out_dir, strategy, export=not no_export
        )
    except Preempted as preempted:
        click.echo(str(preempted), err=True)
        sys.exit(128 + preempted.signal_number)
    rows = _result_rows(result, out_dir)
    click.echo(format_table([*rows, ("model", str(model_dir))] if model_dir else rows))
    click.echo(_format_next(found, out_dir, is_exported=model_dir is not None))


def _format_next(found: "Examples", out_dir: Path, *, is_exported: bool) -> str:
    """Return the line that names the next command: export the model, or evaluate it."""
    from detloom.components.examples_folder import SPLIT_PREFIX
    from detloom.pipelines.local.console import format_next
    from detloom.trainer_module.train_and_export import MODEL_DIR

    if not is_exported:
        return format_next("detloom", "export", out_dir, "--out", out_dir / MODEL_DIR)
    folder = Path(found.eval_files[0]).parent
    examples = folder if folder.name.startswith(SPLIT_PREFIX) else found.eval_files[0]
    return format_next("detloom", "evaluate", "--model", out_dir / MODEL_DIR, "--examples", examples)


def _result_rows(result: "TrainResult", out_dir: Path) -> list[tuple[str, str]]:
    from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE, TENSORBOARD_DIR
    from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
    from detloom.trainer_module.weights.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR

    ended = ", stopped early" if result.stopped_early else ""
    best = result.best
    return [
        ("steps", f"{result.num_steps}{ended}, {result.performance.images_per_second:.1f} images/s"),
        ("best", f"AP {best.AP:.3f}, AP50 {best.AP50:.3f} on {best.num_images} images at step {result.best_step}"),
        ("weights", f"{out_dir / BEST_DIR} (best), {out_dir / CHECKPOINTS_DIR} (to resume from)"),
        ("numbers", f"{out_dir / LOG_FILE}, {out_dir / SUMMARY_FILE}, {out_dir / TENSORBOARD_DIR}"),
    ]


def _run_self_test(
    source: str, config: "TrainEvalConfig", folder: Path | None, train_split: str, label_map: Path | None
) -> None:
    from detloom.components.examples_folder import ExamplesFolder
    from detloom.pipelines.local.console import format_next
    from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, LabelMap, read_label_map
    from detloom.trainer_module.training.overfit_check import run_self_test

    files: tuple[str, ...] = ()
    if folder is not None:
        files = tuple(ExamplesFolder(folder).check_shards(train_split))
        label_map = label_map or folder / LABEL_MAP_FILE
    if label_map is not None:
        classes = read_label_map(label_map)
    else:  # for generated images, where only the number of classes matters
        classes = LabelMap.from_names([f"class {i}" for i in range(1, (config.model.num_classes or 3) + 1)])
    result = run_self_test(config, classes, files)
    click.echo("\n".join(map(escape, result.lines())))
    if result.passed:
        examples = folder or "data/examples"
        click.echo(format_next("detloom", "train", source, "--examples", examples, "--out", "runs/1"))
    sys.exit(ExitCode.DONE if result.passed else ExitCode.FAILED)
