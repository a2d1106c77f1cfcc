"""Following a run until it ends: a line for each task whose state has changed."""

import time
from collections.abc import Callable
from datetime import datetime, timezone

from detloom.pipelines.backends.api_errors import MAY_PASS, ApiError
from detloom.pipelines.backends.backend import Backend
from detloom.pipelines.backends.run_status import ENDED, RunStatus, TaskState, TaskStatus
from detloom.pipelines.backends.status_text import format_seconds

_MAX_FAILURES = 10  # of requests, one after the other; a network or a server may be away for a while
_NOT_TOLD: frozenset[TaskState] = frozenset({"pending", "not run", "unknown"})


def follow_run(backend: Backend, run_id: str, say: Callable[[str], None], *, every_seconds: float) -> RunStatus:
    """Ask for a run until it has ended; its last status.

    Raises:
        ApiError: if the backend does not answer any more, or refuses to. The run goes on.
    """
    told: dict[str, TaskState] = {}
    failures = 0
    while True:
        try:
            run = backend.get_run(run_id)
            failures = 0
        except ApiError as error:
            failures += 1
            if error.kind not in MAY_PASS or failures > _MAX_FAILURES:
                next_step = f"The run goes on: `detloom status RUN_FILE {run_id} --wait` follows it again"
                raise ApiError(error.kind, f"{error} {next_step}.") from None
            time.sleep(every_seconds)
            continue
        for task in run.tasks:
            if told.get(task.name) != task.state and task.state not in _NOT_TOLD:
                say(_line(task))
            told[task.name] = task.state
        if run.state in ENDED:
            return run
        time.sleep(every_seconds)


def _line(task: TaskStatus) -> str:
    """Such as "14:03:05  Trainer  failed after 12 min 5 s: out of memory"."""
    moment = (task.started if task.state == "running" else task.ended) or datetime.now(timezone.utc)
    took = ""
    if task.ended is not None and task.started is not None and task.state in ("succeeded", "failed", "cancelled"):
        took = f" after {format_seconds((task.ended - task.started).total_seconds())}"
    said = f": {task.error}" if task.error else ""
    return f"{moment.astimezone(timezone.utc):%H:%M:%S} UTC  {task.name}  {task.state}{took}{said}"
