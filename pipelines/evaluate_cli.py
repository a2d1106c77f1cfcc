"""`detloom evaluate`: a training's checkpoints, while it runs or after it. Imports are late."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.trainer_module.watch import CheckpointEvaluation


@click.command()
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder that a training writes to, which holds config.json, the label map and checkpoints/.",
)
@click.option(
    "--examples",
    multiple=True,
    metavar="[NAME=]WHERE",
    help="What to evaluate on: a split's folder, a folder that detloom ingest wrote (its eval split), or a pattern of "
    "TFRecord files; may be given several times. Default: the configuration's eval_input.input_path.",
)
@click.option("--watch", is_flag=True, help="Wait for checkpoints to come, until the training's last step.")
@click.option("--newest-only", is_flag=True, help="Leave out checkpoints that a newer one has overtaken.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: give up when no checkpoint came for so long.",
)
@click.option(
    "--sample-1-of-n",
    "one_of",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read only every n-th example. Default: the configuration's.",
)
@click.option(
    "--out", "out_dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Default: DIR/evaluation."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every number in it, at the end.")
def evaluate(
    checkpoints: Path,
    examples: tuple[str, ...],
    watch: bool,
    newest_only: bool,
    timeout_seconds: float,
    one_of: int | None,
    out_dir: Path | None,
    as_json: bool,
) -> None:
    """Evaluate the checkpoints of a training: COCO numbers, AP of each class, losses.

    \b
    detloom evaluate --checkpoints runs/cells --examples data/examples/Split-test
    detloom evaluate --checkpoints runs/cells --examples data/examples --watch --timeout 7200
    detloom evaluate --checkpoints runs/cells --examples day=data/day --examples night=data/night --newest-only

    The moving averages of the weights are evaluated if the training evaluates them. For each set of examples the
    numbers are appended to OUT/<set>/eval_log.jsonl, with TensorBoard's files beside it; what stands there is not
    evaluated again. A checkpoint that the training deletes meanwhile is left out.
    """
    from detloom.pipelines.console import show_log
    from detloom.pipelines.examples_folder import parse_eval_sets
    from detloom.trainer_module.strict_json import to_strict_json
    from detloom.trainer_module.watch import WatchOptions, evaluate_checkpoints, find_run

    show_log()
    run_dir = find_run(checkpoints)
    options = WatchOptions(follow=watch, newest_only=newest_only, timeout_seconds=timeout_seconds, one_of=one_of)
    result = evaluate_checkpoints(
        run_dir,
        parse_eval_sets(examples or _examples_of_config(run_dir)),
        out_dir or run_dir / "evaluation",
        options,
        on_evaluation=lambda each: click.echo(_line(each), err=as_json),
    )
    click.echo(result.ended, err=True)
    if as_json:
        rows = [{"step": e.step, "set": e.set_name, **e.evaluation.to_dict()} for e in result.evaluations]
        click.echo(to_strict_json(rows, indent=1))


def _line(each: "CheckpointEvaluation") -> str:
    return f"step {each.step}, {each.set_name}: {each.evaluation.sentence()}"


def _examples_of_config(run_dir: Path) -> tuple[str, ...]:
    from detloom.schemas.config import PLACEHOLDER, TrainEvalConfig
    from detloom.schemas.text_file import read_text_file
    from detloom.schemas.typed_dict import from_json
    from detloom.trainer_module.run_folder import CONFIG_FILE

    patterns = from_json(TrainEvalConfig, read_text_file(run_dir / CONFIG_FILE)).eval_input.input_path
    if not patterns or any(PLACEHOLDER in pattern for pattern in patterns):
        raise InputError("detloom evaluate: the configuration names no eval_input.input_path; give --examples.")
    return patterns
