"""`detloom predict`: a model over pictures in files, folders and patterns. Imports are late."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.number_range import NumberRange
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.trainer_module.predict import Prediction

_SHOWN_MIN_SCORE = 0.5
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="WHAT...")
@click.option(
    "--model", type=click.Path(path_type=Path), required=True, help="A pushed model, or the folder of its versions."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Where to write pictures with boxes: of one picture a file, else a folder. Without it none is drawn.",
)
@click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Where to write the detections, as COCO results.")
@click.option(
    "--ground-truth",
    type=_FILE,
    metavar="FILE",
    help="With --json: the COCO annotation file whose image ids to use, by file name. Default: 1, 2, ..., and beside "
    "FILE a NAME.images.json that says which is which.",
)
@click.option(
    "--min-score",
    type=NumberRange(0, 1),
    help=f"Least score. Default: {_SHOWN_MIN_SCORE} in lines and pictures, 0 in --json, as an evaluation needs all.",
)
@click.option("--batch-size", type=click.IntRange(1, 256), default=8, show_default=True, help="Pictures at a time.")
@click.option("--strict", is_flag=True, help="Exit code 1 if any picture cannot be read; else only if none can.")
def predict(
    what: tuple[str, ...],
    model: Path,
    output: Path | None,
    json_file: Path | None,
    ground_truth: Path | None,
    min_score: float | None,
    batch_size: int,
    strict: bool,
) -> None:
    """Find objects in pictures: WHAT is files, folders, or quoted patterns such as 'photos/**/*.jpg'.

    \b
    detloom predict photo.jpg --model serving --output boxes.png
    detloom predict photos --model serving --output boxes --json found.json
    detloom predict data/images --model serving --json found.json --ground-truth labels.json
    detloom evaluate --detections found.json --ground-truth labels.json

    Prints a line for each object, unless there are several pictures and --output or --json gets them.
    """
    from detloom.pipelines.console import show_log
    from detloom.pipelines.image_files import find_images
    from detloom.pipelines.predict_files import Outputs, build_coco_output, match_ground_truth, predict_files
    from detloom.trainer_module.predict import load_detector

    if ground_truth is not None and json_file is None:
        raise InputError("detloom predict: --ground-truth goes with --json.")
    shown_score = _SHOWN_MIN_SCORE if min_score is None else min_score
    is_one = len(what) == 1 and Path(what[0]).is_file()
    is_folder = output is not None and (not is_one or output.is_dir())
    images = find_images(what, leave_out=output if is_folder and not is_one else None)
    detector = load_detector(model)
    coco = None
    if json_file is not None and ground_truth is not None:
        coco, images = match_ground_truth(json_file, ground_truth, images, detector.label_map, min_score or 0.0)
    elif json_file is not None:
        coco = build_coco_output(json_file, images, detector.label_map, min_score or 0.0)
    if is_one:
        image_bytes, _ = images[0].read()
        prediction = detector.predict_bytes(image_bytes, what[0])
        if coco is not None:
            with coco:
                coco.add(images[0].name, prediction)
        if output is not None and is_folder:
            output /= images[0].name
        _show_one(prediction.above(shown_score), shown_score, images[0].path, output)
        return
    show_log()
    has_lines = output is None and coco is None
    outputs = Outputs(coco=coco, folder=output, min_score=shown_score, print_line=click.echo if has_lines else None)
    # On a terminal a bar among lines that scroll by would only flicker.
    counts = predict_files(detector, images, outputs, batch_size, has_progress=not (has_lines and sys.stdout.isatty()))
    click.echo(counts.sentence(shown_score), err=True)
    if json_file is not None:
        click.echo(f"Wrote {json_file}", err=True)
    if output is not None:
        click.echo(f"Wrote {counts.num_images} pictures below {output}", err=True)
    sys.exit(counts.num_broken > 0 if strict else counts.num_images == 0)


def _show_one(prediction: "Prediction", min_score: float, source: Path, output: Path | None) -> None:
    from detloom.pipelines.predict_files import save_picture

    for line in prediction.lines():
        click.echo(line)
    click.echo(f"{len(prediction.scores)} objects with a score of at least {min_score}", err=True)
    if output is not None:
        save_picture(prediction, source, output)
        click.echo(f"Wrote {output}", err=True)
