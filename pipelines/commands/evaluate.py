"""`detloom evaluate`: evaluate an exported model, COCO files, or the checkpoints of a training run."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detloom.components.storage.local_copy import local_output, with_addresses
from detloom.components.storage.storage import is_address
from detloom.pipelines.command_line.checkpoint_options import NAMES, checkpoint_options, load_from_options
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    FILE,
    FOLDER,
    PATH,
    STORED_FOLDER,
    NumberRange,
    complete_file,
    copied_examples,
    copied_model,
)
from detloom.schemas.contracts.version_names import parse_version
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape

if TYPE_CHECKING:
    from detloom.components.evaluator.evaluation_result import EvaluationResult, EvaluatorParams
    from detloom.trainer_module.training.follow_checkpoints import CheckpointEvaluation

_TIMEOUT_SECONDS = 3600


@command(
    "detloom evaluate --model serving/3 --examples data/examples/Split-test",
    "detloom evaluate --model new --baseline serving/3 --examples data/examples/Split-test --run-file run.yaml",
    "detloom evaluate --config zoo/pipeline.config --checkpoint zoo/checkpoint/ckpt-0 --label-map coco.pbtxt \\",
    "    --examples data/examples/Split-test",
    "detloom evaluate --detections found.json --ground-truth labels.json --images data/images",
    "detloom evaluate --checkpoints runs/cells --examples data/examples --watch --timeout 7200",
)
@click.option(
    "--model", type=STORED_FOLDER, metavar="DIR", help="The exported model to evaluate, the same as is served."
)
@checkpoint_options
@click.option(
    "--baseline",
    type=STORED_FOLDER,
    metavar="DIR",
    help="With --model or --checkpoint: model to compare with on the same images.",
)
@click.option("--detections", type=FILE, metavar="FILE", help="A COCO results file, with --ground-truth.")
@click.option("--ground-truth", type=FILE, metavar="FILE", help="A COCO annotation file.")
@click.option("--baseline-detections", type=FILE, metavar="FILE", help="With --detections: another model's results.")
@click.option(
    "--images",
    "images_dir",
    type=FOLDER,
    metavar="DIR",
    help="With --detections: folder of the images, to show examples in the report.",
)
@click.option(
    "--checkpoints",
    type=PATH,
    metavar="DIR",
    help="Folder of a training run, with config.json, the label map and checkpoints/.",
)
@click.option(
    "--examples",
    multiple=True,
    metavar="[NAME=]WHERE",
    shell_complete=complete_file,
    help="The examples: a split's folder, a folder that detloom ingest wrote (its eval split), or a pattern of "
    "TFRecord files; with --checkpoints it can be repeated and defaults to the configuration's "
    "eval_input.input_path.",
)
@click.option(
    "--run-file",
    type=FILE,
    metavar="RUN.yaml",
    help="Use the `evaluator` and `gates` of this file: slices, sizes, minimum values. Default: only the comparison.",
)
@click.option("--watch", is_flag=True, help="With --checkpoints: wait for new ones until the last training step.")
@click.option("--newest-only", is_flag=True, help="With --checkpoints: skip checkpoints if a newer one exists.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=NumberRange(min=0),
    metavar="SECONDS",
    help=f"With --watch: stop if no new checkpoint appears for this long. Default: {_TIMEOUT_SECONDS}.",
)
@click.option(
    "--sample-1-of-n",
    "one_of",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --checkpoints: read only every n-th example. Default: the configuration's.",
)
@click.option(
    "--out",
    "out_dir",
    type=STORED_FOLDER,
    metavar="DIR",
    help="Default: ./evaluation; with --checkpoints, DIR/evaluation.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all numbers as JSON at the end.")
def evaluate_command(**options: Any) -> None:
    """Evaluate a model, detection files or checkpoints.

    For a model or files, OUT gets report.html and JSON files with COCO, PASCAL VOC and Open Images metrics, slices,
    error types, the comparison with the baseline and the gates. OUT also gets detections.json and ground_truth.json,
    which can be evaluated again without the model.

    For checkpoints, the command computes COCO metrics, AP per class and losses, with the moving averages of the weights
    if the configuration uses them. It appends them to OUT/<set>/eval_log.jsonl, with TensorBoard files beside it, and
    skips checkpoints that are already in that file or that the training run deletes meanwhile.
    """
    from detloom.pipelines.local.console import show_log

    way = _check_options(options)
    show_log()
    {
        "model": _evaluate_model,
        "checkpoint": _evaluate_checkpoint,
        "detections": _evaluate_files,
        "checkpoints": _evaluate_checkpoints,
    }[way](options)


# Options allowed for each kind of evaluation.
_WAYS = {
    "model": ("baseline", "examples", "run_file"),
    "checkpoint": ("config", "label_map", "baseline", "examples", "run_file"),
    "detections": ("ground_truth", "baseline_detections", "images_dir", "run_file"),
    "checkpoints": ("examples", "watch", "newest_only", "timeout_seconds", "one_of"),
}


def _check_options(options: dict[str, Any]) -> str:
    """Return the kind of evaluation that the options select.

    Raises:
        InputError: no kind or several kinds, an option of another kind, or a missing option.
    """
    ways = [way for way in _WAYS if options[way]]
    if len(ways) != 1:
        got = " and ".join(f"--{way}" for way in ways) or "none of them"
        allowed = ", ".join(f"--{way}" for way in _WAYS)
        raise InputError(f"detloom evaluate: got {got}, allowed: exactly one of {allowed}.")
    (way,) = ways
    others = {name for names in _WAYS.values() for name in names} - set(_WAYS[way])
    given = sorted(name for name in others if options[name] not in (None, ()) and options[name] is not False)
    if given:
        names = {"images_dir": "--images", "one_of": "--sample-1-of-n", "timeout_seconds": "--timeout"}
        flag = names.get(given[0], f"--{given[0].replace('_', '-')}")
        raise InputError(f"detloom evaluate: got {flag}, which does not go with --{way}.")
    missing = {"model": "examples", "checkpoint": "examples", "detections": "ground_truth"}.get(way)
    if missing and not options[missing]:
        raise InputError(f"detloom evaluate: --{way} needs --{missing.replace('_', '-')}.")
    return way


def _evaluate_model(options: dict[str, Any]) -> None:
    from detloom.components.evaluator.evaluate_exported import evaluate_model
    from detloom.pipelines.find_examples import parse_eval_sets
    from detloom.schemas.contracts.detections import MANIFEST_FILE
    from detloom.trainer_module.inference.model_files import find_saved_model

    sets = parse_eval_sets(copied_examples(options["examples"]))
    if len(sets) != 1:
        raise InputError(f"--examples: got {len(sets)} sets, allowed with --model: 1.")
    out_dir = options["out_dir"] or "evaluation"
    params = _params(options["run_file"], sets[0].name)
    click.echo(escape(with_addresses(f"Evaluating on {sets[0].name}: {Path(sets[0].files[0]).parent}")), err=True)
    model = copied_model(options["model"])
    baseline = copied_model(options["baseline"]) if options["baseline"] else None
    with local_output(str(out_dir)) as folder:
        result = evaluate_model(model, sets[0].files, params, folder, baseline)
    _report(result, out_dir, options["as_json"])
    is_pushed = is_address(str(options["model"])) or (find_saved_model(model) / MANIFEST_FILE).exists()
    if result.decision.blessed and not is_pushed:
        click.echo(_format_push(options), err=options["as_json"])


def _format_push(options: dict[str, Any]) -> str:
    """Return the line that names the next command for a blessed model: push it, beside the baseline if there is one."""
    from detloom.pipelines.local.console import format_next

    if options["checkpoint"]:
        given = ("--checkpoint", options["checkpoint"], "--config", options["config"])
        label_map = ("--label-map", options["label_map"]) if options["label_map"] else ()
        return format_next("detloom", "export", *given, *label_map, "--out", "exported")
    parent, _, name = str(options["baseline"] or "").rpartition("/")
    push_dir = parent if parent and parse_version(name) is not None else "serving"
    return format_next("detloom", "push", options["model"], "--to", push_dir, "--reason", "TEXT")


def _evaluate_checkpoint(options: dict[str, Any]) -> None:
    """Evaluate what the detector exports, because that is what would be served."""
    from detloom.schemas.contracts.detections import SERVING_FOLDER
    from detloom.trainer_module.export.saved_model import export_saved_model

    detector, config = load_from_options(*(options[name] for name in NAMES))
    with tempfile.TemporaryDirectory(prefix="detloom-export-") as folder:
        export_saved_model(detector, config, Path(folder) / SERVING_FOLDER)
        _evaluate_model({**options, "model": Path(folder)})


def _evaluate_files(options: dict[str, Any]) -> None:
    from detloom.components.evaluator.evaluate_coco_files import FileInputs, evaluate_files

    out_dir = options["out_dir"] or "evaluation"
    inputs = FileInputs(
        ground_truth=options["ground_truth"],
        detections=options["detections"],
        baseline_detections=options["baseline_detections"],
        images_dir=options["images_dir"],
    )
    with local_output(str(out_dir)) as folder:
        result = evaluate_files(inputs, _params(options["run_file"], options["ground_truth"].stem), folder)
    _report(result, out_dir, options["as_json"])


def _params(run_file: Path | None, split: str) -> "EvaluatorParams":
    from detloom.components.evaluator.evaluation_result import EvaluatorParams
    from detloom.schemas.run_file.read_config import read_sections

    if run_file is None:
        return EvaluatorParams(split=split)
    run = read_sections(run_file)
    return EvaluatorParams(split=split, settings=run.evaluator, gates=run.gates)


def _report(result: "EvaluationResult", out_dir: Path | str, as_json: bool) -> None:
    """Print the main metrics and the path of the report; with `as_json`, print all metrics."""
    from detloom.components.evaluator.report.output_files import PAGE_FILE, format_analysis
    from detloom.pipelines.local.console import format_table
    from detloom.schemas.contracts.metric_names import METRIC_NAMES
    from detloom.trainer_module.files.strict_json import to_strict_json

    coco = result.candidate.coco
    rows = [(name, f"{coco.value_of(name):.3f}", coco.explain(name) or "") for name in METRIC_NAMES]
    shapes = (("masks AP", result.candidate.masks), ("keypoints AP", result.candidate.keypoints))
    rows += [(name, f"{each.AP:.3f}", each.explain("AP") or "") for name, each in shapes if each is not None]
    click.echo(format_table(rows), err=as_json)
    click.echo(escape(result.decision.sentence), err=as_json)
    click.echo(f"report: {out_dir}/{PAGE_FILE}", err=as_json)
    if as_json:
        variants = {name: metrics.to_dict() for name, metrics in result.variants.items()}
        analysis = format_analysis(result)
        values = {"decision": result.decision.to_dict(), **analysis, "variants": variants}
        click.echo(to_strict_json(values, indent=1))


def _evaluate_checkpoints(options: dict[str, Any]) -> None:
    from detloom.pipelines.find_examples import parse_eval_sets
    from detloom.pipelines.local.console import format_next
    from detloom.trainer_module.files.strict_json import to_strict_json
    from detloom.trainer_module.training.follow_checkpoints import WatchOptions, evaluate_checkpoints, find_run

    if is_address(str(options["out_dir"])):
        raise InputError(f"--out: got '{options['out_dir']}', allowed with --checkpoints: a folder on this machine.")
    run_dir, as_json = find_run(options["checkpoints"]), options["as_json"]
    result = evaluate_checkpoints(
        run_dir,
        parse_eval_sets(copied_examples(options["examples"] or _examples_of_config(run_dir))),
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
    click.echo(format_next("detloom", "export", run_dir, "--out", "exported"), err=True)


def _line(each: "CheckpointEvaluation") -> str:
    return f"step {each.step}, {each.set_name}: {each.evaluation.sentence()}"


def _examples_of_config(run_dir: Path) -> tuple[str, ...]:
    from detloom.schemas.model.config import PLACEHOLDER, TrainEvalConfig
    from detloom.schemas.reading.text_file import read_text_file
    from detloom.schemas.reading.typed_dict import from_json
    from detloom.trainer_module.run_state.run_folder import CONFIG_FILE

    patterns = from_json(TrainEvalConfig, read_text_file(run_dir / CONFIG_FILE)).eval_input.input_path
    if not patterns or any(PLACEHOLDER in pattern for pattern in patterns):
        raise InputError("detloom evaluate: the configuration has no eval_input.input_path; set --examples.")
    return patterns
