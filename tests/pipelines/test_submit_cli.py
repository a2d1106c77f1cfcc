"""`detloom submit` and `detloom status`, from the command line to a server that speaks the API."""

import json
import re

import pytest
from click.testing import CliRunner
from fake_backends import sample_job
from fake_backends.kubeflow import Answer, error
from google.cloud.aiplatform_v1.types import pipeline_job

from detloom.pipelines import submit_cli
from detloom.pipelines.backends import vertex_api
from detloom.pipelines.cli import cli
from detloom.schemas.errors import InputError

TOKEN = "eyJhbGciOiJSUzI1NiJ9.planted"
VERTEX = {"project": "my-project", "region": "us-central1", "image": "x/d:1", "pipeline_root": "gs://bucket/root"}


@pytest.fixture
def kubeflow(cluster, tmp_path, monkeypatch):
    """The run file of a cluster that wants a token; its job lies beside it."""
    cluster.token = TOKEN
    monkeypatch.setenv("KFP_TOKEN", TOKEN)
    section = {"host": cluster.host, "image": "x/d:1", "token": "env:KFP_TOKEN"}
    (tmp_path / "job.yaml").write_text(sample_job.kubeflow_job())
    return write_run(tmp_path / "run.yaml", kubeflow=section)


@pytest.fixture
def vertex(region, tmp_path, monkeypatch):
    """The run file of a region of Vertex AI; its job lies beside it."""
    monkeypatch.setattr(vertex_api, "connect_vertex", lambda settings: region.api(settings))
    (tmp_path / "job.json").write_text(sample_job.vertex_job())
    return write_run(tmp_path / "run.yaml", vertex=VERTEX)


def write_run(path, **sections):
    data = {"path": "embedded:digits", "split_by_ratio": {}}
    run = {
        "name": "cells",
        "push_to": "gs://models/cells",
        "data": data,
        "train": {"batch_size": 4, "num_steps": 8},
        **sections,
    }
    path.write_text(json.dumps(run))
    return path


def detloom(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


def refusal(*arguments):
    result = detloom(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


@pytest.mark.parametrize("command", ["submit", "status"])
def test_help_says_what_it_does(command):
    result = detloom(command, "--help")
    assert result.exit_code == 0
    assert f"cli {command} [OPTIONS] RUN_FILE" in result.output


def test_submit_prints_the_id_the_page_and_the_next_command(cluster, kubeflow):
    result = detloom("submit", kubeflow, "--job", kubeflow.with_name("job.yaml"))
    (run,) = cluster.runs
    assert re.fullmatch(r"cells-\d{8}-\d{6}-[0-9a-f]{8}", run.display_name)
    assert result.output.splitlines() == [
        f"Submitted to Kubeflow Pipelines: {run.run_id}",
        f"  {cluster.host}/#/runs/details/{run.run_id}",
        f"Look at it with: detloom status {kubeflow} {run.run_id} --runner kubeflow",
    ]


def test_what_submit_prints_as_the_next_command_works(cluster, kubeflow):
    command = detloom("submit", kubeflow, "--job", kubeflow.with_name("job.yaml")).output.splitlines()[-1]
    result = detloom(*command.partition(": detloom ")[2].split())
    assert result.exit_code == 0
    assert "state    pending" in result.output


def test_a_run_can_be_named_and_is_then_submitted_once(region, vertex):
    arguments = ("submit", vertex, "--job", vertex.with_name("job.json"), "--name", "cells-first")
    assert "Submitted to Vertex AI: cells-first" in detloom(*arguments).output
    assert "there is a run named 'cells-first' already, which is pending; look at it" in refusal(*arguments)
    assert len(region.jobs) == 1


def test_no_cache_reaches_every_task(region, vertex):
    detloom("submit", vertex, "--job", vertex.with_name("job.json"), "--name", "a")
    detloom("submit", vertex, "--job", vertex.with_name("job.json"), "--name", "b", "--no-cache")
    cached, uncached = (job.pipeline_spec["root"]["dag"]["tasks"]["Gen"] for job in region.jobs.values())
    assert cached["cachingOptions"]["enableCache"] is True
    assert uncached["cachingOptions"]["enableCache"] is False


@pytest.mark.slow
@pytest.mark.parametrize("place", ["kubeflow", "vertex"])
def test_without_a_file_the_run_file_is_compiled(cluster, region, tmp_path, monkeypatch, place):
    monkeypatch.setattr(vertex_api, "connect_vertex", lambda settings: region.api(settings))
    sections = {"kubeflow": {"host": cluster.host, "image": "x/d:1", "pipeline_root": "minio://b/r"}, "vertex": VERTEX}
    run_file = write_run(tmp_path / "run.yaml", **{place: sections[place]})
    result = detloom("submit", run_file)
    assert result.exit_code == 0, result.output
    name = str(region.jobs) if place == "vertex" else cluster.runs[0].display_name
    assert "cells-" in name
    assert "Trainer" in detloom("status", run_file, re.search("cells-[0-9a-f-]+", name)[0]).output


def test_wait_follows_the_run_to_its_end(cluster, kubeflow, monkeypatch):
    states = iter(["RUNNING", "SUCCEEDED"])
    get_run = type(cluster).get_run

    def advance(self, query, body, run_id):
        run = get_run(self, query, body, run_id)
        run.state = next(states)
        return run

    replace_route(monkeypatch, get_run, advance)
    result = detloom("submit", kubeflow, "--job", kubeflow.with_name("job.yaml"), "--wait", "--every", 0.001)
    assert result.exit_code == 0
    assert "  state    succeeded" in result.output


def test_wait_ends_with_1_if_the_run_failed(cluster, kubeflow):
    run = cluster.add_run("cells-1", state="FAILED")
    result = detloom("status", kubeflow, run.run_id, "--wait")
    assert result.exit_code == 1
    assert "  state    failed" in result.output


def test_wait_with_json_prints_nothing_else_on_standard_output(region, vertex):
    spec, task = sample_job.SPEC, pipeline_job.PipelineTaskDetail(task_name="Trainer", state="FAILED")
    detail = pipeline_job.PipelineJobDetail(task_details=[task])
    region.add_job("cells-1", state="FAILED", pipeline_spec=spec, job_detail=detail)
    result = detloom("status", vertex, "cells-1", "--wait", "--json")
    assert result.exit_code == 1
    plain = json.loads(result.stdout)
    assert (plain["run_id"], plain["state"]) == ("cells-1", "failed")
    assert "UTC  Trainer  failed" in result.stderr


def test_ctrl_c_leaves_the_run_alone_and_says_so(cluster, kubeflow, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("detloom.pipelines.backends.follow_run.follow_run", interrupt)
    result = detloom("status", kubeflow, "cells-1", "--wait")
    assert result.exit_code == 130
    assert f"The run goes on; look at it with: detloom status {kubeflow} cells-1 --runner kubeflow" in result.output


def test_status_lists_the_runs_of_the_pipeline(cluster, kubeflow):
    assert detloom("status", kubeflow).output == "No runs of 'cells' so far.\n"
    runs = [cluster.add_run(f"cells-{number}") for number in range(3)]
    lines = detloom("status", kubeflow, "--limit", 2).output.splitlines()
    assert [line.split()[0] for line in lines] == ["run", runs[2].run_id, runs[1].run_id]
    plain = json.loads(detloom("status", kubeflow, "--json").output)
    assert [(each["name"], each["state"]) for each in plain] == [(f"cells-{number}", "running") for number in (2, 1, 0)]


def test_status_of_one_run_as_json(region, vertex):
    region.add_job("cells-1", pipeline_spec=sample_job.SPEC)
    plain = json.loads(detloom("status", vertex, "cells-1", "--json").output)
    assert (plain["run_id"], [task["state"] for task in plain["tasks"]]) == ("cells-1", ["pending"] * 3)


def test_the_runner_is_the_one_that_the_run_file_has(tmp_path):
    kubeflow = {"image": "x/d:1"}
    both = write_run(tmp_path / "both.yaml", kubeflow=kubeflow, vertex=VERTEX)
    assert "--runner is missing, and the file has both of the sections kubeflow, vertex" in refusal("status", both)
    none = write_run(tmp_path / "none.yaml")
    assert "--runner is missing, and the file has none of the sections" in refusal("status", none)
    assert "vertex: the section is missing; docs/vertex.md" in refusal("status", none, "--runner", "vertex")
    assert "kubeflow.host: is empty" in refusal("status", both, "--runner", "kubeflow")


def test_settings_on_the_command_line_go_over_the_run_file(cluster, kubeflow):
    result = detloom("submit", kubeflow, "--job", kubeflow.with_name("job.yaml"), "--set", "kubeflow.experiment=lab")
    assert result.exit_code == 0
    assert [each.display_name for each in cluster.experiments] == ["lab"]


def test_a_job_of_another_pipeline_is_refused(cluster, kubeflow, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(sample_job.kubeflow_job(pipelineInfo={"name": "dogs"}))
    assert "is the pipeline 'dogs', but the run file's is 'cells'" in refusal("submit", kubeflow, "--job", other)
    assert cluster.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "RUN", "--name", "Cells 1"), "--name: got 'Cells 1', allowed: lower case letters"),
        (("submit", "RUN", "--job", "no.yaml"), "no.yaml: cannot be read (No such file or directory)"),
        (("status", "RUN", "--wait"), "--wait: got no RUN_ID to wait for"),
    ],
)
def test_mistakes_are_one_sentence(cluster, kubeflow, arguments, message):
    assert message in refusal(*(kubeflow if each == "RUN" else each for each in arguments))
    assert cluster.runs == []


@pytest.mark.parametrize(
    "answer",
    [
        error(401, f"Bearer {TOKEN} is expired"),
        error(403, f"denied for {TOKEN}"),
        error(500, f"header authorization: Bearer {TOKEN}"),
        Answer(401, f"Jwt {TOKEN} is expired".encode(), "text/plain"),
        Answer(drop=True),
    ],
)
def test_the_token_is_never_printed(cluster, kubeflow, answer):
    cluster.answer_next("POST", "/runs", answer)
    arguments = ("submit", kubeflow, "--job", kubeflow.with_name("job.yaml"))
    result = detloom(*arguments)
    assert TOKEN not in result.output + str(result.exception)
    assert isinstance(result.exception, InputError)
    successful = detloom(*arguments)
    assert TOKEN not in successful.output
    assert TOKEN not in json.dumps([run.to_dict() for run in cluster.runs], default=str)


def test_importing_the_commands_leaves_the_clients_out():
    import subprocess
    import sys

    code = "import sys, detloom.pipelines.submit_cli, detloom.pipelines.schedule_cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"kfp", "kfp_server_api", "google.cloud.aiplatform_v1", "grpc", "tfx"} & set(loaded)
    assert submit_cli.COMMANDS


def replace_route(monkeypatch, old, new):
    from fake_backends import kubeflow

    routes = [(method, path, new if function is old else function) for method, path, function in kubeflow._ROUTES]
    monkeypatch.setattr(kubeflow, "_ROUTES", routes)
