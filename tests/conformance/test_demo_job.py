"""Execute the demo's compiled job for both backends: baseline, skipping, caching, retries and notifications.

Settings make it small; the data is the demo's. The runs of a backend are consecutive, the backends run in parallel.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bucket_server import Bucket, BucketServer
from conformance_driver.execute import run_job
from conformance_driver.job import Backend, Job, read_job
from conformance_driver.object_store import Disk
from conformance_driver.results import RunResult
from conformance_driver.run import Machine
from conformance_driver.runner import SubprocessRunner
from message_server import MessageServer, serve_messages
from small_demo import SMALL

import detloom
from detloom.components.pusher.push import list_versions, roll_back
from detloom.components.pusher.versions import open_destination, read_version_manifest, verify_version

ROOT = "minio://mlpipeline/v2/artifacts"
ADDRESS_SECRET = "t0ps3cret"
KILLED = 137
BACKENDS: tuple[Backend, ...] = ("kubeflow", "vertex")
WEBHOOKS: dict[Backend, str] = {"kubeflow": "kubernetes:webhook/url", "vertex": "env:WEBHOOK"}
TRAINED_LONGER = ["train.num_steps=6"]
RETRIED = ["nodes=[{node: Pusher, max_retries: 2, backoff_seconds: 30}]"]
ON_CONDITION = ["retrain.min_new_images=1"]
OTHER_GATE = ["gates.baseline.min_ap_change=-0.9"]
FIRST, SECOND = "first", "second"
WITHOUT_REASON, ROLLED_BACK, WITHOUT_DATA = "without reason", "rolled back", "without data"
DATA_NODES = ("DetectionExampleGen", "StatisticsGen", "ImportSchemaGen", "ExampleValidator", "DatasetValidator")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]


class CrashingRunner(SubprocessRunner):
    """Kill the first container of a task before it starts."""

    def __init__(self, logs: Path, image_env: dict[str, str]) -> None:
        super().__init__(logs, image_env)
        self.crashes: set[str] = set()

    def run(self, command: list[str], env: dict[str, str], mounts: dict[Path, str]) -> int:
        for task in self.crashes:
            if f"-{task.lower()}-" in env["HOSTNAME"]:
                self.crashes.remove(task)
                return KILLED
        return super().run(command, env, mounts)


@dataclass
class Place:
    """A backend's machine, and the results of its runs.

    Attributes:
        serving: the folder of versions, or its address in `bucket`.
        messages: received by the webhook.
        versions: pushed versions after each run.
        restored: the version that the rollback made.
    """

    machine: Machine
    serving: str
    bucket: Bucket
    messages: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, RunResult] = field(default_factory=dict)
    versions: dict[str, list[int]] = field(default_factory=dict)
    restored: int = 0

    def run(self, name: str, job: Job) -> None:
        self.runs[name] = run_job(job, self.machine)
        self.versions[name] = list_versions(self.serving)
        mount = self.machine.home / "buckets/gcs/bucket"  # shows the same bucket as the server
        for path in mount.rglob("*"):
            if path.is_file():
                self.bucket.put(path.relative_to(mount).as_posix(), path.read_bytes())

    def digest_of(self, version: int) -> str:
        """Return what identifies a version's model; the manifest is that of the last push."""
        manifest = read_version_manifest(open_destination(self.serving), version)
        assert manifest is not None
        return manifest.digest

    def file_of(self, result: RunResult, task: str, output: str, name: str) -> Path:
        (artifact,) = result[task].outputs[output]
        return Disk(self.machine.home / "buckets").path(artifact.uri) / name

    def decision_of(self, result: RunResult) -> dict[str, Any]:
        return json.loads(self.file_of(result, "DetectionEvaluator", "evaluation", "decision.json").read_text())


def settings_of(backend: Backend, folder: Path) -> list[str]:
    """Return the settings of a backend; the volume is mounted at its own path, as `SubprocessRunner` requires."""
    if backend == "vertex":
        return [
            "vertex.project=my-project",
            "vertex.region=us-central1",
            "vertex.image=us-docker.pkg.dev/my-project/detloom/detloom:1.0",
            "vertex.pipeline_root=gs://bucket/detloom",
            "push_to=gs://bucket/serving",
            "retrain.records=/gcs/bucket/records",
        ]
    return [
        "kubeflow.image=registry.example.org/detloom:1.0",
        f"kubeflow.pipeline_root={ROOT}",
        f"kubeflow.volumes=[{{claim: models, mount_path: {folder}/models}}]",
        f"kubeflow.training_dir={folder}/models/unfinished",
        f"push_to={folder}/models/demo",
    ]


def compiled(backend: Backend, *settings: Sequence[str]) -> Job:
    from detloom.pipelines.compile.compile_job import compile_job
    from detloom.pipelines.samples.sample_run_file import sample_run_file
    from detloom.schemas.reading.overrides import parse_set
    from detloom.schemas.run_file.read_run_file import read_run_file

    overrides = [parse_set(text) for texts in (SMALL, *settings) for text in texts]
    run = read_run_file(sample_run_file("demo"), overrides=overrides, place=backend)
    return read_job(compile_job(run, backend), backend, ROOT if backend == "kubeflow" else "")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Backend, "Future[Place]"]]:
    """Return the runs of both backends."""
    folder = tmp_path_factory.mktemp("demo")
    # before any thread starts: TFX's compiler has global state
    jobs = {backend: jobs_for(backend, folder / backend) for backend in BACKENDS}
    with contextlib.ExitStack() as stack:
        hooks = {backend: stack.enter_context(serve_messages(ADDRESS_SECRET)) for backend in BACKENDS}
        server = BucketServer(is_google=True)
        stack.enter_context(server.running())
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("STORAGE_EMULATOR_HOST", server.url)  # read in this process and in the containers
        threads = stack.enter_context(ThreadPoolExecutor())
        yield {
            backend: threads.submit(run_all, backend, folder / backend, jobs[backend], server.bucket, hooks[backend])
            for backend in BACKENDS
        }


def jobs_for(backend: Backend, folder: Path) -> dict[str, Job]:
    """Return the jobs in the order in which they run."""
    notified = [
        f"notifications={{events: [failed, refused, pushed, skipped], webhook: {{url: '{WEBHOOKS[backend]}'}}}}"
    ]
    first = [settings_of(backend, folder), ON_CONDITION]
    later = [*first, TRAINED_LONGER, RETRIED, notified]
    lost: dict[Backend, str] = {"kubeflow": f"{folder}/models/lost", "vertex": "/gcs/bucket/lost"}
    settings: dict[str, list[list[str]]] = {
        FIRST: first,
        SECOND: later,
        WITHOUT_REASON: later,
        ROLLED_BACK: [*later, OTHER_GATE],
        WITHOUT_DATA: [*later, [f"data.path={lost[backend]}"]],
    }
    return {name: compiled(backend, *each) for name, each in settings.items()}


def run_all(
    backend: Backend,
    folder: Path,
    jobs: Mapping[str, Job],
    bucket: Bucket,
    hook: MessageServer,
) -> Place:
    home, models = folder / "home", folder / "models"
    models.mkdir(parents=True)
    if backend == "kubeflow":
        runner = CrashingRunner(home / "logs", image_env())
        secrets = {("webhook", "url"): hook.url}
        machine = Machine(home, runner, {"models": models}, secrets)
        place = Place(machine, str(models / "demo"), bucket, hook.messages)
    else:
        runner = CrashingRunner(home / "logs", {**image_env(), "WEBHOOK": hook.url})
        place = Place(Machine(home, runner), "gs://bucket/serving", bucket, hook.messages)
    for name, job in jobs.items():
        if name == SECOND:
            runner.crashes.add("Pusher")
        if name == ROLLED_BACK:
            place.restored = roll_back(place.serving, reason="misses small cells", check=lambda folder: None).version
        place.run(name, job)
    return place


def image_env() -> dict[str, str]:
    return {
        "PYTHONPATH": str(Path(detloom.__file__).parents[1]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"],
    }


@pytest.fixture
def kubeflow(places: dict[Backend, "Future[Place]"]) -> Place:
    return places["kubeflow"].result()


@pytest.fixture
def vertex(places: dict[Backend, "Future[Place]"]) -> Place:
    return places["vertex"].result()


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, places: dict[Backend, "Future[Place]"]) -> Place:
    return places[request.param].result()


def test_the_first_run_pushes_a_model_without_baseline(place):
    first = place.runs[FIRST]
    assert first.state == "SUCCEEDED", first.describe_failures()
    assert set(first.states().values()) == {"SUCCEEDED"}
    assert len(place.versions[FIRST]) == 1
    assert not verify_version(open_destination(place.serving), place.versions[FIRST][0])
    assert "baseline_model_id" not in blessing_of(first)
    assert "baseline" not in place.decision_of(first)["reason"]


def test_the_second_run_is_compared_with_the_first_model(place):
    second = place.runs[SECOND]
    assert second.state == "SUCCEEDED", second.describe_failures()
    decision = place.decision_of(second)
    assert "the baseline's" in decision["reason"]
    assert decision["baseline_problem"] is None
    assert len(place.versions[SECOND]) == 2
    assert set(place.versions[FIRST]) < set(place.versions[SECOND])


def test_the_baseline_is_the_version_that_the_first_run_pushed(place):
    first, second = place.runs[FIRST], place.runs[SECOND]
    assert first["ProductionModel"].outputs["model"][0].metadata["nothing_found"] == 1
    (found,) = second["ProductionModel"].outputs["model"]
    assert [int(found.metadata["pushed_version"])] == place.versions[FIRST]
    assert blessing_of(second)["baseline_model_id"] == found.name
    (candidate,) = second["Trainer"].outputs["model"]
    assert blessing_of(second)["current_model_id"] == candidate.name


def test_a_killed_container_is_retried_after_a_wait(place):
    tries = place.runs[SECOND]["Pusher"].tries
    assert [(each.exit_code, each.waited_seconds) for each in tries] == [(KILLED, 0), (0, 30)]


def test_nothing_is_trained_without_a_reason(place):
    run = place.runs[WITHOUT_REASON]
    assert run.state == "SUCCEEDED", run.describe_failures()
    states = run.states()
    assert states["training"] == "SKIPPED"
    assert states["SkipNotifier"] == "SUCCEEDED"
    assert not {"Trainer", "Pusher", "Notifier"} & states.keys()
    assert place.versions[WITHOUT_REASON] == place.versions[SECOND]
    assert place.runs[SECOND].states()["SkipNotifier"] == "SKIPPED"


def test_on_vertex_a_changed_gate_evaluates_the_model_again_and_trains_none(vertex):
    run = vertex.runs[ROLLED_BACK]
    assert run.state == "SUCCEEDED", run.describe_failures()
    assert {run.states()[node] for node in DATA_NODES} == {"CACHED"}
    log = (run.logs / f"{run['Trainer'].tries[-1].pod}.log").read_text()
    assert "Not trained again: model is that of gs://bucket/detloom/" in log


def test_on_kubeflow_a_changed_gate_trains_because_no_pod_sees_the_model_of_an_earlier_run(kubeflow):
    (decision,) = kubeflow.runs[ROLLED_BACK]["RetrainDecision"].outputs["decision"]
    assert "its model cannot be read" in decision.metadata["reason"]


def test_after_a_rollback_the_served_model_is_the_baseline_and_the_other_does_not_return(place):
    run = place.runs[ROLLED_BACK]
    assert run.state == "SUCCEEDED", run.describe_failures()
    (found,) = run["ProductionModel"].outputs["model"]
    assert int(found.metadata["pushed_version"]) == place.restored
    assert place.digest_of(place.restored) == place.digest_of(place.versions[FIRST][0])
    (pushed,) = run["Pusher"].outputs["pushed_model"]
    assert "was rolled back" in pushed.metadata["reason"]
    assert place.versions[ROLLED_BACK] == [*place.versions[SECOND], place.restored]


def test_a_run_without_data_fails_and_trains_nothing(place):
    run = place.runs[WITHOUT_DATA]
    assert run.state == "FAILED"
    states = run.states()
    assert states["DetectionExampleGen"] == "FAILED"
    assert states["training"] == "OMITTED"
    assert states["FailureNotifier"] == "SUCCEEDED"
    log = (run.logs / f"{run['DetectionExampleGen'].tries[-1].pod}.log").read_text()
    assert "error: " in log.splitlines()[-1]
    assert "lost" in log.splitlines()[-1]


def test_each_event_sends_one_notification(place):
    events = {SECOND: "pushed", WITHOUT_REASON: "skipped", ROLLED_BACK: "refused", WITHOUT_DATA: "failed"}
    assert [message["event"] for message in place.messages] == list(events.values())
    assert [message["run"] for message in place.messages] == [place.runs[run].name.rpartition("/")[2] for run in events]
    assert {message["path"] for message in place.messages} == {f"/{ADDRESS_SECRET}"}
    assert place.messages[0]["version"] == str(place.versions[SECOND][-1])


def test_the_files_of_the_runs_contain_no_secret(place):
    folders = (place.machine.home, Path(place.serving))
    left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(left) > 100
    assert [path for path in left if ADDRESS_SECRET.encode() in path.read_bytes()] == []
    assert [name for name, content in place.bucket.contents().items() if ADDRESS_SECRET.encode() in content] == []


def blessing_of(result: RunResult) -> dict[str, Any]:
    (blessing,) = result["DetectionEvaluator"].outputs["blessing"]
    return blessing.metadata
