"""Command `detloom lineage`. Imports are late to keep the CLI fast."""

import json
from pathlib import Path
from typing import Literal

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FOLDER, complete_folder
from detloom.pipelines.lineage.graph import MAX_WARM_STARTS


@command(
    "detloom lineage detloom_runs/demo/serving/1760000000",
    "detloom lineage 1760000000 --workspace detloom_runs/demo --mermaid",
)
@click.argument("version", metavar="VERSION", shell_complete=complete_folder)
@click.option(
    "--workspace",
    type=FOLDER,
    metavar="DIR",
    help="Workspace of the pipeline, which contains metadata.sqlite. Default: the parent of the push folder.",
)
@click.option(
    "--depth",
    type=click.IntRange(0, 50),
    default=MAX_WARM_STARTS,
    show_default=True,
    metavar="N",
    help="How many warm starts to follow back to earlier models.",
)
@click.option("--json", "output", flag_value="json", help="Print JSON: nodes with all their facts, and edges.")
@click.option("--mermaid", "output", flag_value="mermaid", help="Print a Mermaid diagram, which Markdown viewers draw.")
def lineage(version: str, workspace: Path | None, depth: int, output: Literal["json", "mermaid"] | None) -> None:
    """Show the origin of a pushed model.

    The origin is data spans, configuration, checkpoint, evaluation and baseline. VERSION is the folder (or address) of
    a version, or its number. The command reads ML Metadata, the push record and the artifacts, and writes nothing.
    """
    from detloom.pipelines.lineage.find_version import find_version
    from detloom.pipelines.lineage.formats import format_mermaid, format_text
    from detloom.pipelines.lineage.trace import trace

    graph = trace(find_version(version, workspace), depth)
    match output:
        case "json":
            click.echo(json.dumps(graph.to_dict(), indent=1, ensure_ascii=False))
        case "mermaid":
            click.echo(format_mermaid(graph))
        case None:
            click.echo(format_text(graph))
