"""Run the pipeline on this machine with TFX's LocalDagRunner and metadata in SQLite."""

import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from detloom.pipelines.check_learned_columns import check_learned_columns
from detloom.pipelines.lineage.metadata_file import METADATA_FILE, check_metadata_file
from detloom.pipelines.local.console import log_nodes
from detloom.pipelines.local.supervise import hold_workspace, own_temporary_folder
from detloom.pipelines.samples.sample_run_file import RUN_FILE_VARIABLE, sample_run_file
from detloom.schemas.errors import InputError
from detloom.schemas.model.config_checks import warnings_before_run
from detloom.schemas.reading.redact import redact, show_address
from detloom.schemas.run_file.data import EMBEDDED_DIGITS
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.detectors.supported import check_trainable
from detloom.trainer_module.files.folder_lock import FolderBusyError
from detloom.trainer_module.inference.choose_runtime import check_installed
from detloom.trainer_module.run_state.run_folder import TRAINING_DIR_VARIABLE, UNFINISHED_DIR

_WILDCARDS = frozenset("*?[\\")
WORKSPACE_VARIABLE = "DETLOOM_WORKSPACE"
_LOGGER = logging.getLogger("detloom")


def run_file_from_environment() -> RunFile:
    """Read the run file of DETLOOM_RUN_FILE (default: the demo) with the workspace of DETLOOM_WORKSPACE, if set."""
    path = os.environ.get(RUN_FILE_VARIABLE)
    workspace = os.environ.get(WORKSPACE_VARIABLE)
    return read_run_file(Path(path) if path else sample_run_file("demo"), Path(workspace) if workspace else None)


def run_locally(run: RunFile, *, verbose: bool = False) -> str:
    """Run all nodes; nodes whose inputs, settings and code are unchanged come from the cache.

    A failed node is retried as `run.nodes` says. If the run fails, a notification is sent as `run.notifications` says.

    Returns:
        The summary as text; empty if the runner only recorded the pipeline (`tfx pipeline create`).

    Raises:
        FolderBusyError: another run uses the workspace.
        InputError: a setting that cannot be trained, damaged metadata, or a node that failed because of a user's
            mistake.
    """
    nodes = log_nodes(verbose)
    metadata_file = Path(run.workspace) / METADATA_FILE
    try:
        check_runs_here(run)  # before anything is written
        _check_outputs(run)
        with hold_workspace(Path(run.workspace)) as check_held:
            check_metadata_file(metadata_file, is_written=True)
            from detloom.pipelines.local.retries import run_with_retries
            from detloom.pipelines.local.summary import find_latest_run, summarize_run

            if run.pipeline_root:  # an unfinished training run needs a folder
                os.environ.setdefault(TRAINING_DIR_VARIABLE, str(Path(run.workspace) / UNFINISHED_DIR))
            before, started = find_latest_run(metadata_file), time.monotonic()
            for warning in warnings_of(run):
                _LOGGER.warning("%s", warning)
            with own_temporary_folder():
                run_with_retries(prepare_data(run), nodes, check_held)
            return summarize_run(run, before, seconds=time.monotonic() - started)
    except Exception as error:
        if isinstance(error, FolderBusyError) and nodes.current is None:  # the other run goes on
            raise
        from detloom.pipelines.local.retries import find_preemption, notify_failed_run

        if find_preemption(error) is None:
            notify_failed_run(run, nodes.current, error)
        raise


def warnings_of(run: RunFile) -> list[str]:
    """Return what a user should know before a run: settings without effect, and spans that are not read."""
    from detloom.components.example_gen.skipped_spans import describe_skipped_spans

    return [*warnings_before_run(run.config), *filter(None, [describe_skipped_spans(run.data.path)])]


def check_runs_here(run: RunFile) -> None:
    """Raise InputError for a setting that cannot be trained, or a place or runtime that this machine cannot use."""
    if wildcards := sorted(_WILDCARDS & set(run.workspace)):
        raise InputError(
            f"workspace: got {run.workspace!r}, allowed: a path without {' '.join(wildcards)}, which TensorFlow reads "
            "as a pattern of file names."
        )
    check_trainable(run.config)
    check_learned_columns(run)
    check_installed(run.evaluator.runtime)
    if run.push.vertex is not None:
        raise InputError(
            "push.vertex: got an endpoint, allowed on this machine: a folder of versions (push_to), because Vertex "
            "AI reads models from a bucket; run this pipeline on Vertex AI."
        )


def _check_outputs(run: RunFile) -> None:
    """Raise InputError for a folder or an address that only a node after the training would find unusable."""
    from detloom.components.storage.storage import open_storage

    addresses = {"push_to": run.push_to, "retrain.records": run.retrain.records if run.retrain else ""}
    for field, address in addresses.items():
        if not address:
            continue
        try:
            open_storage(address).list_names()
            existing = next(each for each in (Path(address), *Path(address).parents) if each.exists())
            is_writable = "://" in address or os.access(existing, os.W_OK | os.X_OK)
            problem = "" if is_writable else "you have no permission to write there"
        except (InputError, OSError) as error:
            problem = redact(str(error)).rstrip(".")
        if problem:
            raise InputError(
                f"{field}: got {show_address(address)}, allowed: a folder or a bucket to write to; {problem}."
            )


def prepare_data(run: RunFile) -> RunFile:
    """Return the run with the folder of its data; write the embedded data set if it is used."""
    if run.data.path != EMBEDDED_DIGITS:
        return run
    from detloom.pipelines.samples.demo_data import write_embedded_digits

    folder = Path(run.workspace) / "data" / "digits"
    write_embedded_digits(folder)
    return replace(run, data=replace(run.data, path=str(folder)))
