"""Find the failed tasks of a run on open-source Kubeflow Pipelines, and the cause in their logs.

The API reports the nodes of the run's Argo workflow without their messages (kubeflow/pipelines, backend/src/apiserver/
server/api_converter.go, toApiPipelineTaskDetail), and the log of a node, also after its pod is gone, if the cluster
archives logs (resource_manager.go, ReadLog). A task NAME has the entries "NAME-driver" and "NAME". If Argo has default
retries, each entry has its attempts as children: "NAME(0)", "NAME(1)". The container's entry is "executor", a
descendant of "NAME"; several tasks have one. An entry does not contain its own id, only the ids of its children.
"""

import contextlib
import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detloom.schemas.reading.redact import escape, hide_secrets

DRIVER = "-driver"
_MAX_BYTES = 64 << 20  # of a log or an answer
_TAIL_BYTES = 1 << 16  # of a log, in which its cause is searched
_ATTEMPT = re.compile(r"\(\d+\)$")
_EXECUTOR = "executor"
_MAX_SENTENCE = 500  # characters
# Lines of the launcher (glog) and of Argo's executor, which follow those of the task.
_NOT_OURS = re.compile(r"[IWEF]\d{4} \d\d:|time=.* argo=true|Error: exit status")
_SENTENCE = re.compile(r"error: ")  # container/entrypoint.py prints the user's mistakes and time limits so
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Preempted)\b")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of the API's task details.

    Attributes:
        name: empty for an execution of ML Metadata, which version 2.17 lists beside the nodes of the workflow.
        state: RuntimeState, such as FAILED.
        children: ids of the nodes below it, in order.
    """

    name: str
    state: str
    children: tuple[str, ...] = ()


def base_name(name: str) -> str:
    """Return the name of an entry without the number of its attempt."""
    return _ATTEMPT.sub("", name)


def log_nodes(task: str, entries: Iterable[Entry]) -> list[str]:
    """Return ids of nodes that may have the log of a failed task, the most precise first."""
    failed = [entry for entry in entries if entry.state == "FAILED" and entry.children]
    executors = [entry for entry in failed if entry.name == _EXECUTOR]
    own = [entry for entry in failed if base_name(entry.name) in (task, f"{task}{DRIVER}")]
    first = executors if len(executors) == 1 else []
    return list(dict.fromkeys(entry.children[-1] for entry in (*first, *reversed(own))))


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


# --- inside the cluster -----------------------------------------------------------------------------------------------

_HOST, _PORT = "ML_PIPELINE_SERVICE_HOST", "ML_PIPELINE_SERVICE_PORT"  # Kubernetes sets them for the API's service
_TIMEOUT_SECONDS = 10


def read_failures(run_id: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the cause by failed task, empty for an unknown one, as read from the API in the same namespace.

    Installations with several users have the API in another namespace; there, and after any error, the result is
    empty: a notification must not depend on it.
    """
    if not run_id or not environment.get(_HOST):
        return {}
    address = f"http://{environment[_HOST]}:{environment.get(_PORT, '8888')}"
    try:
        run = json.loads(_get(address, f"/apis/v2beta1/runs/{urllib.parse.quote(run_id, safe='')}"))
        entries = [_entry(each) for each in run["run_details"]["task_details"]]
        failed = sorted({base_name(entry.name).removesuffix(DRIVER) for entry in entries if entry.state == "FAILED"})
        names = set(_container_tasks(run.get("pipeline_spec") or {}))
        return {name: _cause(address, run_id, log_nodes(name, entries)) for name in failed if name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _cause(address: str, run_id: str, nodes: Sequence[str]) -> str:
    for node in nodes:
        with contextlib.suppress(OSError):
            if sentence := failure_sentence(tail_of([_get(address, log_path(run_id, node))])):
                return sentence
    return ""


def _get(address: str, path: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is in the cluster
    with opener.open(address + path, timeout=_TIMEOUT_SECONDS) as response:
        content: bytes = response.read(_MAX_BYTES)
    return content


def _entry(detail: Mapping[str, Any]) -> Entry:
    children = [str(child["pod_name"]) for child in detail.get("child_tasks") or () if child.get("pod_name")]
    return Entry(name=str(detail.get("display_name", "")), state=str(detail.get("state")), children=tuple(children))


def _container_tasks(source: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tasks that run a container, of a pipeline spec with or without a platform spec."""
    spec = source.get("pipeline_spec", source)
    components: Mapping[str, Any] = spec.get("components", {})
    for component in (spec.get("root", {}), *components.values()):
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            if "dag" not in components.get(task.get("componentRef", {}).get("name"), {}):
                yield name
