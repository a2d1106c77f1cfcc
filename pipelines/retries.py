"""Running the pipeline until it has finished or a node has used up its tries."""

import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path

from detloom.pipelines.console import NodeLog
from detloom.pipelines.create_pipeline import create_pipeline
from detloom.pipelines.summary import read_latest_run
from detloom.pipelines.time_limits import NodeTimeoutError, TimeLimits, format_duration
from detloom.schemas.errors import InputError
from detloom.schemas.node_config import retry_of
from detloom.schemas.redact import redact
from detloom.schemas.run_file import RunFile
from detloom.trainer_module.preemption import Preempted

_LOGGER = logging.getLogger("detloom")


class NodeFailedError(InputError):
    """A node failed for a reason that one sentence says, and that may pass.

    Attributes:
        node: its id.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node} failed: {reason}")
        self.node = node


def run_with_retries(run: RunFile, nodes: NodeLog) -> None:
    """Run the pipeline; run it again after the wait that `run.nodes` names, while the node that failed has tries left.

    What has finished is then answered from the cache. A mistake of the user's would fail again, and one who ends a
    training does not want another.

    Raises:
        InputError: the sentence of the node that failed by the user's mistake, or that was ended.
        NodeFailedError: a node that took too long, or whose inputs could not be found.
        Exception: whatever else a node failed with.
    """
    num_failures: Counter[str] = Counter()
    while True:
        try:
            return _run_once(run, nodes)
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
            reason = redact(str(error).removeprefix(f"{node} failed: ") or type(error).__name__)
            num_tries = retry.max_retries + 1
            tries = f"try {num_failures[node] + 1} of {num_tries} in {format_duration(seconds)}"
            _LOGGER.warning("%s failed (%s); %s.", node, reason.rstrip("."), tries)
            time.sleep(seconds)


def find_preemption(error: BaseException | None) -> Preempted | None:
    """What ended a training by a signal, if it is behind the exception."""
    while error is not None and not isinstance(error, Preempted):
        error = error.__cause__
    return error


def tell_failure(run: RunFile, node: str | None, error: BaseException) -> None:
    """Send the message of a run that failed, if somebody wants it."""
    if run.notifications is not None and "failed" in run.notifications.events:
        from detloom.components.notifier.failure import notify_failure

        notify_failure(run.name, run.notifications, node, error)


def _run_once(run: RunFile, nodes: NodeLog) -> None:
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner  # now: the tfx command line replaces its run

    def limit_of(node: str) -> float | None:
        return retry_of(run.nodes, node).time_limit_seconds

    def end_process(error: NodeTimeoutError) -> None:
        print(f"error: {_describe_stuck(error)}", file=sys.stderr, flush=True)
        tell_failure(run, error.node, NodeFailedError(error.node, str(error)))
        os._exit(1)

    nodes.restart()
    pipeline = create_pipeline(run)
    nodes.num_nodes = len(pipeline.components)
    started = time.time()
    with TimeLimits(limit_of, end_process) as limits:
        nodes.on_start, nodes.on_finish = limits.start, lambda node: limits.finish()
        try:
            LocalDagRunner().run(pipeline)
        except Exception as error:
            # Whatever an interrupted node raised in the end, and whatever it was raised from.
            if limits.exceeded is not None and find_preemption(error) is None:
                reason = f"{limits.exceeded}; where it needs more, give it more under nodes in the run file."
                raise NodeFailedError(limits.exceeded.node, reason) from error
            raise
        finally:
            limits.finish()
    _check_all_ran(Path(run.workspace) / "metadata.sqlite", started)


def _describe_stuck(error: NodeTimeoutError) -> str:
    return (
        f"{error.node}: {error}, and did not let itself be interrupted. The process is ended; the same command goes on "
        "from what is finished."
    )


def _check_all_ran(metadata_file: Path, since: float) -> None:
    """TFX notes a node whose inputs it could not find as failed, and goes on without it."""
    for node in read_latest_run(metadata_file, since).values():
        if node.is_failed:
            raise NodeFailedError(node.node_id, "its inputs could not be found; the log above says why.")


def _raise_mistake(error: BaseException, node: str) -> None:
    """Raise InputError if the user's mistake or wish is what the exception was raised from.

    What happened while handling one is our bug.
    """
    mistake: BaseException | None = error
    while mistake is not None and not isinstance(mistake, InputError | Preempted):
        mistake = mistake.__cause__
    if mistake is not None:
        raise InputError(f"{node} {'ended' if isinstance(mistake, Preempted) else 'failed'}: {mistake}") from error
