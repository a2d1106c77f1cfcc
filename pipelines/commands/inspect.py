"""`detloom inspect`: make a page of annotated or augmented samples."""

from pathlib import Path

import click

from detloom.pipelines.commands.exit_codes import end_of_help
from detloom.pipelines.commands.options import FOLDER, PATH, complete_config


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
@click.argument("examples", metavar="DIR", type=FOLDER)
@click.option("--output", type=PATH, help="The page; default: DIR/inspect.html, or DIR/augment.html.")
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
    examples: Path,
    output: Path | None,
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

        page = write_augment_page(
            examples,
            output or examples / AUGMENT_HTML,
            read_config(config),
            num_images=num_images or 8,
            num_versions=num_versions,
            split=split,
            class_name=class_name,
        )
    else:
        from detloom.components.dataset_validator.report.inspect_page import INSPECT_HTML, write_inspect_page

        page = write_inspect_page(
            examples,
            output or examples / INSPECT_HTML,
            num_images=num_images or 24,
            split=split,
            class_name=class_name,
        )
    click.echo(f"Wrote {page}")
