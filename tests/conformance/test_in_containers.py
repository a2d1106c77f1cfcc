"""The demo's compiled job for Kubeflow, each task in a container. `make test-image` builds the image and runs this."""

import os
import subprocess
from pathlib import Path

import pytest
from conformance_driver.execute import run_job
from conformance_driver.job import read_job
from conformance_driver.run import Machine
from container_runner import ContainerRunner

from detloom.pipelines.image_cli import find_engine
from detloom.pipelines.run_local import sample_run_file
from detloom.schemas.overrides import parse_set
from detloom.schemas.read_run_file import read_run_file

IMAGE = os.environ.get("DETLOOM_TEST_IMAGE", "")
# Settings for the run, one a line, such as train.num_steps=30: for trying the test itself.
SETTINGS = os.environ.get("DETLOOM_TEST_SETTINGS", "").splitlines()
ROOT = "minio://mlpipeline/v2/artifacts"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3 * 3600),
    pytest.mark.skipif(not IMAGE, reason="needs an image in DETLOOM_TEST_IMAGE; `make test-image` builds one"),
]


def in_image(*command: str) -> str:
    done = subprocess.run(
        [find_engine(), "run", "--rm", "--network=none", f"--entrypoint={command[0]}", IMAGE, *command[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_it_runs_as_another_user_than_root_and_has_no_compiler():
    assert in_image("id", "-u") == "1000"
    assert in_image("sh", "-c", "command -v gcc g++ cc || echo none") == "none"


def test_no_setting_of_the_machine_that_built_it_is_in_it():
    found = in_image(
        "sh", "-c", "pip config list; ls /etc/pip.conf /run/secrets ~/.cache 2>/dev/null; env | grep ^PIP_ || true"
    )
    assert found == ""


def test_every_task_of_the_demo_runs_in_it_and_a_model_is_pushed(tmp_path):
    from detloom.pipelines.compile.compile_job import compile_job

    settings = [
        f"kubeflow.image={IMAGE}",
        f"kubeflow.pipeline_root={ROOT}",
        "kubeflow.volumes=[{claim: models, mount_path: /models}]",
        "push_to=/models/demo",
        *SETTINGS,
    ]
    run = read_run_file(sample_run_file("demo"), overrides=[parse_set(text) for text in settings], place="kubeflow")
    job = read_job(compile_job(run, "kubeflow"), "kubeflow", root=ROOT)
    (tmp_path / "models").mkdir()
    home = tmp_path / "home"
    machine = Machine(home, ContainerRunner(IMAGE, home / "logs"), claims={"models": tmp_path / "models"})
    first = run_job(job, machine)
    assert first.state == "SUCCEEDED", first.describe_failures()
    assert len(versions_in(tmp_path / "models" / "demo")) == 1


def versions_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.isdigit())
