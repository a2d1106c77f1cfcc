"""`detloom predict`: detect objects in image files and folders."""

import sys
from pathlib import Path

import click

from detloom.components.storage.storage import is_address
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import (
    FILE,
    FOLDER,
    PATH,
    STORED_PATH,
    NumberRange,
    complete_file,
    copied_model,
    runtime_option,
)
from detloom.pipelines.predict.score_threshold import OPTION_HELP, choose_min_score
from detloom.schemas.contracts.runtime_names import RuntimeName
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape, redact


@command(
    "detloom predict photo.jpg --model serving --output boxes.png",
    "detloom predict photos --model serving --output boxes --json found.json",
    "detloom predict data/images --model serving --json found.json --ground-truth labels.json",
    "detloom predict photos --model serving --csv found.csv --yolo labels",
)
@click.argument("what", nargs=-1, required=True, metavar="WHAT...", shell_complete=complete_file)
@click.option("--model", type=STORED_PATH, required=True, help="A pushed model, or the folder of its versions.")
@click.option(
    "--output",
    type=PATH,
    help="Write images with boxes to this file, or to this folder if there are several images.",
)
@click.option("--json", "json_file", type=FILE, metavar="FILE", help="Write the detections as COCO results.")
@click.option(
    "--csv",
    "csv_file",
    type=FILE,
    metavar="FILE",
    help="Write a table: image, class_id, class, score, and xmin, ymin, xmax, ymax in pixels.",
)
@click.option(
    "--yolo",
    type=FOLDER,
    help="Write YOLO labels into this folder: a text file for each image, and classes.txt; without scores.",
)
@click.option(
    "--ground-truth",
    type=FILE,
    metavar="FILE",
    help="With --json: COCO annotation file; image ids are matched by file name. Default: ids 1, 2, ..., listed in "
    "NAME.images.json in the same folder as FILE.",
)
@click.option(
    "--min-score",
    type=NumberRange(0, 1),
    help=f"Minimum score. {OPTION_HELP} --json contains all detections without this option, for evaluation.",
)
@runtime_option
@click.option("--batch-size", type=click.IntRange(1, 256), default=8, show_default=True, help="Images per batch.")
@click.option(
    "--strict", is_flag=True, help="Exit with code 1 if any image cannot be read. Default: only if none can be read."
)
def predict(
    what: tuple[str, ...],
    model: Path | str,
    output: Path | None,
    json_file: Path | None,
    csv_file: Path | None,
    yolo: Path | None,
    ground_truth: Path | None,
    min_score: float | None,
    runtime: RuntimeName,
    batch_size: int,
    strict: bool,
) -> None:
    """Detect objects in images.

    WHAT is files and folders. Prints one line per object, unless there are several images and an output
    is set.
    """
    from detloom.pipelines.local.console import format_next, show_log
    from detloom.pipelines.predict import image_files, predict_files
    from detloom.pipelines.predict.label_files import CsvOutput, YoloOutput
    from detloom.trainer_module.inference.choose_runtime import load_runtime
    from detloom.trainer_module.inference.model_files import find_saved_model, read_exported_label_map

    if ground_truth is not None and json_file is None:
        raise InputError("detloom predict: --ground-truth needs --json.")
    if address := next((each for each in what if is_address(each)), None):
        raise InputError(f"WHAT: '{redact(address)}' is not on this machine; copy the images first.")
    is_one = len(what) == 1 and Path(what[0]).is_file()
    images = image_files.find_images(what, leave_out=None if is_one else output)
    if is_one and output is not None and output.is_dir():
        output /= images[0].name
    model_dir = find_saved_model(copied_model(model))
    label_map = read_exported_label_map(str(model_dir))
    show_log()
    loaded = load_runtime(model_dir, runtime)
    shown_score = choose_min_score(min_score, model_dir)
    results: list[predict_files.ResultFile] = []
    stored_score = min_score or 0.0
    if json_file is not None and ground_truth is not None:
        coco, images = predict_files.match_ground_truth(json_file, ground_truth, images, label_map, stored_score)
        results.append(coco)
    elif json_file is not None:
        ids = {image.name: number for number, image in enumerate(images, start=1)}
        results.append(predict_files.CocoOutput(json_file, ids, label_map, stored_score, has_own_ids=True))
    if csv_file is not None:
        results.append(CsvOutput(csv_file, shown_score))
    if yolo is not None:
        results.append(YoloOutput(yolo, images, label_map, shown_score))
    has_lines = is_one or (output is None and not results)
    outputs = predict_files.Outputs(
        is_single=is_one,
        result_files=results,
        path=output,
        min_score=shown_score,
        print_line=click.echo if has_lines else None,
    )
    # On a terminal, a progress bar between scrolling lines would flicker.
    has_progress = not is_one and not (has_lines and sys.stdout.isatty())
    counts = predict_files.predict_files(loaded, label_map, images, outputs, batch_size, has_progress=has_progress)
    if other := image_files.find_other_images(what):
        named = ", ".join(map(escape, other[:3])) + (", ..." if len(other) > 3 else "")
        click.echo(f"skipped: {len(other)} images that are neither JPEG nor PNG ({named}); convert them.", err=True)
        counts.num_broken += len(other)
    click.echo(counts.sentence(shown_score), err=True)
    for path in filter(None, (json_file, csv_file, yolo)):
        click.echo(f"Wrote {path}", err=True)
    if output is not None:
        click.echo(f"Wrote {output}" if is_one else f"Wrote {counts.num_images} images in {output}", err=True)
    if json_file is not None and ground_truth is not None:
        words = ("detloom", "evaluate", "--detections", json_file, "--ground-truth", ground_truth)
        click.echo(format_next(*words), err=True)
    sys.exit(counts.num_broken > 0 if strict else counts.num_images == 0)
