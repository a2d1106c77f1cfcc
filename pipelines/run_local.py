"""Running the DAG on this machine with TFX's LocalDagRunner and metadata in SQLite."""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from detloom.pipelines.run_lock import hold_workspace
from detloom.schemas.config_checks import warnings_before_run
from detloom.schemas.data_config import EMBEDDED_DIGITS
from detloom.schemas.errors import InputError
from detloom.schemas.read_run_file import read_run_file
from detloom.schemas.run_file import RunFile
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

    A node that failed is tried again as `run.nodes` says. When the run has failed in the end, `run.notifications` says
    who is told.

    Returns:
        The summary as text; empty if the runner only recorded the pipeline (`tfx pipeline create`).

    Raises:
        WorkspaceBusyError: another run is in the workspace.
        InputError: a setting that is not trained yet, or the sentence of the node that failed by the user's mistake.
    """
    try:
        check_trainable(run.config)  # first: nothing is written for settings that cannot be trained
    except InputError as error:
        from detloom.pipelines.retries import tell_failure

        tell_failure(run, None, error)
        raise
    with hold_workspace(Path(run.workspace)):
        from detloom.pipelines.console import log_nodes
        from detloom.pipelines.retries import find_preemption, run_with_retries, tell_failure
        from detloom.pipelines.summary import summarize_run

        nodes = log_nodes(verbose)
        started = time.time()
        try:
            for warning in warnings_before_run(run.config):
                _LOGGER.warning("%s", warning)
            run_with_retries(_prepare_data(run), nodes)
            return summarize_run(run, started, seconds=time.time() - started)
        except Exception as error:
            if find_preemption(error) is None:
                tell_failure(run, nodes.current, error)
            raise


def _prepare_data(run: RunFile) -> RunFile:
    if run.data.path != EMBEDDED_DIGITS:
        return run
    from detloom.pipelines.demo_data import write_embedded_digits

    folder = Path(run.workspace) / "data" / "digits"
    write_embedded_digits(folder)
    return replace(run, data=replace(run.data, path=str(folder)))
