"""Beam jobs on a cluster: recognize them by their options, explain in one sentence why one failed, and cancel them.

The runners of clusters raise pages of traces, and leave a job running if the process that waits for it ends.
"""

import contextlib
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import show_address

# Beam accepts each name in any case, without "Runner", and with its module (apache_beam/runners/runner.py).
_REMOTE_RUNNER = re.compile(r"--runner[= ](?:[\w.]+\.)?(dataflow|flink)(?:runner)?(?!\S)", re.IGNORECASE)
_MAX_CHARACTERS = 500  # of a cause
# By apache_beam/runners/portability: portable_runner.py, and flink_uber_jar_job_server.py.
_FAILED = re.compile(r"Pipeline \S+ failed in state (?P<state>\w+): (?P<trace>.*)", re.DOTALL)
_REFUSED = re.compile(r"Request to (?P<url>\S+) failed with status \d+: (?P<trace>.*)", re.DOTALL)
_FLINK_URL = re.compile(r"(https?://[^/]+)/v1/(?:jars|jobs|config)")
_NO_JAR = ("Unable to parse jar URL", "Unable to fetch remote job server jar")
# The line by which a Python worker ends its trace (apache_beam/runners/common.py, `_reraise_augmented`).
_PYTHON_CAUSE = re.compile(
    r"^(?:RuntimeError: )?(?P<kind>[A-Za-z_][\w.]*): (?P<message>(?:(?!\nTraceback|\n  File).)*?)"
    r" \[while running '(?P<step>.*?)'\]",
    re.MULTILINE | re.DOTALL,
)
_JAVA_CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w$.]+(?:Exception|Error|Throwable): )*(?P<message>.*)$")
_USERS_MISTAKE = f"{InputError.__module__}.{InputError.__name__}"
_NEXT_STEPS = {
    "no longer reachable": "with restart-strategy.type: fixed-delay in its configuration, Flink repeats such a job",
    "Insufficient number of network buffers": "give the task managers more of taskmanager.memory.network.max",
    "ExternalEnvironmentFactory": "a pool of Python workers has to run beside each task manager, at environment_config",
    "NoResourceAvailableException": "the parallelism must not exceed the slots of the cluster",
}


_LOGGER = logging.getLogger("detloom")


class BeamJobError(InputError):
    """A Beam job that failed on a cluster; the reason may be temporary."""


def remote_runner(beam_args: Sequence[str]) -> str:
    """Return "dataflow" or "flink" if Beam's options choose it, otherwise an empty text.

    The workers of both see neither this machine's folders nor a container's mounts.
    """
    match = _REMOTE_RUNNER.search(" ".join(beam_args))
    return match[1].lower() if match else ""


@contextlib.contextmanager
def explain_job_failure() -> Iterator[None]:
    """Raise BeamJobError for the error of a cluster's runner in the block; other errors, of workers here too, pass.

    If an InputError of a worker is the cause, InputError is raised.

    The traces that the runner logs become messages of level INFO.
    """
    root = logging.getLogger()
    lower_level = partial(_lower_level)  # an object of its own, because blocks can be nested
    root.addFilter(lower_level)
    try:
        yield
    except BeamJobError:
        raise
    except Exception as error:
        sentence = _explain(error)
        if sentence is None:
            raise
        found = _PYTHON_CAUSE.search(str(error))
        is_users_mistake = found is not None and found["kind"] == _USERS_MISTAKE
        raise (InputError if is_users_mistake else BeamJobError)(sentence) from error
    finally:
        root.removeFilter(lower_level)


@contextlib.contextmanager
def cancel_unfinished_jobs() -> Iterator[None]:
    """Cancel a Beam job of the block if waiting for it ends by an exception or SIGTERM: it would go on and cost money.

    SIGTERM, which ends a node at its time limit or with its pipeline, raises SystemExit while a job is awaited.
    """
    from apache_beam import Pipeline  # late: containers import this module before all others

    run = Pipeline.run

    def run_guarded(pipeline: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(pipeline, *args, **kwargs)
        wait = result.wait_until_finish
        is_guarded = isinstance(wait, partial) and wait.func is _wait_or_cancel
        if not is_guarded:  # it is in nested blocks, and if Beam's run calls itself
            result.wait_until_finish = partial(_wait_or_cancel, result, wait)
        return result

    Pipeline.run = run_guarded
    try:
        yield
    finally:
        Pipeline.run = run


def _wait_or_cancel(result: Any, wait: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    is_main = threading.current_thread() is threading.main_thread()  # elsewhere Python allows no handlers
    has_handler = not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    if not has_handler:
        signal.signal(signal.SIGTERM, _exit_once)
    try:
        return wait(*args, **kwargs)
    except BaseException:
        _cancel(result)
        raise
    finally:
        if not has_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # while the job is cancelled
    sys.exit(128 + number)


def _cancel(result: Any) -> None:
    """Cancel a job that has not ended; log an error instead of raising it, because it would hide the original one."""
    from apache_beam.runners.portability.flink_uber_jar_job_server import FlinkBeamJob
    from apache_beam.runners.runner import PipelineState

    FlinkBeamJob.cancel = _cancel_in_flink
    try:
        if not PipelineState.is_terminal(result.state):
            result.cancel()
            _LOGGER.warning("The Beam job is cancelled, because the node that waits for it ends.")
    except Exception as error:  # every client has its own
        reason = show_address(str(error))[:_MAX_CHARACTERS]
        _LOGGER.error("The Beam job could not be cancelled (%s); it continues and costs money.", reason)


def _cancel_in_flink(job: Any) -> None:
    """Cancel a job by Flink's REST API, which does not have the path that Beam requests (v1/ID/stop)."""
    import requests

    path = f"v1/jobs/{job._flink_job_id}"
    job.request(requests.patch, path, expected_status=202, params={"mode": "cancel"})
    job.delete_jar()


def _lower_level(record: logging.LogRecord) -> bool:
    if record.module == "portable_runner" and record.levelno == logging.ERROR:
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return True


def _explain(error: BaseException) -> str | None:
    """Return why a job failed, or None for an error that is not from a cluster's runner."""
    text = str(error)
    library = type(error).__module__.partition(".")[0]  # not imported: containers import this module before all others
    url = str(getattr(getattr(error, "request", None), "url", "")) if library == "requests" else ""
    if found := _FLINK_URL.match(url):
        address = show_address(found[1])
        reason = "".join(re.findall(r"\[Errno \d+\] ([\w ]+)", text)) or type(error).__name__
        return f"Flink's REST server at {address} does not answer ({reason}); check the address and the job manager."
    if (library, type(error).__name__) == ("grpc", "FutureTimeoutError"):
        return "Beam's job server does not answer; check the address that job_endpoint names."
    if text.startswith(_NO_JAR):
        return f"{_cut(text.partition('. ')[0])}; `scripts/flink_cluster.py jar` builds a job server."
    if found := _FAILED.match(text):
        return f"the Beam job ended in state {found['state']}: {_find_cause(found['trace'])}."
    if found := _REFUSED.match(text):
        return f"Flink refused the Beam job: {_find_cause(_read_errors(found['trace']))}."
    return None


def _read_errors(response: str) -> str:
    """Return the traces in a response of Flink's REST server."""
    try:
        return "\n".join(map(str, json.loads(response)["errors"]))
    except (ValueError, KeyError, TypeError):  # a proxy answered
        return response


def _find_cause(trace: str) -> str:
    """Return the first cause in the traces of Java and Python, and what helps."""
    if found := _PYTHON_CAUSE.search(trace):
        step = found["step"].partition("-ptransform-")[0]
        kind = "" if found["kind"] == _USERS_MISTAKE else f"{found['kind']}: "
        return f"{_cut(kind + found['message'])} (in step {step})"
    lines = trace.splitlines() or [""]
    causes = [line for line in lines if line.startswith("Caused by: ")] or lines[:1]
    messages = [_JAVA_CAUSE.sub(r"\g<message>", line) or line for line in causes]
    # The last is the first cause, but the one before may repeat it and add an address.
    cause = messages.pop()
    while messages and messages[-1].startswith(cause):
        cause = messages.pop()
    advice = next((f"; {step}" for mark, step in _NEXT_STEPS.items() if mark in trace), "")
    return f"{_cut(cause)}{advice}"


def _cut(text: str) -> str:
    return show_address(" ".join(text.split()))[:_MAX_CHARACTERS].rstrip(".")
