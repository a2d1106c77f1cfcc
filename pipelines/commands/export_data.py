"""`detloom export-coco` and `detloom export-yolo`: write examples in another format."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, STORED_FOLDER, copied

if TYPE_CHECKING:
    from detloom.components.example_gen.exported_folder import ExportCounts


@command("detloom export-coco data/examples cells_coco")
@click.argument("examples", metavar="DIR", type=STORED_FOLDER)
@click.argument("output", metavar="OUT", type=FOLDER)
def export_coco(examples: Path | str, output: Path) -> None:
    """Write examples as a COCO data set.

    DIR is a folder that detloom ingest wrote. OUT gets images/ and annotations/SPLIT.json.
    """
    from detloom.components.example_gen.export_coco import export_coco as export

    click.echo(_format_export(export(copied(examples), output), output))


@command("detloom export-yolo data/examples cells_yolo")
@click.argument("examples", metavar="DIR", type=STORED_FOLDER)
@click.argument("output", metavar="OUT", type=FOLDER)
def export_yolo(examples: Path | str, output: Path) -> None:
    """Write examples as a YOLO data set.

    DIR is a folder that detloom ingest wrote. OUT gets images/, labels/ and data.yaml.
    """
    from detloom.components.example_gen.export_yolo import export_yolo as export

    click.echo(_format_export(export(copied(examples), output), output))


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
