"""Command `detloom manifest`. Imports are late to keep the CLI fast."""

from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FILE, PATH, override_options, read_override_options


@command(
    "detloom manifest run.yaml --workers 4 --examples /data/examples --out /data/runs/cells -o cells.yaml",
    "kubectl apply -f cells.yaml",
)
@click.argument("run_file", type=PATH)
@click.option("--workers", type=click.IntRange(min=2), default=2, show_default=True, metavar="N", help="Machines.")
@click.option("--examples", required=True, metavar="DIR", help="Output of detloom ingest, in the containers.")
@click.option("--out", required=True, metavar="DIR", help="Folder in the containers that all workers share.")
@click.option("--name", default="", help="Name of the objects in the cluster. Default: that of the run.")
@click.option("-o", "output", type=FILE, metavar="FILE", help="Default: standard output.")
@override_options
def manifest(
    run_file: Path,
    workers: int,
    examples: str,
    out: str,
    name: str,
    output: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Write a Kubernetes manifest to train on several machines.

    An Indexed Job and its service run `detloom train` with the model of RUN_FILE on the split `train`. Image,
    namespace, volumes and secrets come from its section `kubeflow`; cores, memory, GPUs and restarts from the entry for
    Trainer in `nodes`. The same run file gives the same bytes.
    """
    from detloom.pipelines.manifests import format_manifest
    from detloom.schemas.odapi.pipeline_config import refusal
    from detloom.schemas.reading.text_file import write_text_file
    from detloom.schemas.run_file.read_run_file import build_run, check_checkpoint, load_run_tree
    from detloom.trainer_module.detectors.supported import check_trainable

    tree, report = load_run_tree(run_file, read_override_options(settings))
    if report is not None and report.refused:
        raise refusal(report)
    run = build_run(tree)
    check_trainable(run.config)
    check_checkpoint(run.train.fine_tune_checkpoint, tree, "Kubernetes")
    text = format_manifest(run, workers=workers, examples=examples, out=out, name=name)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text_file(output, text)
