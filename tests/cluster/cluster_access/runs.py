"""Start and follow runs with detloom's own commands, in this process."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from click.testing import CliRunner

from cluster_access.helper_pod import FOLDER, MOUNT
from cluster_access.pods import wait_for
from cluster_access.settings import ClusterSettings
from detloom.pipelines.backends.kubeflow_api import KubeflowApi, connect_kubeflow
from detloom.pipelines.cli import cli
from detloom.pipelines.samples.sample_run_file import sample_run_file
from detloom.schemas.run_file.kubeflow import Kubeflow

ENDED = ("succeeded", "failed", "cancelled")
TRAINING_DIR = f"{FOLDER}/unfinished"
ALL_EVENTS = "failed, refused, pushed, skipped"


@dataclass(frozen=True)
class Pipeline:
    """The demo's pipeline with a name and settings of its own.

    Attributes:
        name: also the name of its schedule.
        host: address of the API.
        push_to: folder of its pushed versions.
    """

    name: str
    host: str
    push_to: str
    settings: tuple[str, ...]

    def changed(self, *settings: str) -> "Pipeline":
        """Return the same pipeline with further settings."""
        return Pipeline(self.name, self.host, self.push_to, (*self.settings, *settings))

    def command(self, *words: str, code: int = 0) -> str:
        """Run `detloom WORDS... RUN_FILE` with the settings, check the exit code and return the output."""
        group = 2 if words[0] == "schedule" else 1
        sets = [word for setting in self.settings for word in ("--set", setting)]
        arguments = [*words[:group], str(sample_run_file("demo")), *words[group:], "--runner", "kubeflow", *sets]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, f"{result.exception!r}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        return result.stdout

    def submit(self, name: str = "") -> dict[str, Any]:
        """Start a run and return its status."""
        named = ["--name", name] if name else []
        return dict(json.loads(self.command("submit", "--json", *named)))

    def submit_and_wait(self, code: int = 0) -> dict[str, Any]:
        """Start a run, follow it to its end with `--wait`, and return its status."""
        return dict(json.loads(self.command("submit", "--json", "--wait", "--every", "3", code=code)))

    def status(self, run_id: str) -> dict[str, Any]:
        return dict(json.loads(self.command("status", run_id, "--json")))

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs, newest first, without their tasks."""
        return list(json.loads(self.command("status", "--json")))

    def wait(self, run_id: str, seconds: float = 1800) -> dict[str, Any]:
        """Return the status of a run once it and its tasks have ended."""

        def final_state() -> str | None:
            state = str(self.status(run_id)["state"])
            return state if state in ENDED else None

        state = wait_for(final_state, f"the end of {self.name}'s run {run_id}", seconds)
        code = 0 if state == "succeeded" else 1
        return dict(json.loads(self.command("status", run_id, "--json", "--wait", "--every", "3", code=code)))

    def wait_for_task(self, run_id: str, task: str, seconds: float = 900) -> dict[str, Any]:
        """Return the state of a task once it runs or has ended."""

        def started() -> dict[str, Any] | None:
            found = task_in(self.status(run_id), task)
            return found if found["state"] in ("running", *ENDED) else None

        return wait_for(started, f"the start of {task}", seconds)

    def terminate(self, run_id: str) -> None:
        self.api().send("POST", f"/apis/v2beta1/runs/{run_id}:terminate", "terminate the run")

    def api(self) -> KubeflowApi:
        return connect_kubeflow(Kubeflow(host=self.host, image="unused"))

    def raw_run(self, run_id: str) -> dict[str, Any]:
        """Return a run as the API sends it, which contains the compiled job and the node ids."""
        return dict(self.api().send("GET", f"/apis/v2beta1/runs/{run_id}", "read the run"))


def make_pipeline(settings: ClusterSettings, claim: str, name: str, changes: Sequence[str]) -> Pipeline:
    """Return a pipeline that uses the helper pod's claim and secret.

    Args:
        changes: settings besides those of the cluster.
    """
    push_to = f"{FOLDER}/{name}"
    shared = [
        f"name={name}",
        f"push_to={push_to}",
        f"kubeflow.host={settings.host}",
        "kubeflow.ui=https://kubeflow.example.org",  # links, with the id of the run, also if the host is localhost
        f"kubeflow.image={settings.image}",
        f"kubeflow.namespace={settings.namespace}",
        f"kubeflow.experiment={claim}",
        f"kubeflow.training_dir={TRAINING_DIR}",
        f"kubeflow.volumes=[{{claim: {claim}, mount_path: {MOUNT}}}]",
        f"notifications={{events: [{ALL_EVENTS}], webhook: {{url: 'kubernetes:{claim}/url'}}}}",
    ]
    root = [f"kubeflow.pipeline_root={settings.root}"] if settings.root else []
    return Pipeline(name, settings.host, push_to, (*shared, *root, *changes, *settings.changes))


def task_in(status: dict[str, Any], task: str) -> dict[str, Any]:
    (found,) = [each for each in status["tasks"] if each["name"] == task]
    return dict(found)


def states_of(status: dict[str, Any]) -> dict[str, str]:
    """Return the state by task."""
    return {each["name"]: each["state"] for each in status["tasks"]}


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two runs ran at the same time."""
    return _moment(one["started"]) < _moment(other["ended"]) and _moment(other["started"]) < _moment(one["ended"])


def new_name() -> str:
    """Return a name that no earlier session has used, so that nothing is found in its cache or its folders."""
    return f"detloom-test-{time.time_ns() // 10**9:x}"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
