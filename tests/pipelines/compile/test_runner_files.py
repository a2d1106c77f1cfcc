"""Test the runner files with the programs that read them.

Each output is compared with the output of another process with a different hash seed: a job must always be the same,
byte for byte.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import detloom

ROOT = Path(detloom.__file__).parents[1]
RUN_FILES = Path(__file__).parent / "run_files"


def run(program, *arguments, run_file, home):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "1",
        "HOME": str(home),
        "DETLOOM_RUN_FILE": str(RUN_FILES / run_file),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)


def tfx(action, run_file, home):
    runner = f"--pipeline-path={ROOT / 'pipelines' / 'vertex_runner.py'}"
    program = str(Path(sys.executable).parent / "tfx")
    return run(program, "pipeline", action, "--engine=vertex", runner, run_file=run_file, home=home)


@pytest.mark.slow
def test_tfx_pipeline_create_writes_the_edited_job(tmp_path, compile_text):
    created = tfx("create", "vertex_gpu_dataflow.yaml", tmp_path)
    assert created.returncode == 0, created.stderr[-2000:]
    assert 'Pipeline "cells-gpu" created successfully.' in created.stdout
    text = (tmp_path / "tfx" / "vertex" / "cells-gpu" / "pipeline.json").read_text()
    assert "training" in json.loads(text)["pipelineSpec"]["components"]
    assert text == compile_text("vertex_gpu_dataflow")


@pytest.mark.slow
def test_tfx_pipeline_compile_writes_into_the_current_folder(tmp_path, compile_text):
    compiled = tfx("compile", "vertex_tpu_v3.yaml", tmp_path)
    assert compiled.returncode == 0, compiled.stderr[-2000:]
    assert "Pipeline cells-tpu compiled successfully." in compiled.stdout
    assert (tmp_path / "cells-tpu.json").read_text() == compile_text("vertex_tpu_v3")


@pytest.mark.parametrize(
    ("runner", "run_file", "message"),
    [
        ("vertex_runner", "kubeflow_cpu", "kubeflow_cpu.yaml:2: vertex: the section is missing"),
        ("kubeflow_runner", "vertex_tpu_v3", "vertex_tpu_v3.yaml:1: kubeflow: the section is missing"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(runner, run_file, message, monkeypatch):
    monkeypatch.setenv("DETLOOM_RUN_FILE", str(RUN_FILES / f"{run_file}.yaml"))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "pipelines" / f"{runner}.py"), run_name="__main__")
    assert str(ended.value).startswith("error: ")
    assert message in str(ended.value)


def test_a_run_file_with_the_name_of_the_job_is_not_overwritten(tmp_path, monkeypatch):
    text = (RUN_FILES / "kubeflow_cpu.yaml").read_text()
    run_file = tmp_path / f"{yaml.safe_load(text)['name']}.job.yaml"
    run_file.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETLOOM_RUN_FILE", run_file.name)
    with pytest.raises(SystemExit, match=rf"^error: {run_file.name}: .*overwrite"):
        runpy.run_path(str(ROOT / "pipelines" / "kubeflow_runner.py"), run_name="__main__")
    assert run_file.read_text() == text
    assert list(tmp_path.iterdir()) == [run_file]


@pytest.mark.slow
def test_the_runner_file_for_kubeflow_writes_both_documents(tmp_path, compile_text):
    written = run(
        sys.executable, str(ROOT / "pipelines" / "kubeflow_runner.py"), run_file="kubeflow_gpu.yaml", home=tmp_path
    )
    assert written.returncode == 0, written.stderr[-2000:]
    text = (tmp_path / "cells-gpu.job.yaml").read_text()
    assert len(list(yaml.safe_load_all(text))) == 2
    assert text == compile_text("kubeflow_gpu")
