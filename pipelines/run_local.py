"""Running the DAG on this machine with TFX's LocalDagRunner and metadata in SQLite."""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from detloom.schemas.config_checks import warnings_before_run
from detloom.schemas.data_config import EMBEDDED_DIGITS
from detloom.schemas.errors import InputError
from detloom.schemas.read_run_file import read_run_file
from detloom.schemas.run_file import RunFile
from detloom.trainer_module.preemption import Preempted
from detloom.trainer_module.supported import check_trainable

RUN_FILE_VARIABLE = "DETLOOM_RUN_FILE"  # names the run file where no argument can, as under the tfx command line
WORKSPACE_VARIABLE = "DETLOOM_WORKSPACE"
_LOGGER = logging.getLogger("detloom")
_SAMPLES = Path(__file__).parent / "samples"


def sample_run_file(name: str) -> Path:
    """A run file that comes with the package: "demo" or "bccd"."""
    return _SAMPLES / f"{name}.yaml"


def run_file_from_environment() -> RunFile:
    """The run file that DETLOOM_RUN_FILE names, or the demo, in the workspace of DETLOOM_WORKSPACE, or its own."""
    path = os.environ.get(RUN_FILE_VARIABLE)
    workspace = os.environ.get(WORKSPACE_VARIABLE)
    return read_run_file(Path(path) if path else sample_run_file("demo"), Path(workspace) if workspace else None)


def run_locally(run: RunFile, *, verbose: bool = False) -> str:
    """Run all nodes; those whose inputs, settings and code are unchanged are answered from the cache.

    Returns:
        The summary as text; empty if the runner only recorded the pipeline (`tfx pipeline create`).

    Raises:
        InputError: a setting that is not trained yet, or the sentence of the node that failed by the user's mistake.
    """
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    from detloom.pipelines.console import log_nodes
    from detloom.pipelines.create_pipeline import create_pipeline
    from detloom.pipelines.summary import summarize_run

    check_trainable(run.config)
    run = _prepare_data(run)
    Path(run.workspace).mkdir(parents=True, exist_ok=True)
    nodes = log_nodes(verbose)
    for warning in warnings_before_run(run.config):
        _LOGGER.warning("%s", warning)
    pipeline = create_pipeline(run)
    nodes.num_nodes = len(pipeline.components)
    started = time.time()
    try:
        LocalDagRunner().run(pipeline)
    except Exception as error:
        mistake = _find_mistake(error)
        if mistake is None:
            raise
        raise InputError(
            f"{nodes.current} {'ended' if isinstance(mistake, Preempted) else 'failed'}: {mistake}"
        ) from error
    return summarize_run(run, started, seconds=time.time() - started)


def _find_mistake(error: BaseException | None) -> InputError | Preempted | None:
    """The user's mistake or wish that an exception was raised from; what happened while handling one is our bug."""
    while error is not None and not isinstance(error, InputError | Preempted):
        error = error.__cause__
    return error


def _prepare_data(run: RunFile) -> RunFile:
    if run.data.path != EMBEDDED_DIGITS:
        return run
    from detloom.pipelines.demo_data import write_demo_data

    folder = Path(run.workspace) / "data" / "digits"
    write_demo_data(folder, num_train=800, num_eval=60, num_test=120, seed=0)
    return replace(run, data=replace(run.data, path=str(folder)))
