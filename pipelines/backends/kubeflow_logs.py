"""Find the failed tasks of a run on open-source Kubeflow Pipelines, and the cause in their logs.

The API reports the nodes of the run's Argo workflow without their messages (kubeflow/pipelines, backend/src/apiserver/
server/api_converter.go, toApiPipelineTaskDetail), and the log of a node, also after its pod is gone, if the cluster
archives logs (resource_manager.go, ReadLog). A task NAME has the entries "NAME-driver" and "NAME". If Argo has default
retries, each entry has its attempts as children: "NAME(0)", "NAME(1)". The container's entry is "executor", a
descendant of "NAME"; several tasks have one. An entry does not contain its own id, only the ids of its children.
"""

import re
import urllib.parse
from collections.abc import Iterable
from typing import Any

from detloom.schemas.reading.redact import escape, hide_secrets

DRIVER = "-driver"
_MAX_BYTES = 64 << 20  # of a log
_TAIL_BYTES = 1 << 16  # of a log, in which its cause is searched
_ATTEMPT = re.compile(r"\(\d+\)$")
_EXECUTOR = "executor"
_MAX_SENTENCE = 500  # characters
# Lines of the launcher (glog) and of Argo's executor, which follow those of the task.
_NOT_OURS = re.compile(r"[IWEF]\d{4} \d\d:|time=.* argo=true|Error: exit status")
_SENTENCE = re.compile(r"error: ")  # container/entrypoint.py prints the user's mistakes and time limits so
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Preempted)\b")


def base_name(name: str) -> str:
    """Return the name of an entry without the number of its attempt."""
    return _ATTEMPT.sub("", name)


def log_nodes(task: str, details: Iterable[Any]) -> list[str]:
    """Return ids of nodes that may have the log of a failed task, the most precise first.

    Args:
        details: task details of the run (V2beta1PipelineTaskDetail). Version 2.17 also lists executions of ML Metadata,
            without a name.
    """
    failed = []
    for detail in details:
        children = [str(child.pod_name) for child in detail.child_tasks or () if child.pod_name]
        if str(detail.state) == "FAILED" and children:
            failed.append((str(detail.display_name), children[-1]))
    executors = [node for name, node in failed if name == _EXECUTOR]
    own = [node for name, node in failed if base_name(name) in (task, f"{task}{DRIVER}")]
    first = executors if len(executors) == 1 else []
    return list(dict.fromkeys((*first, *reversed(own))))


def node_path(run_id: str, node: str) -> str:
    """Return the path of a node below a version of the API; both ids are quoted."""
    run, part = (urllib.parse.quote(each, safe="") for each in (run_id, node))
    return f"runs/{run}/nodes/{part}"


def log_path(run_id: str, node: str) -> str:
    """Return the path of a node's log in the API."""
    return f"/apis/v1alpha1/{node_path(run_id, node)}/log"


def tail_of(chunks: Iterable[bytes]) -> str:
    """Return the end of a log that is read in parts; a log above 64 MiB is not read to its end."""
    tail, size = b"", 0
    for chunk in chunks:
        tail, size = (tail + chunk)[-_TAIL_BYTES:], size + len(chunk)
        if size > _MAX_BYTES:
            break
    return tail.decode(errors="replace")


def failure_sentence(log: str) -> str:
    """Return the cause of a failure as one line: the last error of detloom or Python, otherwise the task's last line.

    Returns:
        An empty text for an empty log, a page, or the API's own error in place of a log.
    """
    text = log.strip()
    if text.startswith("<") or (text.startswith("{") and '"error_message"' in text):
        return ""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _NOT_OURS.match(line)]
    for pattern in (_SENTENCE, _EXCEPTION):
        errors = [line for line in lines if pattern.match(line)]
        if errors:
            lines = errors
            break
    last = escape(hide_secrets(lines[-1].removeprefix("error: "))) if lines else ""
    return last if len(last) <= _MAX_SENTENCE else f"{last[:_MAX_SENTENCE]}..."
