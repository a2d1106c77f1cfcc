"""`detloom compile`: the file that Kubeflow Pipelines or Vertex AI runs. Imports are late."""

from pathlib import Path

import click

from detloom.pipelines.config_cli import override_options
from detloom.pipelines.submit_cli import read_remote_run, runner_option
from detloom.schemas.errors import InputError
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place

_SUFFIXES: dict[Place, tuple[str, ...]] = {"kubeflow": (".yaml", ".yml"), "vertex": (".json",)}  # by which clients read
_WHAT: dict[Place, str] = {
    "kubeflow": "a PipelineSpec for Kubeflow Pipelines, with what Kubernetes has to know",
    "vertex": "a PipelineJob for Vertex AI",
}


@click.command("compile")
@click.argument("run_file", type=click.Path(path_type=Path))
@runner_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Default: <name>.yaml for Kubeflow, <name>.json for Vertex AI, in the current folder.",
)
@override_options
def compile_command(
    run_file: Path, runner: Place | None, output: Path | None, settings: tuple[str, ...], hparams: str
) -> None:
    """Write the pipeline of RUN_FILE as a file that Kubeflow Pipelines or Vertex AI runs.

    \b
    detloom compile cells.yaml --runner kubeflow -o job.yaml
    detloom compile cells.yaml --runner vertex -o job.json

    Needs no cluster and no credentials. The file holds no secret, only where each is kept, and is the same byte for
    byte each time while run file and package stay the same. It fits an image with this very package: a container of
    another refuses to work.
    """
    from detloom.pipelines.package_fingerprint import package_fingerprint

    run, place = read_remote_run(run_file, runner, settings, hparams)
    path = output if output is not None else Path(f"{run.name}{_SUFFIXES[place][0]}")
    _check_output(path, run_file, place)
    from detloom.pipelines.compile.compile_job import write_job  # late: TFX

    try:
        write_job(run, place, path)
    except OSError as error:
        raise InputError(f"{redact(str(path))}: cannot be written ({error.strerror or error}).") from None
    click.echo(f"Written: {path}, {_WHAT[place]}; pipeline '{run.name}', package {package_fingerprint()}.")
    image = getattr(run, place).image
    click.echo(f"Next: detloom image-check --image {image} --job {path}")
    click.echo(f"      detloom submit {run_file} --runner {place} --job {path}")


COMMANDS = (compile_command,)


def _check_output(path: Path, run_file: Path, place: Place) -> None:
    where = redact(str(path))
    suffixes = _SUFFIXES[place]
    if path.suffix not in suffixes:
        raise InputError(f"{where}: got the ending '{path.suffix}', allowed for {place}: {', '.join(suffixes)}.")
    if path.exists() and run_file.exists() and path.samefile(run_file):
        raise InputError(f"{where}: is the run file itself; name another one with -o.")
    if not path.parent.is_dir():
        raise InputError(f"{redact(str(path.parent))}: is no folder; create it, or write elsewhere.")
