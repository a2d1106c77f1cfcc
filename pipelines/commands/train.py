"""`detloom train`: train without TFX, or run the self-test."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import (
    FILE,
    FOLDER,
    STORED_FOLDER,
    complete_config,
    copied,
    override_options,
    read_override_options,
)
from detloom.schemas.errors import ExitCode, InputError
from detloom.schemas.model.config import PLACEHOLDER
from detloom.schemas.model.strategy import Strategy, StrategyKind
from detloom.schemas.reading.replace_when_done import replace_when_done

if TYPE_CHECKING:
    from detloom.pipelines.commands.examples_folder import Examples
    from detloom.schemas.contracts.label_map import LabelMap
    from detloom.schemas.model.config import TrainEvalConfig
    from detloom.trainer_module.run_state.train_result import TrainResult

MODEL_DIR = "model"  # in the output folder: the exported model
LOCK_FILE = ".train.lock"  # in the output folder, and kept there


@click.command(
    epilog=end_of_help(
        "train",
        "detloom train ssd_mobilenet_v2_fpnlite_320x320 --examples data/examples --self-test",
        "detloom train cells.yaml --examples data/examples --out runs/cells --set train.num_steps=2000",
        "detloom train pipeline.config --train-files 'train-*' --eval-files 'val-*' --label-map map.pbtxt --out run",
    )
)
@click.argument("source", shell_complete=complete_config)
@click.option(
    "--examples", type=STORED_FOLDER, metavar="DIR", help="Folder that detloom ingest wrote, with shards and label map."
)
@click.option("--train-split", default="train", show_default=True, metavar="NAME", help="Training split of --examples.")
@click.option(
    "--eval-split",
    default="",
    metavar="NAME",
    help="Evaluation split of --examples. Default: eval, val, valid or validation.",
)
@click.option(
    "--train-files", multiple=True, metavar="PATTERN", help="TFRecord files to train on, instead of --examples."
)
@click.option(
    "--eval-files", multiple=True, metavar="PATTERN", help="TFRecord files to evaluate on, instead of --examples."
)
@click.option(
    "--label-map",
    type=FILE,
    metavar="FILE",
    help="Default: the label map of --examples.",
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
@click.option("--debug", is_flag=True, help="Run eagerly and deterministically, same as train.debug.")
@click.option("--no-export", is_flag=True, help="Do not export a model.")
@click.option(
    "--self-test",
    is_flag=True,
    help="Only check that the detector can overfit 16 images; exit with code 1 if it cannot.",
)
def train(
    source: str,
    examples: Path | str | None,
    train_split: str,
    eval_split: str,
    train_files: tuple[str, ...],
    eval_files: tuple[str, ...],
    label_map: Path | None,
    out_dir: Path | None,
    settings: tuple[str, ...],
    strategy: StrategyKind | None,
    debug: bool,
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
    from detloom.pipelines.commands.config_check import read_training_config
    from detloom.pipelines.commands.examples_folder import wanted_splits
    from detloom.pipelines.local.console import format_table, show_log
    from detloom.trainer_module.runtime.preemption import Preempted

    show_log()
    config = read_training_config(source, read_override_options(settings))
    if debug:
        config = replace(config, train=replace(config.train, debug=True))
    if self_test:
        folder = copied(examples, wanted_splits(train_split)) if examples else None
        _run_self_test(source, config, folder, train_split, train_files, label_map)
        return
    if out_dir is None:
        raise click.UsageError("Missing option '--out'.")
    folder = copied(examples, wanted_splits(train_split, eval_split)) if examples else None
    found = _find_examples(config, folder, train_split, eval_split, train_files, eval_files, label_map)
    try:
        result, model_dir = train_detector(config, found, out_dir, strategy, export=not no_export)
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

    if not is_exported:
        return format_next("detloom", "export", out_dir, "--out", out_dir / MODEL_DIR)
    folder = Path(found.eval_files[0]).parent
    examples = folder if folder.name.startswith(SPLIT_PREFIX) else found.eval_files[0]
    return format_next("detloom", "evaluate", "--model", out_dir / MODEL_DIR, "--examples", examples)


def _find_examples(
    config: "TrainEvalConfig",
    folder: Path | None,
    train_split: str,
    eval_split: str,
    train_files: tuple[str, ...],
    eval_files: tuple[str, ...],
    label_map: Path | None,
) -> "Examples":
    """Find the examples by the options, or by the configuration if an option is missing."""
    from detloom.pipelines.commands.examples_folder import Examples, find_examples

    if folder is not None:
        if train_files or eval_files:
            raise InputError("detloom train: got --examples and --train-files or --eval-files, allowed: one of them.")
        found = find_examples(folder, train_split, eval_split)
        return replace(found, label_map_file=label_map or found.label_map_file)
    train_files = train_files or _given(config.train_input.input_path)
    eval_files = eval_files or _given(config.eval_input.input_path)
    map_path = (*_given((config.train_input.label_map_path,)), *_given((config.eval_input.label_map_path,)))
    map_file = label_map or (Path(map_path[0]) if map_path else None)
    if not train_files or not eval_files or map_file is None:
        raise InputError(
            "detloom train: the configuration does not name the data; set --examples, or --train-files, --eval-files "
            "and --label-map."
        )
    return Examples(train_files, eval_files, map_file)


def _given(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Drop empty paths and the placeholders of zoo configurations."""
    return tuple(path for path in paths if path and PLACEHOLDER not in path)


def train_detector(
    config: "TrainEvalConfig", found: "Examples", out_dir: Path, strategy_kind: StrategyKind | None, *, export: bool
) -> "tuple[TrainResult, Path | None]":
    """Train, or resume the training run in `out_dir`; return the result and the folder of the exported model, if any.

    Raises:
        InputError: the settings or the data do not fit, or another process trains in `out_dir`.
        Preempted: a signal stopped the training run; its state is saved.
    """
    from detloom.schemas.contracts.label_map import read_label_map
    from detloom.trainer_module.run_state.run_folder import hold_training_lock
    from detloom.trainer_module.runtime.strategies import build_strategy, is_chief
    from detloom.trainer_module.training.loop import train

    asked_for = Strategy(kind=strategy_kind) if strategy_kind else None
    strategy = build_strategy(asked_for)  # must run before any TensorFlow operation
    label_map = read_label_map(found.label_map_file)
    with contextlib.ExitStack() as stack:
        if is_chief(strategy):
            out_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_training_lock(out_dir / LOCK_FILE))
        result = train(config, label_map, found.train_files, found.eval_files, out_dir, strategy)
        has_export = export and is_chief(strategy)
        return result, export_model(result, out_dir / MODEL_DIR) if has_export else None


def _result_rows(result: "TrainResult", out_dir: Path) -> list[tuple[str, str]]:
    from detloom.trainer_module.run_state.train_log_and_tensorboard import LOG_FILE, TENSORBOARD_DIR
    from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
    from detloom.trainer_module.weights.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR

    ended = ", stopped early" if result.stopped_early else ""
    best = result.best
    return [
        ("steps", f"{result.num_steps}{ended}, {result.images_per_second:.1f} images/s"),
        ("best", f"AP {best.AP:.3f}, AP50 {best.AP50:.3f} on {best.num_images} images at step {result.best_step}"),
        ("weights", f"{out_dir / BEST_DIR} (best), {out_dir / CHECKPOINTS_DIR} (to resume from)"),
        ("numbers", f"{out_dir / LOG_FILE}, {out_dir / SUMMARY_FILE}, {out_dir / TENSORBOARD_DIR}"),
    ]


def export_model(result: "TrainResult", model_dir: Path) -> Path:
    """Write SavedModel and weights; an existing model is replaced once the new one is complete."""
    from detloom.schemas.contracts.detections import SERVING_FOLDER
    from detloom.trainer_module.export.saved_model import export_saved_model
    from detloom.trainer_module.weights.own_checkpoint import write_weights

    with replace_when_done(model_dir) as partial:
        write_weights(result.detector, result.config, partial)
        export_saved_model(result.detector, result.config, partial / SERVING_FOLDER)
    return model_dir


def _run_self_test(
    source: str,
    config: "TrainEvalConfig",
    folder: Path | None,
    train_split: str,
    files: tuple[str, ...],
    label_map: Path | None,
) -> None:
    from detloom.components.examples_folder import ExamplesFolder
    from detloom.pipelines.local.console import format_next
    from detloom.schemas.contracts.label_map import LABEL_MAP_FILE, read_label_map
    from detloom.trainer_module.data.records import list_shards
    from detloom.trainer_module.training.overfit_check import run_self_test

    if folder is not None:
        files = tuple(ExamplesFolder(folder).check_shards(train_split))
        label_map = label_map or folder / LABEL_MAP_FILE
    elif files:
        files = tuple(list_shards(files))
        if label_map is None:
            raise InputError("detloom train: --train-files need --label-map.")
    classes = read_label_map(label_map) if label_map else _made_label_map(config)
    result = run_self_test(config, classes, files)
    click.echo("\n".join(result.lines()))
    if result.passed:
        examples = folder or "data/examples"
        click.echo(format_next("detloom", "train", source, "--examples", examples, "--out", "runs/1"))
    sys.exit(ExitCode.DONE if result.passed else ExitCode.FAILED)


def _made_label_map(config: "TrainEvalConfig") -> "LabelMap":
    """Return a label map for generated images, where only the number of classes matters."""
    from detloom.schemas.contracts.label_map import LabelMap

    return LabelMap.from_names([f"class {i}" for i in range(1, (config.model.num_classes or 3) + 1)])
