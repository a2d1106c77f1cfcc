"""Read, watch and disturb pods of runs with the Kubernetes client."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

RUN_LABEL = "pipeline/runid"
MAIN = "main"
_NODE_NAME = "workflows.argoproj.io/node-name"  # such as run-x1.root.training.root.Trainer.executor(0)
_EXECUTOR = "executor"
_ATTEMPT = re.compile(r"\(\d+\)$")
_WORKFLOWS = {"group": "argoproj.io", "version": "v1alpha1", "plural": "workflows"}
_POLL_SECONDS = 1.0
# The process of the task, which the launcher has started; PID 1 is Argo's.
_KILL = """
import os, re, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    if re.search(rb"python[0-9.]*$", words[0]) and words[1:2] == [b"-m"]:
        os.kill(int(pid), signal.SIGKILL)
"""
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Finished:
    """The result of a command in a container."""

    code: int
    output: str
    errors: str


class Cluster:
    """The namespace of the runs."""

    def __init__(self, namespace: str) -> None:
        config.load_kube_config()
        self.namespace = namespace
        self.core = client.CoreV1Api()
        self.custom = client.CustomObjectsApi()

    def pods_of(self, run_id: str, task: str = "") -> list[Any]:
        """Return the pods of a run, oldest first; with a task, only those that run its container."""
        found = self.core.list_namespaced_pod(self.namespace, label_selector=f"{RUN_LABEL}={run_id}").items
        found.sort(key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        return [pod for pod in found if not task or task_of(pod) == task]

    def workflow_of(self, run_id: str) -> dict[str, Any]:
        """Return the Argo workflow of a run."""
        found = self.custom.list_namespaced_custom_object(
            namespace=self.namespace, label_selector=f"{RUN_LABEL}={run_id}", **_WORKFLOWS
        )
        (workflow,) = found["items"]
        return dict(workflow)

    def tries_of(self, run_id: str, task: str) -> list[dict[str, Any]]:
        """Return Argo's records of a task's pods, deleted ones included."""
        nodes = self.workflow_of(run_id)["status"].get("nodes", {}).values()
        return [node for node in nodes if node["type"] == "Pod" and _task_in(node["name"]) == task]

    def plain(self, thing: Any) -> Any:
        """Return an object as the API has sent it."""
        return self.core.api_client.sanitize_for_serialization(thing)

    def read_log(self, pod: str, container: str = MAIN) -> str:
        return str(self.core.read_namespaced_pod_log(pod, self.namespace, container=container))

    def logs_of(self, pod: Any) -> Iterator[tuple[str, str]]:
        """Yield the log of each container of a pod with its name; a container that never started has none."""
        for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
            try:
                yield container.name, self.read_log(pod.metadata.name, container.name)
            except ApiException:
                continue

    def run_in(self, pod: str, command: Sequence[str], container: str = MAIN, seconds: float = 300) -> Finished:
        """Run a command in a container."""
        connection = stream(
            self.core.connect_get_namespaced_pod_exec,
            pod,
            self.namespace,
            command=list(command),
            container=container,
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            _preload_content=False,
        )
        connection.run_forever(timeout=seconds)
        output, errors = connection.read_stdout(timeout=1), connection.read_stderr(timeout=1)
        return Finished(int(connection.returncode or 0), output, errors)

    def delete_pod(self, pod: str) -> None:
        """Delete a pod with its grace period, as an eviction does."""
        self.core.delete_namespaced_pod(pod, self.namespace)

    def kill_task_in(self, pod: str) -> None:
        """Kill the task's process; the container then ends with an exit code."""
        self.run_in(pod, ["python", "-c", _KILL])

    def wait_for_running(self, run_id: str, task: str, seconds: float = 600) -> str:
        """Return the name of the newest pod of a task, once its container runs and Argo knows it.

        Argo creates a pod again within the same try if it is lost before that.
        """

        def running() -> str | None:
            pods = self.pods_of(run_id, task)
            if not pods or not _is_running(pods[-1]):
                return None
            is_known = any(node["phase"] == "Running" for node in self.tries_of(run_id, task))
            return str(pods[-1].metadata.name) if is_known else None

        return wait_for(running, f"a running pod of {task}", seconds)


def task_of(pod: Any) -> str:
    """Return the task whose container the pod runs; empty for a driver's pod."""
    return _task_in((pod.metadata.annotations or {}).get(_NODE_NAME, ""))


def _task_in(node_name: str) -> str:
    path = [_ATTEMPT.sub("", part) for part in node_name.split(".")]
    return path[-2] if len(path) > 1 and path[-1] == _EXECUTOR else ""


def _is_running(pod: Any) -> bool:
    return any(each.name == MAIN and each.state.running for each in pod.status.container_statuses or ())


def wait_for(find: Callable[[], _Value | None], what: str, seconds: float) -> _Value:
    """Return what `find` returns, once it returns something; raise TimeoutError after some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{what}: not seen within {seconds:g} seconds")


def container_of(pod: Any, name: str = MAIN) -> Any:
    return next(each for each in pod.spec.containers if each.name == name)


def as_json(thing: Any) -> str:
    return json.dumps(thing, default=str)
