"""What the runner files for Kubeflow and Vertex AI share."""

import os
from pathlib import Path

from detloom.pipelines.compile.compile_job import JobRunner
from detloom.pipelines.create_pipeline import create_pipeline
from detloom.pipelines.run_local import RUN_FILE_VARIABLE, sample_run_file
from detloom.schemas.read_run_file import read_run_file
from detloom.schemas.run_file import Place


def compile_run_file(place: Place, suffix: str) -> Path:
    """Compile the run file that DETLOOM_RUN_FILE names; where the tfx command line does not say otherwise, into
    `<name><suffix>` in the current folder.

    Raises:
        InputError: for a mistake in it, or what the backend cannot do.
    """
    path = os.environ.get(RUN_FILE_VARIABLE)
    run = read_run_file(Path(path) if path else sample_run_file("demo"), place=place)
    runner = JobRunner(run, place, f"{run.name}{suffix}")
    runner.run(create_pipeline(run, place))
    return runner.output_path
