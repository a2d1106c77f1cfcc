"""Run the pipeline until it finishes or a node has no retries left."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from detloom.components.beam_job import BeamJobError, cancel_unfinished_jobs, explain_job_failure
from detloom.pipelines.dag.create_pipeline import create_pipeline
from detloom.pipelines.lineage.metadata_file import CODE_FOLDER, METADATA_FILE
from detloom.pipelines.local.console import NodeEnd, NodeLog
from detloom.pipelines.local.summary import find_latest_run, read_latest_run
from detloom.pipelines.local.supervise import NodeTimeoutError, TimeLimits, delete_temporary_folder
from detloom.pipelines.local.tfx_hooks import observe_nodes, record_code
from detloom.schemas.errors import InputError
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.reading.redact import redact
from detloom.schemas.run_file.nodes import retry_of
from detloom.schemas.run_file.run_file import RunFile
from detloom.trainer_module.runtime.preemption import Preempted

_LOGGER = logging.getLogger("detloom")


class NodeFailedError(InputError):
    """A node failed for a reason that may be temporary; the message needs no traceback.

    Attributes:
        node: its id.
        reason: the message without the node.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node} failed: {reason}")
        self.node, self.reason = node, reason


class RunInterruptedError(InputError):
    """A signal ended a training run, which has saved its state.

    Attributes:
        exit_code: 128 and the number of the signal.
    """

    def __init__(self, node: str, cause: Preempted) -> None:
        super().__init__(f"{node} ended: {cause}")
        self.exit_code = 128 + cause.signal_number


def run_with_retries(run: RunFile, nodes: NodeLog, check_held: Callable[[], None] = lambda: None) -> None:
    """Run the pipeline; after a failure, wait as `run.nodes` says and run it again while the node has retries left.

    Finished nodes are then cached. A user's mistake or an interrupted training run is not retried.

    Args:
        check_held: called before each node; raises InputError if the lock of the workspace was lost.

    Raises:
        InputError: the node failed because of a user's mistake, or the lock was lost.
        RunInterruptedError: a signal ended the training run.
        NodeFailedError: the node exceeded its time limit, its inputs were not found, or its Beam job failed on a
            cluster.
        Exception: any other failure of a node.
    """
    num_failures: Counter[str] = Counter()
    while True:
        try:
            return _run_once(run, nodes, check_held)
        except Exception as error:
            node = error.node if isinstance(error, NodeFailedError) else nodes.current
            if node is None:
                raise
            if not isinstance(error, NodeFailedError):
                _raise_mistake(error, node)
            num_failures[node] += 1
            retry = retry_of(run.nodes, node)
            if num_failures[node] > retry.max_retries:
                raise
            seconds = retry.wait_seconds(num_failures[node])
            reason = error.reason if isinstance(error, NodeFailedError) else redact(str(error) or type(error).__name__)
            num_tries = retry.max_retries + 1
            tries = f"try {num_failures[node] + 1} of {num_tries} in {format_duration(seconds)}"
            _LOGGER.warning("%s failed (%s); %s.", node, reason.rstrip("."), tries)
            time.sleep(seconds)


def find_preemption(error: BaseException | None) -> Preempted | None:
    """Return the signal that ended a training run if it caused the exception, otherwise None."""
    while error is not None and not isinstance(error, Preempted):
        error = error.__cause__
    return error


def notify_failed_run(run: RunFile, node: str | None, error: BaseException) -> None:
    """Send a notification about a failed run if the run file asks for it."""
    if run.notifications is not None and "failed" in run.notifications.events:
        from detloom.components.notifier.component import notify_failure

        notify_failure(run.name, run.notifications, node, error)


def _run_once(run: RunFile, nodes: NodeLog, check_held: Callable[[], None]) -> None:
    # late: the tfx command line replaces its run method
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    def limit_of(node: str) -> float | None:
        return retry_of(run.nodes, node).time_limit_seconds

    def end_process(error: NodeTimeoutError) -> None:
        next_step = "The process ends; run the same command again to continue from the finished nodes."
        sentence = f"{error.node}: {error}, and could not be interrupted. {next_step}"
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        notify_failed_run(run, error.node, NodeFailedError(error.node, str(error)))
        delete_temporary_folder()
        os._exit(1)

    nodes.restart()
    pipeline = create_pipeline(run)
    nodes.num_nodes = len(pipeline.components)
    record_code(Path(run.workspace) / CODE_FOLDER, pipeline.components)
    metadata_file = Path(run.workspace) / METADATA_FILE
    before = find_latest_run(metadata_file)
    with TimeLimits(limit_of, end_process) as limits:

        def begin(node: str) -> None:
            nodes.begin(node)
            check_held()
            limits.start(node)

        def end(node: str, how: NodeEnd) -> None:
            limits.finish()
            nodes.end(node, how)

        try:
            with observe_nodes(begin, end), explain_job_failure(), cancel_unfinished_jobs():
                LocalDagRunner().run(pipeline)
        except Exception as error:
            # Checked by `limits.exceeded`, because an interrupted node can raise any exception.
            if limits.exceeded is not None and find_preemption(error) is None:
                reason = f"{limits.exceeded}; if it needs more time, raise the limit under nodes in the run file."
                raise NodeFailedError(limits.exceeded.node, reason) from error
            if isinstance(error, BeamJobError) and nodes.current is not None:
                raise NodeFailedError(nodes.current, str(error)) from error
            raise
        finally:
            limits.finish()
    for node in read_latest_run(metadata_file, before).values():
        if node.is_failed:  # TFX marks a node whose inputs were not found as failed, and continues
            raise NodeFailedError(node.node_id, "its inputs could not be found; the log above gives the reason.")


def _raise_mistake(error: BaseException, node: str) -> None:
    """Raise InputError if a user's mistake or an interruption caused the exception.

    Exceptions in `__context__` do not count: an error while handling a mistake is a bug.
    """
    mistake: BaseException | None = error
    while mistake is not None and not isinstance(mistake, InputError | Preempted):
        mistake = mistake.__cause__
    if isinstance(mistake, Preempted):
        raise RunInterruptedError(node, mistake) from error
    if mistake is not None:
        raise InputError(f"{node} failed: {mistake}") from error
