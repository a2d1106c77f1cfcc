import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import detloom
from detloom.pipelines.local.run_local import run_file_from_environment, run_locally
from detloom.pipelines.local.summary import read_latest_run
from detloom.pipelines.samples.sample_run_file import RUN_FILE_VARIABLE, sample_run_file
from detloom.schemas.errors import InputError
from detloom.schemas.odapi.pipeline_config import format_pipeline_config
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.schedule import Retrain

ROOT = Path(detloom.__file__).parents[1]
UPSTREAM = {"DetectionExampleGen", "StatisticsGen", "ImportSchemaGen", "ExampleValidator", "DatasetValidator"}


def nodes_of(run_file):
    return read_latest_run(Path(read_run_file(run_file).workspace) / "metadata.sqlite")


def cached_nodes(run_file):
    return {node_id for node_id, node in nodes_of(run_file).items() if node.is_cached}


def decision_of(run_file):
    return json.loads((nodes_of(run_file)["DetectionEvaluator"].folder("evaluation") / "decision.json").read_text())


def test_an_endpoint_is_refused_before_anything_runs(small_run):
    endpoint = "{project: my-project, region: us-central1, endpoint_name: cells, container_image: image}"
    small_run.write_text(f"{small_run.read_text()}\npush: {{vertex: {endpoint}}}\n")
    run = read_run_file(small_run)
    with pytest.raises(InputError, match=r"push\.vertex"):
        run_locally(run)
    assert not Path(run.workspace).exists()


def test_a_runtime_that_is_not_installed_is_refused_before_anything_runs(small_run, monkeypatch):
    run = read_run_file(small_run)
    evaluator = dataclasses.replace(run.evaluator, runtime="openvino")
    run = dataclasses.replace(run, evaluator=evaluator, export=dataclasses.replace(run.export, onnx=True))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    with pytest.raises(InputError, match="openvino is not installed; run pip install openvino"):
        run_locally(run)
    assert not Path(run.workspace).exists()


@pytest.mark.parametrize("name", ["run[1]", "run*", "a\\b"])
def test_a_workspace_that_tensorflow_reads_as_a_pattern_is_refused(small_run, tmp_path, name):
    with pytest.raises(InputError, match=r"^workspace: got .*, allowed: a path without [\[*\\], "):
        run_locally(read_run_file(small_run, tmp_path / name))


@pytest.mark.parametrize("address", ["{file}", "{file}/models", "hdfs://host/models"])
@pytest.mark.parametrize("field", ["push_to", "retrain.records"])
def test_an_output_that_cannot_be_read_is_refused_before_anything_runs(small_run, field, address):
    address, run = address.format(file=small_run), read_run_file(small_run)
    retrain = Retrain(min_new_images=1, records=address)
    run = dataclasses.replace(run, **({"push_to": address} if field == "push_to" else {"retrain": retrain}))
    with pytest.raises(InputError, match=f"^{field}: got {address}, allowed: a folder or a bucket to write to; "):
        run_locally(run)
    assert not Path(run.workspace).exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(small_run, monkeypatch):
    run = read_run_file(small_run)
    monkeypatch.setattr(os, "access", lambda path, mode: not (mode & os.W_OK))  # tests can run as root
    with pytest.raises(InputError, match=f"^push_to: got {run.push_to}, .*; you have no permission to write there"):
        run_locally(run)


def test_a_run_leaves_no_temporary_files(small_run, monkeypatch):
    left = []

    def leave_files(*_):
        left.append(Path(tempfile.mkdtemp()))
        left.append(Path(subprocess.check_output(["mktemp"], text=True).strip()))
        assert all(path.exists() for path in left)

    monkeypatch.setattr("detloom.pipelines.local.retries.run_with_retries", leave_files)
    monkeypatch.setattr("detloom.pipelines.local.summary.summarize_run", lambda *_, **__: "")
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    run_locally(read_run_file(small_run))
    assert len(left) == 2
    assert not any(path.exists() for path in left)
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


@pytest.mark.nightly
def test_a_run_pushes_a_model_then_uses_the_cache_then_compares_with_the_first(small_run):
    serving = Path(read_run_file(small_run).push_to)
    summary = run_locally(read_run_file(small_run))
    assert "BLESSED" in summary
    assert "NOT BLESSED" not in summary
    (first,) = [folder for folder in serving.iterdir() if folder.name.isdecimal()]
    assert (first / "saved_model.pb").is_file()
    assert cached_nodes(small_run) == set()

    summary = run_locally(read_run_file(small_run))
    assert "nothing changed since the last run" in summary
    assert {"Trainer", "DetectionEvaluator"} <= cached_nodes(small_run)
    assert str(first) in summary

    shutil.rmtree(serving)  # the cache cannot see that the served model is deleted
    assert "ran: Pusher" in run_locally(read_run_file(small_run))
    (again,) = [folder for folder in serving.iterdir() if folder.name.isdecimal()]
    assert (again / "saved_model.pb").is_file()

    small_run.write_text(small_run.read_text().replace("learning_rate: 0.001", "learning_rate: 0.002"))
    run_locally(read_run_file(small_run))
    assert cached_nodes(small_run) == UPSTREAM  # the setting affects the Trainer and its dependents
    decision = decision_of(small_run)
    assert "the baseline's" in decision["reason"]
    assert decision["baseline_problem"] is None
    assert len([folder for folder in serving.iterdir() if folder.name.isdecimal()]) == 2


def test_a_pipeline_config_gives_the_same_configuration_as_run_file_sections(small_run):
    config = read_run_file(small_run).config
    (small_run.parent / "my.config").write_text(format_pipeline_config(config))
    head, _, rest = small_run.read_text().partition("model:\n")
    small_run.write_text(f"{head}detector: my.config\n{rest[rest.index('evaluator:') :]}")
    assert read_run_file(small_run).config == config


@pytest.mark.slow
def test_the_tfx_command_line_creates_and_runs_the_pipeline(small_run):
    def tfx(*arguments):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(small_run.parent),
            "DETLOOM_RUN_FILE": str(small_run),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [str(Path(sys.executable).parent / "tfx"), *arguments, "--engine=local"]
        options = {"capture_output": True, "text": True, "env": environment, "cwd": small_run.parent}
        return subprocess.run(command, **options, check=False)

    created = tfx("pipeline", "create", f"--pipeline-path={ROOT / 'pipelines' / 'local_runner.py'}")
    assert created.returncode == 0, created.stderr[-2000:]
    assert 'Pipeline "small" created successfully' in created.stdout
    assert nodes_of(small_run) == {}
    ran = tfx("run", "create", "--pipeline-name=small")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "pushed model" in ran.stdout


def test_the_demo_is_the_default_run_file(monkeypatch, tmp_path):
    monkeypatch.delenv(RUN_FILE_VARIABLE, raising=False)
    monkeypatch.setenv("DETLOOM_WORKSPACE", str(tmp_path))
    assert run_file_from_environment() == read_run_file(sample_run_file("demo"), tmp_path)
