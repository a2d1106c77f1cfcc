"""`detloom lineage`: what a pushed version came from. Imports are late."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detloom.pipelines.lineage.graph import MAX_WARM_STARTS
from detloom.schemas.errors import InputError

if TYPE_CHECKING:
    from detloom.pipelines.lineage.graph import LineageGraph

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("version", metavar="VERSION")
@click.option("--push-dir", default="", metavar="DIR", help="The folder of versions, if VERSION is a number alone.")
@click.option(
    "--workspace",
    type=_FOLDER,
    metavar="DIR",
    help="Where the pipeline ran: holds metadata.sqlite. Default: the folder that holds the folder of versions.",
)
@click.option("--metadata", type=_FILE, metavar="FILE", help="The metadata.sqlite, if it lies elsewhere.")
@click.option("--run-file", type=_FILE, metavar="RUN.yaml", help="Take the workspace and `push_to` from it.")
@click.option(
    "--depth",
    type=click.IntRange(0, 50),
    default=MAX_WARM_STARTS,
    show_default=True,
    metavar="N",
    help="How many models to go back where training started from an earlier model.",
)
@click.option("--output", type=_FILE, metavar="FILE", help="A picture, FILE.svg, or a page with it, FILE.html.")
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
    """Say what a pushed model came from: data spans, configuration, checkpoint, evaluation, baseline.

    VERSION is the folder (or address) of a version, or its number. The answer comes from ML Metadata, the push record
    and the artifacts; nothing is written but FILE.

    \b
    detloom lineage detloom_runs/demo/serving/1760000000 --output lineage.html
    detloom lineage 1760000000 --run-file run.yaml --json
    """
    from detloom.pipelines.lineage.format_text import format_text
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
    from detloom.pipelines.lineage.format_page import format_page
    from detloom.pipelines.lineage.format_svg import format_svg
    from detloom.schemas.text_file import write_text_file

    text = format_svg(graph) if output.suffix.lower() == ".svg" else format_page(graph)
    try:
        write_text_file(output, text)
    except OSError as error:  # no such folder, no room
        raise InputError(f"{output}: cannot be written ({error.strerror}).") from None
