"""Command `detloom lineage`. Imports are late to keep the CLI fast."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FILE, FOLDER, complete_folder
from detloom.pipelines.lineage.graph import MAX_WARM_STARTS
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.pipelines.lineage.graph import LineageGraph


@command(
    "detloom lineage detloom_runs/demo/serving/1760000000 --output lineage.html",
    "detloom lineage 1760000000 --run-file run.yaml --json",
)
@click.argument("version", metavar="VERSION", shell_complete=complete_folder)
@click.option(
    "--push-dir",
    default="",
    metavar="DIR",
    shell_complete=complete_folder,
    help="The push folder, if VERSION is only a number.",
)
@click.option(
    "--workspace",
    type=FOLDER,
    metavar="DIR",
    help="Workspace of the pipeline, which contains metadata.sqlite. Default: the parent of the push folder.",
)
@click.option("--metadata", type=FILE, metavar="FILE", help="The metadata.sqlite, if it is elsewhere.")
@click.option("--run-file", type=FILE, metavar="RUN.yaml", help="Take the workspace and `push_to` from it.")
@click.option(
    "--depth",
    type=click.IntRange(0, 50),
    default=MAX_WARM_STARTS,
    show_default=True,
    metavar="N",
    help="How many warm starts to follow back to earlier models.",
)
@click.option("--output", type=FILE, metavar="FILE", help="Write a drawing (FILE.svg) or a page with it (FILE.html).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: nodes and edges.")
def lineage(
    version: str,
    push_dir: str,
    workspace: Path | None,
    metadata: Path | None,
    run_file: Path | None,
    depth: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Show the origin of a pushed model.

    The origin is data spans, configuration, checkpoint, evaluation and baseline. VERSION is the folder (or address) of
    a version, or its number. The command reads ML Metadata, the push record and the artifacts, and writes only FILE.
    """
    from detloom.pipelines.lineage.formats import format_text
    from detloom.pipelines.lineage.places import find_places
    from detloom.pipelines.lineage.trace import trace

    if output is not None and output.suffix.lower() not in (".svg", ".html"):
        raise InputError(f"--output: got {str(output)!r}, allowed: a name that ends in .svg or .html.")
    places = find_places(version, push_dir=push_dir, metadata=metadata, workspace=workspace, run_file=run_file)
    graph = trace(places, depth)
    click.echo(json.dumps(graph.to_dict(), indent=1, ensure_ascii=False) if as_json else format_text(graph))
    if output is not None:
        _write(graph, output)
        click.echo(f"Wrote {output}", err=True)


def _write(graph: "LineageGraph", output: Path) -> None:
    from detloom.pipelines.lineage.formats import format_page, format_svg
    from detloom.schemas.reading.text_file import write_text_file

    text = format_svg(graph) if output.suffix.lower() == ".svg" else format_page(graph)
    write_text_file(output, text)
