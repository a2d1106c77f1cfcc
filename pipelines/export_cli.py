"""`detloom export`: a trained detector as SavedModel and TensorFlow Lite files. Imports are late."""

import shutil
import tempfile
from pathlib import Path

import click

from detloom.schemas.errors import InputError

_FOLDER = click.Path(path_type=Path, file_okay=False)
_VARIANTS = ("float32", "float16", "int8")


@click.command()
@click.argument("trained", type=_FOLDER)
@click.option("--out", "out_dir", type=_FOLDER, required=True, help="A folder that is not there yet.")
@click.option(
    "--tflite", "variants", multiple=True, type=click.Choice(_VARIANTS), help="Write this variant too; several times."
)
@click.option(
    "--tflite-outputs",
    type=click.Choice(["detections", "raw"]),
    default="detections",
    show_default=True,
    help="raw: all boxes and scores, for whoever suppresses doubles himself.",
)
@click.option("--tflite-max-detections", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--examples", metavar="WHERE", help="With int8: training examples, whose pictures its ranges are measured on."
)
@click.option("--calibration-images", type=click.IntRange(1), default=100, show_default=True, help="How many of them.")
@click.option("--onnx", is_flag=True, help="Write an ONNX file too; needs pip install 'detloom[onnx]'.")
@click.option(
    "--box-units",
    type=click.Choice(["relative", "pixels"]),
    default="relative",
    show_default=True,
    help="Of the boxes that the SavedModel answers with: 0 to 1, or pixels of the picture.",
)
def export(
    trained: Path,
    out_dir: Path,
    variants: tuple[str, ...],
    tflite_outputs: str,
    tflite_max_detections: int,
    examples: str | None,
    calibration_images: int,
    onnx: bool,
    box_units: str,
) -> None:
    """Export TRAINED: a training's folder (its best weights), an exported or pushed model, or a folder of versions.

    \b
    detloom export runs/cells --out exported
    detloom export serving --out lite --tflite float16 --tflite int8 --examples data/examples/Split-train

    OUT gets Format-Serving, a SavedModel, Format-TFLite and Format-ONNX. `detloom evaluate --model OUT` measures the
    first two.
    """
    from detloom.pipelines.console import show_log
    from detloom.pipelines.examples_folder import parse_eval_sets
    from detloom.schemas.detections import ONNX_FOLDER, SERVING_FOLDER, TFLITE_FOLDER
    from detloom.schemas.export_config import Export, check_export
    from detloom.trainer_module.export import export_saved_model
    from detloom.trainer_module.load_trained import load_trained
    from detloom.trainer_module.onnx_export import check_onnx, export_onnx
    from detloom.trainer_module.tflite_export import export_tflite

    settings = Export(
        box_units=box_units,  # type: ignore[arg-type]  # click has checked the choices
        tflite=tuple(dict.fromkeys(variants)),  # type: ignore[arg-type]
        tflite_outputs=tflite_outputs,  # type: ignore[arg-type]
        tflite_max_detections=tflite_max_detections,
        tflite_calibration_images=calibration_images,
        onnx=onnx,
    )
    if "int8" in settings.tflite and not examples:
        raise InputError("detloom export: --tflite int8 needs --examples, to measure its ranges of numbers on.")
    if out_dir.exists():
        raise InputError(f"{out_dir}: is there already; give another --out, or remove it.")
    if onnx:
        check_onnx()
    show_log()
    files = [file for each in parse_eval_sets([examples]) for file in each.files] if examples else []
    detector, config = load_trained(trained)
    check_export(settings, config.model)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", suffix=".partial", dir=out_dir.parent))
    try:
        export_tflite(detector, config, settings, files, partial / TFLITE_FOLDER)
        if onnx:
            export_onnx(detector, config, partial / ONNX_FOLDER)
        export_saved_model(detector, config, partial / SERVING_FOLDER, settings)
        partial.chmod(0o755)  # a folder made for us alone, until now
        partial.rename(out_dir)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for path in (out_dir / SERVING_FOLDER, *sorted(out_dir.glob("*/*.tflite")), *out_dir.glob("*/*.onnx")):
        click.echo(str(path))
