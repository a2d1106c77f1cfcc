"""Find the cluster of machines that train together, and this machine's place in it, in the environment variables.

The first match counts: TF_CONFIG; Vertex AI's CLUSTER_SPEC; a list of hosts; a Kubernetes Indexed Job.
`docs/distributed.md` lists the variables of each. This module does not import TensorFlow.
"""

import json
import re
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detloom.schemas.errors import InputError

TF_CONFIG = "TF_CONFIG"
CLUSTER_SPEC = "CLUSTER_SPEC"  # set by Vertex AI
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in pods of an Indexed Job
NUM_WORKERS, SERVICE, PORT = "DETLOOM_NUM_WORKERS", "DETLOOM_SERVICE", "DETLOOM_PORT"
HOSTS, HOST_INDEX = "DETLOOM_HOSTS", "DETLOOM_HOST_INDEX"

DEFAULT_PORT = 2222  # the port in Vertex AI and in TensorFlow's examples
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\],]+):([0-9]{1,5})")
_POOLS = {"workerpool0": "chief", "workerpool1": "worker"}  # Vertex AI's first two pools


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines that train together, each as `host:port`, and this machine's place."""

    chief: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    task_type: str
    task_index: int

    @property
    def num_tasks(self) -> int:
        return len(self.chief) + len(self.worker)

    @property
    def place(self) -> int:
        """Number of this machine. By TensorFlow's rule, 0 is the chief, or else the first worker."""
        return self.task_index if self.task_type == "chief" else len(self.chief) + self.task_index

    @property
    def is_chief(self) -> bool:
        """True if this machine writes the output."""
        return self.place == 0

    def tasks(self) -> dict[str, list[str]]:
        """Return the addresses by task type, without empty types."""
        return {name: list(hosts) for name, hosts in (("chief", self.chief), ("worker", self.worker)) if hosts}


def find_cluster(environment: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that the environment describes; None if this machine trains alone.

    Raises:
        InputError: if the description is invalid.
    """
    if environment.get(TF_CONFIG, "").strip():
        return cluster_of_tf_config(environment[TF_CONFIG])
    if environment.get(CLUSTER_SPEC, "").strip():
        return cluster_of_cluster_spec(environment[CLUSTER_SPEC])
    if environment.get(HOSTS, "").strip():
        return cluster_of_hosts(environment, socket.gethostname())
    if not environment.get(NUM_WORKERS):  # an index alone may number unrelated pods
        return None
    return cluster_of_indexed_job(environment)


def cluster_of_tf_config(text: str) -> Cluster | None:
    """Parse TF_CONFIG: {"cluster": {"chief": [...], "worker": [...]}, "task": {"type": "worker", "index": 0}}."""
    tasks, task_type, task_index = _parse(TF_CONFIG, text)
    if not tasks:  # Google's services set it without a cluster on one machine
        return None
    for name in tasks:
        if name not in ("chief", "worker"):
            hint = " Parameter servers are not supported." if name == "ps" else ""
            raise InputError(f"{TF_CONFIG}: cluster: got '{name}', allowed: chief, worker.{hint}")
    return _checked(TF_CONFIG, tasks, task_type, task_index)


def cluster_of_cluster_spec(text: str) -> Cluster | None:
    """Parse Vertex AI's CLUSTER_SPEC: pool 0 is the chief, pool 1 the workers.

    Pool 2 may run Google's Reduction Server. Pools 2 and 3 run no process of ours.
    """
    pools, pool, task_index = _parse(CLUSTER_SPEC, text)
    if not pools:
        return None
    tasks = {_POOLS.get(name, name): hosts for name, hosts in pools.items() if name in (*_POOLS, "chief", "worker")}
    task_type = _POOLS.get(pool, pool)
    if task_type not in tasks:
        allowed = "workerpool0 (one machine) and workerpool1; `detloom evaluate --watch` evaluates during training"
        raise InputError(f"{CLUSTER_SPEC}: task.type: got '{pool}', allowed: training in {allowed}.")
    return _checked(CLUSTER_SPEC, tasks, task_type, task_index)


def cluster_of_indexed_job(environment: Mapping[str, str]) -> Cluster:
    """Derive the cluster of a Kubernetes Indexed Job, with pods named <job>-<index>.<headless service>."""
    num_workers, index = _num_workers(environment), read_number(environment, COMPLETION_INDEX)
    host_name, service = _text(environment, "HOSTNAME"), _text(environment, SERVICE)
    if not host_name.endswith(f"-{index}"):
        raise InputError(f"HOSTNAME: got '{host_name}', allowed: <job>-{index} ({COMPLETION_INDEX} is {index}).")
    job, port = host_name.removesuffix(f"-{index}"), _port(environment)
    workers = [f"{job}-{i}.{service}:{port}" for i in range(num_workers)]
    return _checked(COMPLETION_INDEX, {"worker": workers}, "worker", index)


def cluster_of_hosts(environment: Mapping[str, str], own_name: str) -> Cluster:
    """Parse a list such as `node-a,node-b:3333` and find this machine in it by index or by name."""
    hosts = [host.strip() for host in environment[HOSTS].split(",") if host.strip()]
    if not hosts:
        raise InputError(f"{HOSTS}: got '{environment[HOSTS]}', allowed: comma-separated names.")
    port = _port(environment)
    workers = [host if _ADDRESS.fullmatch(host) else f"{host}:{port}" for host in hosts]
    if environment.get(HOST_INDEX):
        return _checked(HOST_INDEX, {"worker": workers}, "worker", read_number(environment, HOST_INDEX))
    names = [worker.rpartition(":")[0] for worker in workers]
    places = [i for i, name in enumerate(names) if name in (own_name, own_name.partition(".")[0])]
    if len(places) != 1:
        raise InputError(
            f"{HOSTS}: this machine, '{own_name}', is listed {len(places)} times ({', '.join(names)}); "
            f"set {HOST_INDEX} to its position, counted from 0."
        )
    return _checked(HOSTS, {"worker": workers}, "worker", places[0])


def _parse(variable: str, text: str) -> tuple[dict[str, list[str]], str, int]:
    """Return addresses by task, and this task's type and index, from the JSON of TF_CONFIG or CLUSTER_SPEC."""
    allowed = '{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}'
    try:
        data: Any = json.loads(text)
        cluster, task = data.get("cluster") or {}, data.get("task") or {}
        tasks = {str(name): [str(host) for host in hosts] for name, hosts in cluster.items() if hosts}
        if tasks and not isinstance(task.get("type"), str):
            raise InputError(f"{variable}: task.type is missing, allowed: {allowed}.")
        task_type, task_index = str(task.get("type")), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{variable}: got invalid JSON ({error}), allowed: {allowed}.") from None
    if tasks and task_type == "evaluator":
        raise InputError(
            f"{variable}: task.type: got 'evaluator'; `detloom evaluate --watch` evaluates during training."
        )
    return tasks, task_type, task_index


def _checked(variable: str, tasks: Mapping[str, list[str]], task_type: str, task_index: int) -> Cluster:
    """Return the cluster after checking addresses, duplicates and this task's place."""
    counts = Counter(host for hosts in tasks.values() for host in hosts)
    for address, count in counts.items():
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) < 65536:
            raise InputError(f"{variable}: got the address '{address}', allowed: host:port.")
        if count > 1:
            raise InputError(f"{variable}: the address {address} is listed {count} times.")
    if len(tasks.get("chief", [])) > 1:
        raise InputError(f"{variable}: got {len(tasks['chief'])} chiefs, allowed: 1.")
    if task_type not in tasks:
        raise InputError(f"{variable}: task.type: got '{task_type}', allowed: {', '.join(tasks)}.")
    if not 0 <= task_index < len(tasks[task_type]):
        allowed = f"0 to {len(tasks[task_type]) - 1}, the {task_type} tasks of the cluster"
        raise InputError(f"{variable}: index: got {task_index}, allowed: {allowed}.")
    chief, worker = (tuple(tasks.get(name, ())) for name in ("chief", "worker"))
    return Cluster(chief=chief, worker=worker, task_type=task_type, task_index=task_index)


def _text(environment: Mapping[str, str], variable: str) -> str:
    value = environment.get(variable, "")
    if not value:
        raise InputError(f"{variable} is not set, but {NUM_WORKERS} is; see docs/distributed.md for all variables.")
    return value


def read_number(environment: Mapping[str, str], variable: str, otherwise: int | None = None) -> int:
    """Return the value of a variable; InputError unless it is an integer from 0."""
    if otherwise is not None and not environment.get(variable):
        return otherwise
    value = _text(environment, variable)
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise InputError(f"{variable}: got '{value}', allowed: an integer from 0.")
    return int(value)


def _num_workers(environment: Mapping[str, str]) -> int:
    num_workers = read_number(environment, NUM_WORKERS)
    if num_workers < 1:
        raise InputError(f"{NUM_WORKERS}: got {num_workers}, allowed: 1 or more.")
    return num_workers


def _port(environment: Mapping[str, str]) -> int:
    return read_number(environment, PORT, DEFAULT_PORT)
