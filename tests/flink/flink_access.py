"""A running Flink cluster, and commands that use it."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from detloom.trainer_module.files.user_cache import user_cache

ROOT = Path(__file__).parents[2]
VARIABLE = "FLINK_CLUSTER"  # set by scripts/flink_cluster.py
WAIT_SECONDS = 600.0
NUM_SLOTS = 4
_CONNECTION = re.compile(r"^(\S+ \S+) .*Beam Fn Control client connected with id (\S+)$", re.MULTILINE)


class Cluster:
    """A running cluster, whose processes can be killed; they are started again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._killed: set[int] = set()

    @property
    def description(self) -> dict[str, Any]:
        return json.loads(self._file.read_text(encoding="utf-8"))

    def beam_args(self, **changes: str) -> list[str]:
        """Return Beam's options for the cluster; `scripts/flink_cluster.py jar` has built the job server."""
        (jar,) = user_cache("flink").glob("*-job-server-*.jar")
        args = {
            "runner": "FlinkRunner",
            "flink_master": self.description["master"],
            "flink_version": "1.19",
            "flink_job_server_jar": str(jar),
            "parallelism": "2",
            "environment_type": "EXTERNAL",
            "environment_config": "localhost:50000",
            **changes,
        }
        return [*(f"--{key}={value}" for key, value in args.items()), "--flink_submit_uber_jar"]

    def kill_task_manager(self) -> None:
        self._kill(psutil.Process(self.description["processes"]["taskmanager-1"]))

    def kill_python_worker(self) -> None:
        for worker in self._python_workers():
            self._kill(worker)

    def has_python_worker(self) -> bool:
        return bool(self._python_workers())

    def wait_until_complete(self) -> None:
        """Wait until all processes run again, and the job manager knows it."""
        wait_for(lambda: not self._killed & set(self.description["processes"].values()))
        wait_for(lambda: self._get("overview")["slots-total"] == NUM_SLOTS)

    def newest_job_state(self) -> str:
        """Return the state of the job that was started last; empty if there is none."""
        jobs = sorted(self._get("jobs/overview")["jobs"], key=lambda job: job["start-time"])
        return jobs[-1]["state"] if jobs else ""

    def num_restarts(self) -> int:
        """Return how many times the job manager has started a job again since the cluster was started."""
        return self._log("jobmanager").count("switched from state RESTARTING to RUNNING")

    def num_lost_task_managers(self) -> int:
        return sum("taskmanager" in line and "has ended" in line for line in self._log("events").splitlines())

    def _python_workers(self) -> list[psutil.Process]:
        """Return the workers beside the second task manager that have connected to the running job.

        Workers of an earlier job, with the same ids, may live for some seconds more. A worker counts from its
        connection: Beam's job server waits for ever for one that is killed before.
        """
        starts = [job["start-time"] for job in self._get("jobs/overview")["jobs"] if job["state"] == "RUNNING"]
        if not starts:
            return []
        connections = _CONNECTION.findall(self._log("taskmanager-2"))
        ids = {worker for when, worker in connections if _milliseconds(when) >= max(starts)}
        return [
            child
            for child in psutil.Process(self.description["processes"]["workerpool-2"]).children()
            if 1000 * child.create_time() > max(starts) and any(f'"{each}"' in _command_of(child) for each in ids)
        ]

    def _kill(self, process: psutil.Process) -> None:
        self._killed.add(process.pid)
        process.kill()

    def _log(self, name: str) -> str:
        return (Path(self.description["folder"]) / f"{name}.log").read_text(encoding="utf-8")

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.description['master']}/{path}", timeout=10) as answer:
            return json.load(answer)


def _command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def _milliseconds(log_time: str) -> float:
    return 1000 * datetime.strptime(log_time, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait until a condition holds; fail if the process that should cause it has ended before."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process is None or process.poll() is None, "the process has ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def start_detloom(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command whose output goes to a file."""
    with open(log, "wb") as file:
        command = [sys.executable, "-m", "detloom.pipelines.cli", *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


def run_detloom(log: Path, *arguments: str, code: int = 0) -> str:
    """Run a command and return its output."""
    assert start_detloom(log, *arguments).wait(WAIT_SECONDS) == code, log.read_text()[-3000:]
    return log.read_text()


def read_files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
