"""`detloom export-coco` and `detloom export-yolo`: write examples in another format."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.commands.options import FOLDER

if TYPE_CHECKING:
    from detloom.components.example_gen.exported_folder import ExportCounts


@click.command("export-coco")
@click.argument("examples", metavar="DIR", type=FOLDER)
@click.argument("output", metavar="OUT", type=FOLDER)
def export_coco(examples: Path, output: Path) -> None:
    """Write the examples in DIR as a COCO data set: OUT/images/ and OUT/annotations/SPLIT.json."""
    from detloom.components.example_gen.export_coco import export_coco as export

    click.echo(_format_export(export(examples, output), output))


@click.command("export-yolo")
@click.argument("examples", metavar="DIR", type=FOLDER)
@click.argument("output", metavar="OUT", type=FOLDER)
def export_yolo(examples: Path, output: Path) -> None:
    """Write the examples in DIR as a YOLO data set: OUT/images/, OUT/labels/ and OUT/data.yaml."""
    from detloom.components.example_gen.export_yolo import export_yolo as export

    click.echo(_format_export(export(examples, output), output))


def _format_export(counts: "ExportCounts", output: Path) -> str:
    lines = [
        f"{split}: {num_images} images, {counts.num_objects[split]} boxes"
        for split, num_images in counts.num_images.items()
    ]
    lines += [f"{split}: no images, left out" for split in counts.empty_splits]
    for title, found in (("Lost", counts.lost), ("Changed", counts.changed)):
        if found:
            lines.append(f"{title}: " + ", ".join(f"{name} {number}" for name, number in sorted(found.items())))
    return "\n".join([*lines, f"Wrote {output}"])
