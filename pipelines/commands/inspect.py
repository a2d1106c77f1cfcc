"""`detloom inspect`: make a page of annotated or augmented samples."""

import posixpath
from pathlib import Path

import click

from detloom.components.storage.local_copy import local_output
from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import STORED_FOLDER, STORED_PATH, complete_config, copied


def _current_name(option: str) -> str:
    """Return the current name of a renamed option."""
    return "images" if option == "pictures" else option


@click.command(
    context_settings={"token_normalize_func": _current_name},
    epilog=end_of_help(
        "inspect",
        "detloom inspect data/examples --class cat",
        "detloom inspect data/examples --augment --config cells.yaml",
    ),
)
@click.argument("examples", metavar="DIR", type=STORED_FOLDER)
@click.option("--output", type=STORED_PATH, help="The page; default: DIR/inspect.html, or DIR/augment.html.")
@click.option("--split", help="Only this split.")
@click.option("--class", "class_name", help="Only images with an object of this class.")
@click.option("--images", "num_images", type=click.IntRange(1, 200), help="Default: 24, or 8 with --augment.")
@click.option("--augment", is_flag=True, help="Show augmented versions beside the stored images.")
@click.option(
    "--config",
    metavar="CONFIG",
    shell_complete=complete_config,
    help="With --augment: pipeline.config, run file or preset with the augmentations.",
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
    augment: bool,
    config: str | None,
    num_versions: int,
) -> None:
    """Write a page with annotated samples of examples.

    DIR is a folder that detloom ingest wrote. The page also shows the distributions of classes and sizes. With
    --augment, it shows samples beside their augmented versions.
    """
    if augment != (config is not None):
        raise click.UsageError("--augment and --config go together: the configuration defines the augmentations.")
    if config is not None:
        from detloom.components.dataset_validator.report.augment_page import AUGMENT_HTML, write_augment_page
        from detloom.pipelines.commands.config_check import read_config

        page = str(output or f"{examples}/{AUGMENT_HTML}")
        settings = read_config(config)
        with local_output(posixpath.dirname(page)) as folder:
            write_augment_page(
                copied(examples),
                folder / posixpath.basename(page),
                settings,
                num_images=num_images or 8,
                num_versions=num_versions,
                split=split,
                class_name=class_name,
            )
    else:
        from detloom.components.dataset_validator.report.inspect_page import INSPECT_HTML, write_inspect_page

        page = str(output or f"{examples}/{INSPECT_HTML}")
        with local_output(posixpath.dirname(page)) as folder:
            write_inspect_page(
                copied(examples),
                folder / posixpath.basename(page),
                num_images=num_images or 24,
                split=split,
                class_name=class_name,
            )
    click.echo(f"Wrote {page}")
