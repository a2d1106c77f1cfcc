"""Test `detloom submit` and `detloom status` from the command line to servers with the real APIs."""

import json
import re

import pytest
from command_line import detloom_command, sentence
from fake_backends import sample_job
from fake_backends.kubeflow import Answer, error
from google.cloud.aiplatform_v1.types import pipeline_job

from detloom.pipelines.backends import vertex_client
from detloom.schemas.errors import InputError

TOKEN = "eyJhbGciOiJSUzI1NiJ9.planted"
VERTEX = {"project": "my-project", "region": "us-central1", "image": "x/d:1", "pipeline_root": "gs://bucket/root"}


@pytest.fixture
def kubeflow(cluster, write_run, monkeypatch):
    """Write a run file for a cluster that requires a token."""
    cluster.token = TOKEN
    monkeypatch.setenv("KFP_TOKEN", TOKEN)
    section = {"host": cluster.host, "image": "x/d:1", "token": "env:KFP_TOKEN"}
    return write_run(job=sample_job.kubeflow_job(), kubeflow=section)


@pytest.fixture
def vertex(region, write_run, monkeypatch):
    """Write a run file for a region of Vertex AI."""
    monkeypatch.setattr(vertex_client, "connect_vertex", lambda settings: region.api(settings))
    return write_run(job=sample_job.vertex_job(), vertex=VERTEX)


def submit(run_file, *arguments):
    return detloom_command("submit", run_file, "--job", run_file.with_name("job"), *arguments)


def status(run_file, *arguments):
    return detloom_command("status", run_file, *arguments)


def test_submit_prints_id_link_and_next_command(cluster, kubeflow):
    result = submit(kubeflow)
    (run,) = cluster.runs
    assert re.fullmatch(r"cells-\d{8}-\d{6}-[0-9a-f]{8}", run.display_name)
    assert result.output.splitlines() == [
        f"Submitted to Kubeflow Pipelines: {run.run_id}",
        f"  {cluster.host}/#/runs/details/{run.run_id}",
        f"Next: detloom status {kubeflow} {run.run_id} --runner kubeflow",
    ]
    following = detloom_command(*result.output.splitlines()[-1].split()[2:])
    assert following.exit_code == 0
    assert "state    pending" in following.output
    assert json.loads(submit(kubeflow, "--json").stdout)["run_id"] == cluster.runs[-1].run_id


STOCK = {"spec": {"templateDefaults": {"retryStrategy": {"limit": "2", "retryPolicy": "OnError"}}}}
RETRIED = ("--set", "nodes=[{node: Trainer, max_retries: 2}]")


def test_submit_warns_if_the_cluster_does_not_retry_failed_containers(cluster, kubeflow):
    assert submit(kubeflow).stderr == ""  # without retries
    assert "no earlier run shows" in submit(kubeflow, *RETRIED).stderr
    cluster.workflows[cluster.runs[-1].run_id] = STOCK
    result = submit(kubeflow, *RETRIED)
    assert "OnError, a container that fails is not retried" in result.stderr
    assert "docs/kubeflow.md#retries" in result.stderr
    assert (result.exit_code, len(cluster.runs)) == (0, 3)


def test_a_cluster_that_does_not_show_its_settings_is_no_reason_to_stop(cluster, kubeflow):
    run = cluster.add_run("cells-1")
    cluster.answer_next("GET", f"/apis/v1beta1/runs/{run.run_id}", error(403, "no access"))
    result = submit(kubeflow, *RETRIED)
    assert (result.exit_code, result.stderr, len(cluster.runs)) == (0, "", 2)


def test_a_named_run_is_submitted_once(region, vertex):
    assert "Submitted to Vertex AI: cells-first" in submit(vertex, "--name", "cells-first").output
    assert "'cells-first' already exists" in sentence(submit(vertex, "--name", "cells-first"))
    assert len(region.jobs) == 1


def test_no_cache_applies_to_every_task(region, vertex):
    submit(vertex, "--name", "a")
    submit(vertex, "--name", "b", "--no-cache")
    cached, uncached = (job.pipeline_spec["root"]["dag"]["tasks"]["Gen"] for job in region.jobs.values())
    assert cached["cachingOptions"]["enableCache"] is True
    assert uncached["cachingOptions"]["enableCache"] is False


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["kubeflow", "vertex"])
def test_without_a_file_the_run_file_is_compiled(cluster, region, write_run, monkeypatch, place):
    monkeypatch.setattr(vertex_client, "connect_vertex", lambda settings: region.api(settings))
    sections = {"kubeflow": {"host": cluster.host, "image": "x/d:1", "pipeline_root": "minio://b/r"}, "vertex": VERTEX}
    run_file = write_run(**{place: sections[place]})
    result = detloom_command("submit", run_file)
    assert result.exit_code == 0, result.output
    name = str(region.jobs) if place == "vertex" else cluster.runs[0].display_name
    assert "cells-" in name
    assert "Trainer" in status(run_file, re.search("cells-[0-9a-f-]+", name)[0]).output


def test_wait_ends_with_the_run(cluster, kubeflow, monkeypatch):
    monkeypatch.setattr("detloom.pipelines.backends.backend._LAST_STATES_SECONDS", 0.0)  # this run has no tasks
    cluster.add_run("cells-1", state="SUCCEEDED")
    result = status(kubeflow, "cells-1", "--wait", "--every", 0.001)
    assert result.exit_code == 0
    assert "  state    succeeded" in result.output


def test_wait_with_json_prints_nothing_else_on_standard_output(region, vertex):
    spec, task = sample_job.SPEC, pipeline_job.PipelineTaskDetail(task_name="Trainer", state="FAILED")
    detail = pipeline_job.PipelineJobDetail(task_details=[task])
    region.add_job("cells-1", state="FAILED", pipeline_spec=spec, job_detail=detail)
    result = status(vertex, "cells-1", "--wait", "--json")
    assert result.exit_code == 1
    plain = json.loads(result.stdout)
    assert (plain["run_id"], plain["state"]) == ("cells-1", "failed")
    assert json.loads(status(vertex, "cells-1", "--json").stdout) == plain
    assert "UTC  Trainer  failed" in result.stderr


def test_ctrl_c_does_not_stop_the_run(cluster, kubeflow, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("detloom.pipelines.backends.backend.follow_run", interrupt)
    result = status(kubeflow, "cells-1", "--wait")
    assert result.exit_code == 130
    assert f"detloom status {kubeflow} cells-1 --runner kubeflow" in result.output


def test_status_lists_the_runs_of_the_pipeline(cluster, kubeflow):
    assert status(kubeflow).output == "No runs of 'cells' yet.\n"
    runs = [cluster.add_run(f"cells-{number}") for number in range(3)]
    lines = status(kubeflow, "--limit", 2).output.splitlines()
    assert [line.split()[0] for line in lines] == ["run", runs[2].run_id, runs[1].run_id]
    plain = json.loads(status(kubeflow, "--json").output)
    assert [(each["name"], each["state"]) for each in plain] == [(f"cells-{number}", "running") for number in (2, 1, 0)]


def test_the_default_runner_is_the_section_in_the_run_file(write_run):
    both = write_run("both.yaml", kubeflow={"image": "x/d:1"}, vertex=VERTEX)
    assert "the file has both" in sentence(status(both))
    assert "the file has none" in sentence(status(write_run("none.yaml")))
    assert "kubeflow.host: " in sentence(status(both, "--runner", "kubeflow"))


def test_a_job_of_another_pipeline_is_refused(cluster, kubeflow):
    kubeflow.with_name("job").write_text(sample_job.kubeflow_job(pipelineInfo={"name": "dogs"}))
    message = sentence(submit(kubeflow))
    assert "'dogs'" in message
    assert "'cells'" in message
    assert cluster.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        error(500, f"header authorization: Bearer {TOKEN}"),
        Answer(401, f"Jwt {TOKEN} is expired".encode(), "text/plain"),
        Answer(drop=True),
    ],
)
def test_the_token_is_never_printed(cluster, kubeflow, answer):
    cluster.answer_next("POST", "/runs", answer)
    result = submit(kubeflow)
    assert TOKEN not in result.output + str(result.exception)
    assert isinstance(result.exception, InputError)
    successful = submit(kubeflow)
    assert TOKEN not in successful.output
    assert TOKEN not in json.dumps([run.to_dict() for run in cluster.runs], default=str)
