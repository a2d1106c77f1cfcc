"""`detloom export`: write a trained detector as SavedModel, TensorFlow Lite and ONNX files."""

from pathlib import Path
from typing import Any

import click

from detloom.pipelines.command_line.checkpoint_options import checkpoint_options, load_from_options
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, complete_file, copied_examples
from detloom.pipelines.command_line.setting_options import build_settings, setting_options
from detloom.schemas.errors import InputError
from detloom.schemas.model.export_and_quantization import Export
from detloom.schemas.reading.field_docs import settings_of
from detloom.schemas.reading.replace_when_done import replace_when_done


@command(
    "detloom export runs/cells --out exported",
    "detloom export --config zoo/pipeline.config --checkpoint zoo/checkpoint/ckpt-0 --label-map coco.pbtxt --out a",
    "detloom export serving --out lite --tflite float16 --tflite int8 --examples data/examples/Split-train",
)
@click.argument("trained", type=FOLDER, required=False)
@checkpoint_options
@click.option("--out", "out_dir", type=FOLDER, required=True, help="Output folder; must not exist yet.")
@setting_options(settings_of(Export))
@click.option(
    "--examples",
    metavar="WHERE",
    shell_complete=complete_file,
    help="With int8: training examples to calibrate the value ranges.",
)
def export(
    trained: Path | None,
    checkpoint: str | None,
    config: str | None,
    label_map: Path | None,
    out_dir: Path,
    examples: str | None,
    **formats: Any,
) -> None:
    """Write SavedModel, TensorFlow Lite and ONNX files.

    TRAINED is a training folder (its best weights are exported), an exported or pushed model, or a folder of versions.
    With --checkpoint, export any checkpoint that training can start from, such as one of the detection zoo.

    OUT gets the folders Format-Serving, with a SavedModel and model.onnx, and Format-TFLite. `detloom evaluate --model
    OUT` evaluates all three.
    """
    from detloom.pipelines.find_examples import parse_eval_sets
    from detloom.pipelines.local.console import format_next, show_log
    from detloom.schemas.contracts.detections import SERVING_FOLDER, TFLITE_FOLDER
    from detloom.trainer_module.export.load_trained import load_trained
    from detloom.trainer_module.export.saved_model import export_saved_model
    from detloom.trainer_module.export.tflite_export import export_tflite

    settings = build_settings(Export, formats)
    if (trained is None) == (checkpoint is None):
        raise InputError("detloom export: set either TRAINED or --checkpoint.")
    if "int8" in settings.tflite and not examples:
        raise InputError("detloom export: --tflite int8 needs --examples to calibrate the value ranges.")
    _check_absent(out_dir)
    show_log()
    files = [file for each in parse_eval_sets(copied_examples([examples])) for file in each.files] if examples else []
    if trained is not None:
        detector, trained_with = load_trained(trained)
    else:
        assert checkpoint is not None
        detector, trained_with = load_from_options(checkpoint, config, label_map)
    trained_with.model.check_export(settings)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with replace_when_done(out_dir) as partial:
        partial.mkdir()
        export_tflite(detector, trained_with, settings, files, partial / TFLITE_FOLDER)
        export_saved_model(detector, trained_with, partial / SERVING_FOLDER, settings)
        _check_absent(out_dir)  # another export may have finished
    for path in (out_dir / SERVING_FOLDER, *sorted(out_dir.glob("*/*.tflite")), *out_dir.glob("*/*.onnx")):
        click.echo(str(path))
    click.echo(format_next("detloom", "serve", out_dir))


def _check_absent(out_dir: Path) -> None:
    if out_dir.exists():
        raise InputError(f"{out_dir}: already exists; choose another --out, or remove the folder.")
