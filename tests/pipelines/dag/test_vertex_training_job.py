"""Test custom jobs of Vertex AI with Google's client and a fake transport that checks the messages."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import InvalidArgument, ServiceUnavailable
from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
from google.cloud.aiplatform_v1.types import CustomJob, JobState, ListCustomJobsRequest
from tfx.types import artifact_utils, standard_artifacts
from tfx.utils import json_utils

from detloom.components.fingerprints import describe_code
from detloom.pipelines.dag import vertex_training
from detloom.pipelines.dag import vertex_training_job as training_job
from detloom.pipelines.dag.vertex_training_job import TrainerExecutor, TunerExecutor, check_mounted, main
from detloom.schemas.errors import InputError

MACHINE = {"machine_type": "g2-standard-24", "accelerator_type": "NVIDIA_L4", "accelerator_count": 2, "workers": 2}
PLACE = {"project": "my-project", "region": "europe-west4", "image": "r/detloom:1", "pipeline_root": "gs://b/root"}
VERTEX = {**PLACE, "training": MACHINE}
JOB = "projects/my-project/locations/europe-west4/customJobs/7"


@pytest.fixture
def server(monkeypatch):
    """A fake transport; the job is running twice, then has the given `states`, which can be exceptions."""
    seen = SimpleNamespace(jobs=[], parents=[], states=[JobState.JOB_STATE_PENDING, JobState.JOB_STATE_RUNNING])
    seen.cancelled, seen.at_launch, seen.at_cancel = [], lambda: None, lambda: None
    seen.earlier, seen.listed = [], []

    class Client(JobServiceClient):
        def __init__(self, client_options):
            seen.endpoint = client_options["api_endpoint"]

        def list_custom_jobs(self, request, retry):
            seen.listed.append(ListCustomJobsRequest(request))
            return [CustomJob(name=JOB.replace("7", str(6 - at)), state=state) for at, state in enumerate(seen.earlier)]

        def create_custom_job(self, parent, custom_job):
            seen.parents.append(parent)
            seen.jobs.append(CustomJob(custom_job))
            seen.at_launch()
            return CustomJob(name=f"{parent}/customJobs/7")

        def get_custom_job(self, name, retry):
            state = seen.states.pop(0)
            if isinstance(state, Exception):
                raise state
            job = CustomJob(name=name, state=state)
            if state == JobState.JOB_STATE_FAILED:
                job.error.message = "The replica workerpool1-0 exited with a non-zero status of 1."
            return job

        def cancel_custom_job(self, name, retry, timeout):
            seen.at_cancel()
            seen.cancelled.append(name)

    monkeypatch.setattr("tfx.extensions.google_cloud_ai_platform.training_clients.gapic.JobServiceClient", Client)
    monkeypatch.setattr(training_job, "_POLL_SECONDS", 0.0)
    return seen


@pytest.fixture
def executed(run_of, server):
    """Run an executor with one input and one output, and return the requests."""
    examples, model = standard_artifacts.Examples(), standard_artifacts.Model()

    def run(executor, custom_config, end=JobState.JOB_STATE_SUCCEEDED, model_uri="/gcs/bucket/model/2"):
        examples.uri, model.uri = "/gcs/bucket/examples/1", model_uri
        server.states.append(end)
        properties = {"custom_config": json_utils.dumps({"trainer_config": "{}", **custom_config}), "run_fn": "a.b"}
        executor().Do({"examples": [examples]}, {"model": [model]}, properties)
        return server.jobs[0] if server.jobs else None

    return run


def test_the_job_runs_our_program_with_the_executors_arguments_on_all_workers(executed, server, run_of):
    job = executed(TrainerExecutor, vertex_training.custom_job_config(run_of(vertex=VERTEX), "Trainer"))
    assert server.endpoint == "europe-west4-aiplatform.googleapis.com"
    assert server.parents == ["projects/my-project/locations/europe-west4"]
    assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1, 1]
    for pool in job.job_spec.worker_pool_specs:
        command = list(pool.container_spec.command)
        assert command[:3] == ["python", "-m", "detloom.pipelines.dag.vertex_training_job"]
        values = dict(zip(command[3::2], command[4::2], strict=True))
        assert values["--executor_class_path"] == "tfx.components.trainer.executor.GenericExecutor"
        inputs = artifact_utils.parse_artifact_dict(values["--inputs"])
        assert inputs["examples"][0].uri == "/gcs/bucket/examples/1"
        properties = json.loads(values["--exec-properties"])
        assert json_utils.loads(properties["custom_config"])["trainer_config"] == "{}"  # our settings are kept
    assert server.states == []  # it waited until the end


def test_the_tuner_runs_in_its_own_job(executed, run_of):
    job = executed(TunerExecutor, vertex_training.custom_job_config(run_of(vertex=VERTEX), "Tuner"))
    (pool,) = job.job_spec.worker_pool_specs
    command = list(pool.container_spec.command)
    assert command[command.index("--executor_class_path") + 1] == "tfx.components.tuner.executor.Executor"


@pytest.fixture
def train(executed, run_of):
    """Return a function that runs the Trainer's executor, with the final state of the job."""
    config = vertex_training.custom_job_config(run_of(vertex=VERTEX), "Trainer")
    return lambda end="SUCCEEDED": executed(TrainerExecutor, config, JobState[f"JOB_STATE_{end}"])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUCCEEDED"])
def test_a_retried_node_waits_for_the_job_of_its_first_attempt(train, server, state):
    server.earlier = [JobState.JOB_STATE_CANCELLED, JobState[f"JOB_STATE_{state}"]]
    with pytest.raises(RuntimeError, match=r"customJobs/5: ended as JOB_STATE_FAILED"):
        train("FAILED")
    assert server.jobs == []


def test_a_job_that_ended_without_a_model_is_not_used_again(train, server):
    server.earlier = [JobState.JOB_STATE_FAILED, JobState.JOB_STATE_CANCELLING]
    train()
    (job,), (request,) = server.jobs, server.listed
    label = job.labels["detloom_task"]
    assert re.fullmatch("[0-9a-f]{32}", label)
    assert request.filter == f"labels.detloom_task={label}"
    assert request.parent == server.parents[0]


def test_jobs_of_other_output_folders_have_another_label(executed, server, run_of):
    config = vertex_training.custom_job_config(run_of(vertex=VERTEX), "Trainer")
    labels = []
    for folder in ("/gcs/bucket/model/2", "/gcs/bucket/model/2", "/gcs/bucket/model/3"):
        executed(TrainerExecutor, config, model_uri=folder)
        labels.append(server.jobs[-1].labels["detloom_task"])
    assert labels[0] == labels[1] != labels[2]


@pytest.mark.parametrize("end", ["FAILED", "CANCELLED", "EXPIRED", "PARTIALLY_SUCCEEDED"])
def test_an_unsuccessful_job_fails_the_node(train, server, end):
    with pytest.raises(RuntimeError, match=rf"customJobs/7: ended as JOB_STATE_{end}"):
        train(end)
    assert server.cancelled == []


def test_requests_for_the_job_state_may_fail_temporarily(train, server):
    server.states += [ServiceUnavailable("away"), ConnectionResetError("reset"), JobState.JOB_STATE_RUNNING]
    train()
    assert (server.states, server.cancelled) == ([], [])


def test_a_job_with_an_unreadable_state_is_cancelled(train, server, monkeypatch):
    moments = iter([0.0, 10.0, 20.0, 3620.0, 3620.1])  # the start, two successful requests, two that fail
    monkeypatch.setattr(training_job, "time", SimpleNamespace(monotonic=lambda: next(moments), sleep=lambda _: None))
    server.states += [ServiceUnavailable("away for an hour"), ServiceUnavailable("away for longer")]
    with pytest.raises(ServiceUnavailable, match="away for longer"):
        train()
    assert server.cancelled == [JOB]


def refuse(error):
    raise error


@pytest.mark.parametrize("is_away", [False, True])
def test_other_exceptions_cancel_the_job_at_once_and_stay_if_that_fails(train, server, caplog, is_away):
    server.states.insert(1, ValueError("a bug"))
    if is_away:
        server.at_cancel = lambda: refuse(ServiceUnavailable("away"))
    with pytest.raises(ValueError, match="a bug"):
        train()
    assert server.cancelled == ([] if is_away else [JOB])
    assert (f"{JOB} could not be cancelled (503 away)" in caplog.text) == is_away


def test_a_job_that_was_never_launched_is_not_cancelled(train, server):
    server.at_launch = lambda: refuse(InvalidArgument("no such machine"))
    with pytest.raises(InvalidArgument):
        train()
    assert server.cancelled == []


def send_signal(*_):
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("at", [["sleep"], ["launch"], ["launch", "cancel"]], ids=str)
def test_sigterm_cancels_the_job_once_and_the_handler_is_restored(train, server, monkeypatch, at):
    if "sleep" in at:
        monkeypatch.setattr(training_job.time, "sleep", send_signal)
    if "launch" in at:
        server.at_launch = send_signal
    if "cancel" in at:
        server.at_cancel = send_signal
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as error:
        train()
    assert error.value.code == 143  # 128 + SIGTERM
    assert server.cancelled == [JOB]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_image_with_other_code_is_refused_with_both_fingerprints(monkeypatch, capsys):
    monkeypatch.setenv("DETLOOM_CODE", "detloom.trainer_module=0123456789abcdef")
    with pytest.raises(SystemExit) as error:
        main(["training_job"])
    assert "0123456789abcdef" in str(error.value)
    assert describe_code("detloom.trainer_module").rpartition("=")[2] in str(error.value)


@pytest.mark.slow
def test_the_job_program_runs_the_given_executor(tmp_path):
    """Run one of TFX's executors with arguments in the format of the client."""
    schema = tmp_path / "schema.pbtxt"
    schema.write_text('feature { name: "a" }')
    output = standard_artifacts.Schema()
    output.uri = str(tmp_path / "out")
    arguments = [
        *("--executor_class_path", "tfx.components.schema_gen.import_schema_gen.executor.Executor"),
        *("--inputs", "{}", "--outputs", artifact_utils.jsonify_artifact_dict({"schema": [output]})),
        *("--exec-properties", json.dumps({"schema_file": str(schema)})),
    ]
    command = [sys.executable, "-m", "detloom.pipelines.dag.vertex_training_job", *arguments]
    environment = {"DETLOOM_CODE": describe_code("detloom.trainer_module")}
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "out" / "schema.pbtxt").read_text().split() == ["feature", "{", "name:", '"a"', "}"]


def test_a_job_without_its_bucket_ends_before_it_trains(monkeypatch, tmp_path):
    monkeypatch.setattr(training_job, "MOUNT", f"{tmp_path}/gcs/")
    model = f"{tmp_path}/gcs/bucket/model"

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(InputError, match=r"bucket/model: no bucket is mounted"):
        check_mounted(model)
    monkeypatch.setattr(training_job, "_is_mounted", f"{tmp_path}/gcs/bucket".__eq__)
    check_mounted(model)
    monkeypatch.setattr(training_job.tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(InputError, match=r"bucket/model: user \d+ cannot write there \(Permission denied\)"):
        check_mounted(model)  # which exists
    monkeypatch.setattr(training_job, "_is_mounted", refuse)
    with pytest.raises(InputError, match=r"user \d+ cannot write there"):
        check_mounted(model)
