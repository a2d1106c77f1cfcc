"""Test the runner file for Vertex AI with the tfx command line, in another process with a different hash seed."""

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


@pytest.mark.slow
def test_tfx_pipeline_create_writes_the_edited_job(tmp_path, compile_text):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "1",
        "HOME": str(tmp_path),
        "DETLOOM_RUN_FILE": str(RUN_FILES / "vertex_gpu_dataflow.yaml"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    runner = ROOT / "pipelines" / "vertex_runner.py"
    command = ["tfx", "pipeline", "create", "--engine=vertex", f"--pipeline-path={runner}"]
    created = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert created.returncode == 0, created.stderr[-2000:]
    assert 'Pipeline "cells-gpu" created successfully.' in created.stdout
    text = (tmp_path / "tfx" / "vertex" / "cells-gpu" / "pipeline.json").read_text()
    assert "training" in json.loads(text)["pipelineSpec"]["components"]
    assert text == compile_text("vertex_gpu_dataflow")


def run_here(run_file, monkeypatch):
    monkeypatch.setenv("DETLOOM_RUN_FILE", str(run_file))
    runpy.run_path(str(ROOT / "pipelines" / "vertex_runner.py"), run_name="__main__")


def test_a_mistake_is_reported_in_one_sentence(monkeypatch):
    with pytest.raises(SystemExit, match=r"^error: .*kubeflow_cpu\.yaml:2: vertex: the section is missing"):
        run_here(RUN_FILES / "kubeflow_cpu.yaml", monkeypatch)


def test_the_job_is_written_beside_a_run_file_but_never_over_it(tmp_path, monkeypatch, compile_text):
    content = yaml.safe_load((RUN_FILES / "vertex_gpu_dataflow.yaml").read_text())
    run_file, text = tmp_path / f"{content['name']}.json", json.dumps(content)  # JSON is YAML
    run_file.write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=rf"^error: .*{run_file.name}: .*overwrite"):
        run_here(run_file, monkeypatch)
    assert run_file.read_text() == text
    assert list(tmp_path.iterdir()) == [run_file]
    run_here(run_file.rename(tmp_path / "run.yaml"), monkeypatch)
    assert run_file.read_text() == compile_text("vertex_gpu_dataflow")
