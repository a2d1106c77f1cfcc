"""`detloom inspect`: make a page of annotated or augmented samples."""

import posixpath
from pathlib import Path
from typing import Any

import click

from detloom.components.storage.local_copy import local_output
from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import STORED_FOLDER, STORED_PATH, complete_config, copied


@command(
    "detloom inspect data/examples --class cat",
    "detloom inspect data/examples --augment cells.yaml",
)
@click.argument("examples", metavar="DIR", type=STORED_FOLDER)
@click.option(
    "--output",
    type=STORED_PATH,
    help="The page. Default: inspect.html or augment.html in the current folder; for an address, in DIR.",
)
@click.option("--split", help="Only this split.")
@click.option("--class", "class_name", help="Only images with an object of this class.")
@click.option("--images", "num_images", type=click.IntRange(1, 200), help="Default: 24, or 8 with --augment.")
@click.option(
    "--augment",
    "config",
    metavar="CONFIG",
    shell_complete=complete_config,
    help="Show augmented versions beside the stored images; CONFIG, a pipeline.config, run file or preset, has the "
    "augmentations.",
)
@click.option(
    "--versions",
    "num_versions",
    type=click.IntRange(1, 8),
    default=3,
    show_default=True,
    help="With --augment: versions of each image.",
)
def inspect(
    examples: Path | str,
    output: Path | str | None,
    split: str | None,
    class_name: str | None,
    num_images: int | None,
    config: str | None,
    num_versions: int,
) -> None:
    """Write a page with annotated samples of examples.

    DIR is a folder that detloom ingest wrote. The page also shows the distributions of classes and sizes. With
    --augment, it shows samples beside their augmented versions.
    """
    from detloom.components.dataset_validator.report.augment_page import AUGMENT_HTML, write_augment_page
    from detloom.components.dataset_validator.report.inspect_page import INSPECT_HTML, write_inspect_page
    from detloom.schemas.run_file.push import is_remote
    from detloom.schemas.run_file.read_config import read_config

    name = INSPECT_HTML if config is None else AUGMENT_HTML
    page = str(output or (f"{examples}/{name}" if is_remote(str(examples)) else name))
    settings = read_config(config) if config is not None else None
    chosen: dict[str, Any] = {"split": split, "class_name": class_name}
    if num_images is not None:
        chosen["num_images"] = num_images
    with local_output(posixpath.dirname(page) or ".") as folder:
        path = folder / posixpath.basename(page)
        if settings is None:
            write_inspect_page(copied(examples), path, **chosen)
        else:
            write_augment_page(copied(examples), path, settings, num_versions=num_versions, **chosen)
    click.echo(f"Wrote {page}")
