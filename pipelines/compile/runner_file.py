"""What the runner files for Kubeflow and Vertex AI share."""

import os
from pathlib import Path

from detloom.pipelines.compile.compile_job import JobRunner
from detloom.pipelines.create_pipeline import create_pipeline
from detloom.pipelines.run_local import RUN_FILE_VARIABLE, sample_run_file
from detloom.schemas.errors import InputError
from detloom.schemas.read_run_file import read_run_file
from detloom.schemas.redact import redact
from detloom.schemas.run_file import Place


def compile_run_file(place: Place, suffix: str) -> Path:
    """Compile the run file that DETLOOM_RUN_FILE names; where the tfx command line does not say otherwise, into
    `<name><suffix>` in the current folder.

    Raises:
        InputError: for a mistake in it, what the backend cannot do, or a run file that has that very name.
    """
    named = os.environ.get(RUN_FILE_VARIABLE)
    path = Path(named) if named else sample_run_file("demo")
    run = read_run_file(path, place=place)
    runner = JobRunner(run, place, f"{run.name}{suffix}")
    output = runner.output_path
    if output.exists() and output.samefile(path):
        raise InputError(
            f"{redact(str(path))}: is the run file itself, where the job would be written; rename it, or compile it in "
            "another folder."
        )
    runner.run(create_pipeline(run, place))
    return runner.output_path
