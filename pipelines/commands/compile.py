"""`detloom compile`: write the job file for Kubeflow Pipelines or Vertex AI. Heavy imports are inside functions."""

import shlex
from pathlib import Path

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import FILE
from detloom.pipelines.command_line.remote_run import RemoteRun, remote_run_options
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import redact
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.run_file.run_file import Place, RunFile

# the extensions that the clients accept
_SUFFIXES: dict[Place, tuple[str, ...]] = {"kubeflow": (".yaml", ".yml"), "vertex": (".json",)}
_BEAM_IMAGE = "--sdk_container_image="
_WHAT: dict[Place, str] = {
    "kubeflow": "a PipelineSpec for Kubeflow Pipelines, with settings for Kubernetes",
    "vertex": "a PipelineJob for Vertex AI",
}


@command(
    "detloom compile cells.yaml --runner kubeflow -o job.yaml",
    "detloom compile cells.yaml --runner vertex -o job.json",
)
@remote_run_options
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Default: <name>.yaml for Kubeflow, <name>.json for Vertex AI, in the current folder.",
)
def compile_command(remote: RemoteRun, output: Path | None) -> None:
    """Write a job file for Kubeflow Pipelines or Vertex AI.

    The job is the pipeline of RUN_FILE. Compiling needs no cluster and no credentials. The file contains references to
    secrets, but no secret, and is the same byte for byte as long as run file and package do not change. It requires an
    image with the same code: each task refuses to run in an image with other code for it.
    """
    run, place = remote.run, remote.place
    path = output if output is not None else Path(f"{run.name}{_SUFFIXES[place][0]}")
    _check_output(path, remote.run_file, place)
    from detloom.pipelines.compile.compile_job import compile_job  # late: TFX
    from detloom.pipelines.local.console import format_next

    write_text_file(path, compile_job(run, place))
    click.echo(f"Written: {path}, {_WHAT[place]}; pipeline '{run.name}'.")
    for image in _images_of(run, place):
        check = ("docker", "run", "--rm", "-i", "--entrypoint", "detloom", image, "image-check", "--job", "-")
        click.echo(f"{format_next(*check)} < {shlex.quote(str(path))}")
    click.echo(format_next("detloom", "submit", remote.run_file, "--runner", place, "--job", path))


def _images_of(run: RunFile, place: Place) -> list[str]:
    """Return the images of a job: of its tasks, of the machines of `vertex.training`, and of Dataflow's workers."""
    images = [getattr(run, place).image, *(node.image for node in run.nodes)]
    if place == "vertex" and run.vertex and run.vertex.training:
        images.append(run.vertex.training.image)
    for args in (run.beam_args, *(node.beam_args or () for node in run.nodes)):
        images += [arg.removeprefix(_BEAM_IMAGE) for arg in args if arg.startswith(_BEAM_IMAGE)]
    return list(dict.fromkeys(filter(None, images)))


def _check_output(path: Path, run_file: Path, place: Place) -> None:
    where = redact(str(path))
    suffixes = _SUFFIXES[place]
    if path.suffix not in suffixes:
        raise InputError(f"{where}: got the extension '{path.suffix}', allowed for {place}: {', '.join(suffixes)}.")
    if path.exists() and run_file.exists() and path.samefile(run_file):
        raise InputError(f"{where}: this is the run file; choose another output file with -o.")
    if not path.parent.is_dir():
        raise InputError(f"{redact(str(path.parent))}: this folder does not exist; create it, or choose another one.")
