import json
import re
from pathlib import Path

import pytest
import yaml
from command_line import detloom_command

from detloom.schemas.errors import InputError

RUN_FILE = """
name: cells
data: {format: coco, path: gs://my-bucket/cells, splits: {train: a.json, eval: b.json, test: c.json}}
vertex: {project: my-project, region: us-central1, image: eu.gcr.io/p/detloom:1, pipeline_root: gs://my-bucket/runs}
"""
KUBEFLOW = """
kubeflow:
  image: registry.example.org/detloom:1
  pipeline_root: gs://my-bucket/kfp
  volumes: [{claim: data, mount_path: /gcs/my-bucket}]
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.yaml"
    path.write_text(RUN_FILE)
    return path


def compile_with(*arguments):
    result = detloom_command("compile", *arguments)
    if isinstance(result.exception, InputError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_output_names_the_file_and_the_next_commands(run_file):
    output = compile_with(run_file)
    job = json.loads(Path("cells.json").read_text())
    assert job["displayName"] == "cells"
    assert output.startswith("Written: cells.json, ")
    assert "--entrypoint detloom eu.gcr.io/p/detloom:1 image-check --job - < cells.json\n" in output
    assert f"detloom submit {run_file} --runner vertex --job cells.json\n" in output
    assert sorted(path.name for path in run_file.parent.iterdir()) == ["cells.json", "run.yaml"]


def test_every_image_of_the_job_is_to_be_checked(run_file):
    training = "{machine_type: g2-standard-24, accelerator_type: NVIDIA_L4, accelerator_count: 2, image: x/gpu:1}"
    options = "[--runner=DataflowRunner, --sdk_container_image=x/beam:1]"
    nodes = f"nodes: [{{node: ModelCard, image: x/card:1}}, {{node: StatisticsGen, beam_args: {options}}}]\n"
    run_file.write_text(f"{RUN_FILE.replace('{project', f'{{training: {training}, project')}{nodes}")
    images = re.findall(r"detloom (\S+) image-check", compile_with(run_file))
    assert images == ["eu.gcr.io/p/detloom:1", "x/card:1", "x/gpu:1", "x/beam:1"]
    spec = json.loads(Path("cells.json").read_text())["pipelineSpec"]
    containers = spec["deploymentSpec"]["executors"]
    assert containers["ModelCard_executor"]["container"]["image"] == "x/card:1"
    assert containers["Pusher_executor"]["container"]["image"] == "eu.gcr.io/p/detloom:1"


def test_settings_of_the_command_line_override_the_file(run_file):
    run_file.write_text(RUN_FILE + KUBEFLOW)
    more = run_file.parent / "more.yaml"
    more.write_text("kubeflow: {image_pull_policy: Always}\n")
    compile_with(run_file, "--runner", "kubeflow", "-o", "job.yaml", "--set", "name=others", "--set", more)
    spec, platform = yaml.safe_load_all(Path("job.yaml").read_text())
    assert spec["pipelineInfo"] == {"name": "others"}
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert {executor["imagePullPolicy"] for executor in executors.values()} == {"Always"}


@pytest.mark.parametrize(
    ("more", "arguments", "message"),
    [
        (KUBEFLOW, [], r"--runner.* both "),
        ("", ["--runner", "kubeflow"], r"kubeflow: .*missing"),
        ("", ["-o", "job.yaml"], r"^job\.yaml: got .*'\.yaml', allowed for vertex: \.json\."),
        ("", ["-o", "none/job.json"], r"^none: "),
        (KUBEFLOW, ["--runner", "kubeflow", "-o", "run.yaml"], r"^run\.yaml: .* -o"),
        ("", ["--set", "name=a_b"], r"^name: got 'a_b', allowed on Vertex"),
    ],
)
def test_a_mistake_writes_no_file(more, arguments, message, run_file):
    run_file.write_text(RUN_FILE + more)
    before = sorted(run_file.parent.iterdir())
    with pytest.raises(InputError, match=message):
        compile_with(run_file, *arguments)
    assert sorted(run_file.parent.iterdir()) == before


def test_a_failed_write_keeps_the_old_file(run_file, monkeypatch):
    Path("cells.json").write_text("old")

    def fail(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("detloom.pipelines.commands.compile.write_text_file", fail)
    assert isinstance(detloom_command("compile", run_file).exception, OSError)
    assert Path("cells.json").read_text() == "old"
