"""`detloom evaluate`: an exported model, plain COCO files, or a training's checkpoints. Imports are late."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.pipelines.number_range import NumberRange
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.components.evaluator.evaluation import Evaluation
    from detloom.components.evaluator.params import EvaluatorParams
    from detloom.trainer_module.watch import CheckpointEvaluation

_TIMEOUT_SECONDS = 3600
_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--model", type=_FOLDER, metavar="DIR", help="An exported model: what is served is what is evaluated.")
@click.option(
    "--baseline", type=_FOLDER, metavar="DIR", help="With --model: the one to compare with, on the same images."
)
@click.option("--detections", type=_FILE, metavar="FILE", help="A COCO results file, with --ground-truth.")
@click.option("--ground-truth", type=_FILE, metavar="FILE", help="A COCO annotation file.")
@click.option("--baseline-detections", type=_FILE, metavar="FILE", help="With --detections: another model's results.")
@click.option(
    "--images", "images_dir", type=_FOLDER, metavar="DIR", help="With --detections: the images, for pictures."
)
@click.option(
    "--checkpoints",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder that a training writes to, which holds config.json, the label map and checkpoints/.",
)
@click.option(
    "--examples",
    multiple=True,
    metavar="[NAME=]WHERE",
    help="What to evaluate on: a split's folder, a folder that detloom ingest wrote (its eval split), or a pattern of "
    "TFRecord files; with --checkpoints it may be given several times, and by default is the configuration's "
    "eval_input.input_path.",
)
@click.option(
    "--run-file",
    type=_FILE,
    metavar="RUN.yaml",
    help="Take `evaluator` and `gates` from it: slices, sizes, floors. Default: none but the comparison.",
)
@click.option("--watch", is_flag=True, help="With --checkpoints: wait for more, until the training's last step.")
@click.option("--newest-only", is_flag=True, help="With --checkpoints: leave out those that a newer one has overtaken.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=NumberRange(min=0),
    metavar="SECONDS",
    help=f"With --watch: give up when no checkpoint came for so long. Default: {_TIMEOUT_SECONDS}.",
)
@click.option(
    "--sample-1-of-n",
    "one_of",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --checkpoints: read only every n-th example. Default: the configuration's.",
)
@click.option(
    "--out", "out_dir", type=_FOLDER, metavar="DIR", help="Default: ./evaluation; with --checkpoints, DIR/evaluation."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every number in it, at the end.")
def evaluate(**options: Any) -> None:
    """Evaluate a model, detections in files, or the checkpoints of a training.

    \b
    detloom evaluate --model serving/3 --examples data/examples/Split-test
    detloom evaluate --model new --baseline serving/3 --examples data/examples/Split-test --run-file run.yaml
    detloom evaluate --detections found.json --ground-truth labels.json --images data/images
    detloom evaluate --checkpoints runs/cells --examples data/examples --watch --timeout 7200

    Of a model or of files: COCO, PASCAL VOC and Open Images numbers, slices, types of errors, the comparison with the
    baseline and the gates, as report.html and as JSON in OUT. The detections are written too: evaluated again from
    OUT/detections.json and OUT/ground_truth.json they need no model.

    Of checkpoints: COCO numbers, AP of each class and losses; the moving averages of the weights if the training
    evaluates them. For each set of examples the numbers are appended to OUT/<set>/eval_log.jsonl, with TensorBoard's
    files beside it; what stands there is not evaluated again. A checkpoint that the training deletes meanwhile is left
    out.
    """
    from detloom.pipelines.console import show_log

    way = _check_options(options)
    show_log()
    {"model": _evaluate_model, "detections": _evaluate_files, "checkpoints": _evaluate_checkpoints}[way](options)


# Which options go with which way of evaluating.
_WAYS = {
    "model": ("baseline", "examples", "run_file"),
    "detections": ("ground_truth", "baseline_detections", "images_dir", "run_file"),
    "checkpoints": ("examples", "watch", "newest_only", "timeout_seconds", "one_of"),
}


def _check_options(options: dict[str, Any]) -> str:
    """The one of the three ways that was asked for.

    Raises:
        InputError: none or several of them, an option of another way, one that is missing.
    """
    ways = [way for way in _WAYS if options[way]]
    if len(ways) != 1:
        got = " and ".join(f"--{way}" for way in ways) or "none of them"
        raise InputError(f"detloom evaluate: got {got}, needed: one of --model, --detections, --checkpoints.")
    (way,) = ways
    others = {name for names in _WAYS.values() for name in names} - set(_WAYS[way])
    given = sorted(name for name in others if options[name] not in (None, ()) and options[name] is not False)
    if given:
        names = {"images_dir": "--images", "one_of": "--sample-1-of-n", "timeout_seconds": "--timeout"}
        flag = names.get(given[0], f"--{given[0].replace('_', '-')}")
        raise InputError(f"detloom evaluate: got {flag}, which does not go with --{way}.")
    missing = {"model": "examples", "detections": "ground_truth"}.get(way)
    if missing and not options[missing]:
        raise InputError(f"detloom evaluate: --{way} needs --{missing.replace('_', '-')}.")
    return way


def _evaluate_model(options: dict[str, Any]) -> None:
    import apache_beam as beam

    from detloom.components.evaluator.evaluate import EvaluationInputs, evaluate
    from detloom.pipelines.examples_folder import parse_eval_sets
    from detloom.trainer_module.predict import find_saved_model

    sets = parse_eval_sets(options["examples"])
    if len(sets) != 1:
        raise InputError(f"--examples: got {len(sets)} sets, allowed with --model: one.")
    model = find_saved_model(options["model"])
    baseline = find_saved_model(options["baseline"]) if options["baseline"] else None
    out_dir = options["out_dir"] or Path("evaluation")
    if out_dir.resolve().is_relative_to(model.resolve()):
        raise InputError(f"{out_dir}: lies in the model's own folder, which is served as it is; give --out.")
    out_dir.mkdir(parents=True, exist_ok=True)
    inputs = EvaluationInputs(
        candidate_dir=str(model),
        baseline_dir=str(baseline) if baseline else None,
        examples_uris=sorted({str(Path(path).parent.parent) for path in sets[0].files}),
        shard_patterns=_as_patterns(sets[0].files),
        tflite_dir=_find_tflite(model),
    )
    params = _params(options["run_file"], sets[0].name)
    result = evaluate(inputs, params, lambda: beam.Pipeline(runner="DirectRunner"), str(out_dir))
    _report(result, out_dir, {}, options["as_json"])


def _find_tflite(saved_model: Path) -> str | None:
    """Beside the SavedModel, where a Model artifact keeps them."""
    from detloom.schemas.detections import TFLITE_FOLDER

    folder = saved_model.parent / TFLITE_FOLDER
    return str(folder) if folder.is_dir() else None


def _as_patterns(files: Sequence[str]) -> list[str]:
    """One for all files of a folder, where no others lie in it: a thousand patterns make a thousand steps."""
    folders = {str(Path(file).parent) for file in files}
    whole = sorted(str(path) for folder in folders for path in Path(folder).iterdir() if path.is_file())
    return [f"{folder}/*" for folder in sorted(folders)] if whole == sorted(files) else list(files)


def _evaluate_files(options: dict[str, Any]) -> None:
    from detloom.components.evaluator.evaluate_files import FileInputs, evaluate_files

    out_dir = options["out_dir"] or Path("evaluation")
    inputs = FileInputs(
        ground_truth=options["ground_truth"],
        detections=options["detections"],
        baseline_detections=options["baseline_detections"],
        images_dir=options["images_dir"],
    )
    result = evaluate_files(inputs, _params(options["run_file"], options["ground_truth"].stem), out_dir)
    _report(result.evaluation, out_dir, result.candidate_others, options["as_json"])


def _params(run_file: Path | None, split: str) -> "EvaluatorParams":
    from detloom.components.evaluator.params import EvaluatorParams
    from detloom.schemas.read_run_file import build_run, load_run_tree

    if run_file is None:
        return EvaluatorParams(split=split)
    run = build_run(load_run_tree(run_file)[0])
    return EvaluatorParams(split=split, settings=run.evaluator, gates=run.gates)


def _report(result: "Evaluation", out_dir: Path, others: Any, as_json: bool) -> None:
    """The main numbers and where to look; with `as_json`, all numbers."""
    from detloom.components.evaluator.report import PAGE_FILE, format_analysis
    from detloom.pipelines.console import format_table
    from detloom.schemas.metric_names import METRIC_NAMES
    from detloom.trainer_module.strict_json import to_strict_json

    coco = result.candidate.coco
    rows = [(name, f"{coco.value_of(name):.3f}", coco.explain(name) or "") for name in METRIC_NAMES]
    rows += [(f"{kind} AP", f"{numbers['AP']:.3f}", "") for kind, numbers in others.items()]
    click.echo(format_table(rows), err=as_json)
    click.echo(result.decision.sentence, err=as_json)
    click.echo(f"report: {out_dir / PAGE_FILE}", err=as_json)
    if as_json:
        variants = {name: metrics.to_dict() for name, metrics in result.variants.items()}
        analysis = format_analysis(result)
        values = {"decision": result.decision.to_dict(), **analysis, "variants": variants, **others}
        click.echo(to_strict_json(values, indent=1))


def _evaluate_checkpoints(options: dict[str, Any]) -> None:
    from detloom.pipelines.examples_folder import parse_eval_sets
    from detloom.trainer_module.strict_json import to_strict_json
    from detloom.trainer_module.watch import WatchOptions, evaluate_checkpoints, find_run

    run_dir, as_json = find_run(options["checkpoints"]), options["as_json"]
    result = evaluate_checkpoints(
        run_dir,
        parse_eval_sets(options["examples"] or _examples_of_config(run_dir)),
        options["out_dir"] or run_dir / "evaluation",
        WatchOptions(
            follow=options["watch"],
            newest_only=options["newest_only"],
            timeout_seconds=_TIMEOUT_SECONDS if options["timeout_seconds"] is None else options["timeout_seconds"],
            one_of=options["one_of"],
        ),
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
